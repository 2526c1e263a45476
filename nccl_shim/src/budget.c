/* The posting threads' part of holding: whether a queue pair may be held now, and the list of those that hold something.
 * What the numbers mean, and the thread's part: sweep.c.
 */
#include "budget.h"

#include "../../csrc/base/clock.h"
#include "compiler.h"
#include "process.h"

#include <stdlib.h>

static _Atomic(struct shim_qp *) newly_listed; /* pushed by the thread that holds something first */
static uint64_t limit_ns = UINT64_MAX;

/* Mooncake gives a transfer up after this; what arrives later lands in memory that may be another request's. Read once,
 * before the program's threads run. */
void shim_budget_load(void)
{
	const char *text = getenv("MC_TRANSFER_TIMEOUT");
	char *end;
	unsigned long s;

	if (!text || *text < '0' || *text > '9')
		return;
	s = strtoul(text, &end, 10);
	if (!*end && s && s < 1000000)
		limit_ns = s * MFS_NS_PER_S / 4;
}

/* The hold budget of a queue pair. */
uint64_t shim_budget_ns(uint64_t max_hold_ns)
{
	return max_hold_ns < limit_ns ? max_hold_ns : limit_ns;
}

bool shim_budget_over(const struct shim_qp *q)
{
	uint64_t until_ns = atomic_load_explicit(&q->free_until_ns, memory_order_relaxed);

	return unlikely(until_ns) && mfs_clock_ns() < until_ns;
}

/* After something was held. The thread takes the queue pair from the list only when it holds nothing, and checks again
 * after it did: of the two checks, one sees the other. */
void shim_list(struct shim_qp *q)
{
	if (atomic_load(&q->listed) || atomic_exchange(&q->listed, 1))
		return;
	atomic_fetch_add(&shim.listed, 1);
	q->next_listed = atomic_load(&newly_listed);
	while (!atomic_compare_exchange_weak(&newly_listed, &q->next_listed, q))
		;
}

struct shim_qp *shim_list_take(void)
{
	return atomic_exchange(&newly_listed, NULL);
}

/* After the work request was published: a thread that takes the time from the queue pair sees the work request. */
void shim_lease_note(struct shim_qp *q, uint64_t hold_until_ns)
{
	uint64_t first_ns = atomic_load(&q->hold_until_ns);

	while ((!first_ns || hold_until_ns < first_ns) &&
	       !atomic_compare_exchange_weak(&q->hold_until_ns, &first_ns, hold_until_ns))
		;
}
