/* The posting threads' part of holding: whether a queue pair may be held now, and the list of those that
 * hold something. sweep.c explains the numbers and has the part of the shim's thread. */
#include "budget.h"

#include "../../csrc/base/clock.h"
#include "compiler.h"
#include "log.h"
#include "process.h"

#include <stdlib.h>

#define STILL_PARTS 4  /* a queue pair may stand still for one part in this many of a time-out or lease */
#define HELD_PARTS 2   /* and may be held for one part in this many in all; the rest is for the NIC */
#define TIMEOUT_S 30ul /* Mooncake's default; mooncake_adapter/mooncake/permits.py has the same */
#define TIMEOUT_MOST_S 999999ul
#define STORE_LEASE_MS 5000ul /* the default of Mooncake's master; mfsd/policy/store_lease.py has the same */
#define STORE_LEASE_MOST_MS 86400000ul

/* pushed by threads when a queue pair begins to hold something */
static _Atomic(struct shim_qp *) newly_listed;
static uint64_t timeout_ns; /* 0: not set by any variable */
static uint64_t store_lease_ns = STORE_LEASE_MS * MFS_NS_PER_MS;

/* Parses a whole number from 1 to `most`. Returns 0 if `text` is none. */
static unsigned long number(const char *text, unsigned long most)
{
	unsigned long n;
	char *end;

	if (!text || *text < '0' || *text > '9')
		return 0;
	n = strtoul(text, &end, 10); /* an overflow gives a number above any `most` */
	return *end || n > most ? 0 : n;
}

/* Reads the times after which Mooncake gives up. A transfer is given up after MC_TRANSFER_TIMEOUT, and, if
 * that is set, a slice of one MC_SLICE_TIMEOUT after its post; bytes that arrive later land in memory that
 * may belong to another request. Mooncake's store has a lease on what it reads; bytes that arrive later
 * may be those of another object. The lease is configured at the store's master and none of its replies
 * contains it. All are read once, before the program's threads run. */
void shim_budget_load(void)
{
	const char *lease = getenv("MFS_STORE_LEASE_MS");
	unsigned long s = number(getenv("MC_TRANSFER_TIMEOUT"), TIMEOUT_MOST_S),
		      slice_s = number(getenv("MC_SLICE_TIMEOUT"), TIMEOUT_MOST_S),
		      ms = number(lease, STORE_LEASE_MOST_MS);

	if (slice_s && (!s || slice_s < s))
		s = slice_s;
	timeout_ns = s * MFS_NS_PER_S;
	if (ms)
		store_lease_ns = ms * MFS_NS_PER_MS;
	else if (lease && *lease)
		shim_log(SHIM_REASON_STORE_LEASE,
			 "MFS_STORE_LEASE_MS=%s is not a number of milliseconds from 1 to %lu: taken as %lu",
			 lease, STORE_LEASE_MOST_MS, STORE_LEASE_MS);
}

/* Returns after what time the library that made the queue pair gives up what it has posted; 0: not known. */
uint64_t shim_gives_up_ns(bool of_mooncake, bool of_store)
{
	uint64_t ns = timeout_ns || !of_mooncake ? timeout_ns : TIMEOUT_S * MFS_NS_PER_S;

	return of_store && (!ns || store_lease_ns < ns) ? store_lease_ns : ns;
}

/* The hold budget of a queue pair. */
uint64_t shim_budget_ns(const struct shim_qp *q, uint64_t max_hold_ns)
{
	uint64_t ns = q->gives_up_ns / STILL_PARTS;

	return ns && ns < max_hold_ns ? ns : max_hold_ns;
}

/* Returns until when a work request may be held, whether or not its queue pair is served; 0: no limit. */
uint64_t shim_hold_until_ns(const struct shim_qp *q, const struct shim_held *held)
{
	uint64_t named_ns = held->tag.hold_until_ns;
	uint64_t ns = q->gives_up_ns ? held->enqueued_ns + q->gives_up_ns / HELD_PARTS : 0;

	return !ns || (named_ns && named_ns < ns) ? named_ns : ns;
}

bool shim_budget_over(const struct shim_qp *q)
{
	uint64_t until_ns = atomic_load_explicit(&q->free_until_ns, memory_order_relaxed);

	return unlikely(until_ns) && mfs_clock_ns() < until_ns;
}

/* Called after something was held. The shim's thread takes the queue pair off the list only when it holds
 * nothing, and checks again after that. So either this check or that one sees the other's change. */
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

/* Called after the work request was published, so a thread that reads the time from the queue pair also
 * sees the work request. */
void shim_lease_note(struct shim_qp *q, uint64_t hold_until_ns)
{
	uint64_t first_ns = atomic_load(&q->hold_until_ns);

	while ((!first_ns || hold_until_ns < first_ns) &&
	       !atomic_compare_exchange_weak(&q->hold_until_ns, &first_ns, hold_until_ns))
		;
}
