/* ibv_poll_cq of an open device: completions go to the caller unchanged; what they finish is counted. */
#include "poll.h"

#include "complete.h"
#include "devices.h"
#include "flushed.h"
#include "hold.h"
#include "permits.h"
#include "process.h"
#include "pump.h"
#include "qp_state.h"
#include "table.h"

/* Counts what n completions finish, and removes those that the caller did not request. Returns how many remain. */
static int count_completions(struct shim_context *context, int n, struct ibv_wc *wc)
{
	struct shim_qp *q = NULL;
	uint32_t signals = 0, number = 0;
	int i = 0, kept;

	for (; i < n; i++) { /* the usual case: nothing failed, and nothing is held here */
		if (!q || wc[i].qp_num != number) {
			if (signals)
				shim_complete(q, signals);
			signals = 0;
			number = wc[i].qp_num;
			q = shim_qp_find_number(context, number);
			if (!q || atomic_load_explicit(&q->holds, memory_order_relaxed))
				break;
		}
		if (unlikely(wc[i].status != IBV_WC_SUCCESS))
			break;
		signals += !(wc[i].opcode & IBV_WC_RECV);
	}
	for (kept = i; i < n; i++) {
		struct shim_held *held;

		if (!q || atomic_load_explicit(&q->number, memory_order_relaxed) != wc[i].qp_num) {
			if (q && signals)
				shim_complete(q, signals);
			q = shim_qp_find_number(context, wc[i].qp_num);
			signals = 0;
		}
		held = q ? shim_forced(q, wc[i].wr_id) : NULL;
		if (likely(wc[i].status == IBV_WC_SUCCESS)) {
			if (q && !(wc[i].opcode & IBV_WC_RECV))
				signals++;
			if (unlikely(held))
				continue;
		} else if (q) {
			if (signals)
				shim_complete(q, signals);
			signals = 0;
			if (held)
				wc[i].wr_id = held->caller_wr_id;
			if (!atomic_load(&q->broken))
				shim_qp_break(q);
		}
		if (unlikely(kept != i))
			wc[kept] = wc[i];
		kept++;
	}
	if (q && signals) {
		shim_complete(q, signals);
		if (unlikely(atomic_load_explicit(&q->blocked, memory_order_relaxed))) {
			atomic_store(&q->blocked, 0);
			shim_pump(q);
		}
	}
	return kept;
}

int shim_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct shim_context *context = shim_context_find(cq->context);
	int found;

	if (unlikely(!context))
		return -1;
	found = context->poll_cq(cq, n, wc);
	if (unlikely(context->inherited))
		return found;
	if (found > 0)
		found = count_completions(context, found, wc);
	if (unlikely(atomic_load_explicit(&shim.held_requests, memory_order_relaxed)) && found >= 0) {
		shim_permits_poll();
		if (atomic_load_explicit(&shim.failures, memory_order_relaxed))
			found += shim_flushed(cq, n - found, wc + found);
	}
	return found;
}
