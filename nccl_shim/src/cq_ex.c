/* Completion queues of ibv_create_cq_ex. They are polled by ibv_poll_cq like any other, or by functions in
 * struct ibv_cq_ex, one set for each queue, which are patched.
 *
 * Between start_poll and end_poll providers hold a lock of the queue, so the state of the current polling
 * needs none. Nothing is posted in between, because a provider may take that lock in its post. What has to
 * be posted because a queue pair has failed, or because its device had no room, is posted at the end. */
#include "cq_ex.h"

#include "complete.h"
#include "devices.h"
#include "flag.h"
#include "flushed.h"
#include "hold.h"
#include "permits.h"
#include "process.h"
#include "pump.h"
#include "qp_state.h"
#include "table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* queue pairs seen to fail in one polling; those beyond it are noticed with their next completion */
#define FAILED_MAX 16

struct shim_cq_ex {
	struct ibv_cq_ex *ex;
	struct ibv_cq_ex real; /* the provider's functions, only those that are called here */
	struct shim_qp *q;     /* queue pair of the completions that are not counted yet */
	uint32_t signals;
	struct shim_qp *failed[FAILED_MAX];
	uint32_t failures;
	_Atomic uint32_t making; /* handing out completions that no provider makes, see shim_flushed */
	struct ibv_wc made;
};

/* The patched functions. Completions that we make have errors, so nothing else is read from them. */
/* clang-format off */
#define EACH_FUNCTION(X)                                                                                               \
	X(start_poll) X(next_poll) X(end_poll) X(read_opcode) X(read_vendor_err) X(read_byte_len) X(read_qp_num)       \
	X(read_wc_flags)
/* clang-format on */

static struct shim_cq_ex *known(struct ibv_cq_ex *ex, struct shim_context **context)
{
	struct shim_cq *cq = shim_cq_find(ibv_cq_ex_to_cq(ex));

	*context = shim_context_find(ex->context);
	return cq->extended;
}

/* ---- polling ---------------------------------------------------------------------------------------------------------- */

static void count(struct shim_cq_ex *p)
{
	if (p->q && p->signals)
		shim_complete(p->q, p->signals);
	p->signals = 0;
}

/* Accounts for the current completion. Returns false if the shim requested it, so the caller must not see it. */
static bool take(struct shim_cq_ex *p, struct shim_context *context)
{
	struct ibv_cq_ex *ex = p->ex;
	uint32_t number = p->real.read_qp_num(ex);
	struct shim_held *forced;

	if (!p->q || atomic_load_explicit(&p->q->number, memory_order_relaxed) != number) {
		count(p);
		p->q = shim_qp_find_number(context, number);
	}
	if (!p->q)
		return true;
	forced = shim_forced(p->q, ex->wr_id);
	if (likely(ex->status == IBV_WC_SUCCESS)) {
		if (!(p->real.read_opcode(ex) & IBV_WC_RECV))
			p->signals++;
		return !forced;
	}
	count(p);
	if (forced)
		ex->wr_id = forced->caller_wr_id;
	if (!atomic_load(&p->q->broken) && p->failures < FAILED_MAX)
		p->failed[p->failures++] = p->q;
	return true;
}

static int make(struct shim_cq_ex *p)
{
	if (!shim_flushed(ibv_cq_ex_to_cq(p->ex), 1, &p->made))
		return ENOENT;
	p->ex->wr_id = p->made.wr_id;
	p->ex->status = p->made.status;
	return 0;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	struct shim_context *context;
	struct shim_cq_ex *p = known(ex, &context);
	int rc;

	if (unlikely(atomic_load_explicit(&p->making, memory_order_relaxed)))
		return make(p);
	do
		rc = p->real.next_poll(ex);
	while (!rc && !context->inherited && !take(p, context));
	return rc;
}

/* Called after the provider's lock is released. */
static void settle(struct shim_qp *q, struct shim_qp *const *failed, uint32_t failures)
{
	for (uint32_t i = 0; i < failures; i++)
		if (!atomic_load(&failed[i]->broken))
			shim_qp_break(failed[i]);
	if (q && unlikely(atomic_load_explicit(&q->blocked, memory_order_relaxed))) {
		atomic_store(&q->blocked, 0);
		shim_pump(q);
	}
	if (unlikely(atomic_load_explicit(&shim.held_requests, memory_order_relaxed)))
		shim_permits_poll();
}

static void end_poll(struct ibv_cq_ex *ex)
{
	struct shim_context *context;
	struct shim_cq_ex *p = known(ex, &context);
	struct shim_qp *q, *failed[FAILED_MAX];
	uint32_t failures;

	if (unlikely(atomic_load_explicit(&p->making, memory_order_relaxed))) {
		shim_release(&p->making);
		return;
	}
	count(p);
	q = p->q;
	failures = p->failures;
	memcpy(failed, p->failed, failures * sizeof(failed[0]));
	p->q = NULL;
	p->failures = 0;
	p->real.end_poll(ex);
	if (!context->inherited)
		settle(q, failed, failures);
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct shim_context *context;
	struct shim_cq_ex *p = known(ex, &context);
	int rc = p->real.start_poll(ex, attr);

	if (unlikely(context->inherited))
		return rc;
	if (!rc && !take(p, context)) {
		rc = next_poll(ex);
		if (rc)
			end_poll(ex); /* the caller does so only after a poll that has begun */
		return rc;
	}
	if (unlikely(rc == ENOENT && atomic_load_explicit(&shim.held_requests, memory_order_relaxed))) {
		settle(NULL, NULL, 0);
		if (atomic_load_explicit(&shim.failures, memory_order_relaxed) && shim_try(&p->making)) {
			rc = make(p);
			if (rc)
				shim_release(&p->making);
		}
	}
	return rc;
}

/* ---- what is read ----------------------------------------------------------------------------------------------------- */

#define READ(type, function, ours)                                                      \
	static type function(struct ibv_cq_ex *ex)                                      \
	{                                                                               \
		struct shim_context *context;                                           \
		struct shim_cq_ex *p = known(ex, &context);                             \
                                                                                        \
		return unlikely(atomic_load_explicit(&p->making, memory_order_relaxed)) \
			       ? (ours)                                                 \
			       : p->real.function(ex);                                  \
	}
READ(enum ibv_wc_opcode, read_opcode, p->made.opcode)
READ(uint32_t, read_vendor_err, 0)
READ(uint32_t, read_byte_len, 0)
READ(uint32_t, read_qp_num, p->made.qp_num)
READ(unsigned int, read_wc_flags, 0)

/* ---- patching --------------------------------------------------------------------------------------------------------- */

/* The queue must have been made with IBV_WC_EX_WITH_QP_NUM, whether the program asked for it or not.
 * Returns NULL if the queue cannot be followed. */
struct shim_cq_ex *shim_cq_ex_patch(struct ibv_cq_ex *ex)
{
	struct shim_cq_ex *p;

	if (!ex->start_poll || !ex->next_poll || !ex->end_poll || !ex->read_opcode || !ex->read_qp_num)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	p->ex = ex;
#define PATCH(f)           \
	p->real.f = ex->f; \
	if (ex->f)         \
		ex->f = f;
	EACH_FUNCTION(PATCH)
#undef PATCH
	return p;
}

void shim_cq_ex_unpatch(struct shim_cq_ex *p)
{
#define RESTORE(f) p->ex->f = p->real.f;
	EACH_FUNCTION(RESTORE)
#undef RESTORE
}
