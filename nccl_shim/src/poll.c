/* ibv_poll_cq of an open device: completions go to the caller unchanged; what they finish is counted.
 *
 * A queue pair's completions are accounted by whoever gets its `polling` flag; others add to `poll_deferred`, and the one
 * who has the flag looks at it again after letting go.
 */
#include "ledger.h"
#include "owner.h"

#include <string.h>

static void count_completed(struct shim_qp *q, uint8_t stage, uint64_t bytes)
{
	if (unlikely(atomic_load_explicit(atomic_load_explicit(&q->gate, memory_order_relaxed), memory_order_relaxed) &
		     MFS_GATE_IDLE_BELL) && q->client) /* rings if held flows wait for idleness */
		mfs_client_count_completed(q->client, (unsigned)atomic_load(&q->context)->nic, stage, bytes);
	else
		shim_count(&atomic_load_explicit(&q->usage, memory_order_relaxed)->completed.bytes[stage], bytes);
}

static inline uint8_t stage_of(uint64_t end)
{
	return (end & SHIM_SIGNAL_STAGE) >> SHIM_SIGNAL_STAGE_SHIFT;
}

/* Polling flag held. Everything before the index `end` is complete. */
static void tasks_complete(struct shim_qp *q, uint64_t end)
{
	uint64_t first = atomic_load(&q->task_done), i, now_ns, since_ns;

	for (i = first; i != atomic_load(&q->task_posted); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];
		uint64_t done_at = atomic_load(&t->done_at);

		if (done_at > end || (!done_at && t->end > atomic_load(&q->wr_posted)))
			break;
		if (t->owed && q->client)
			mfs_client_complete(q->client, atomic_load(&t->id));
		t->owed = false;
		atomic_store(&q->task_done, i + 1);
	}
	if (i == first)
		return;
	/* where none is under way any more, what is posted at this very moment may be missed: it counts as standing still */
	now_ns = shim_now_ns();
	since_ns = atomic_exchange(&q->flight_since_ns, i == atomic_load(&q->task_posted) ? 0 : now_ns);
	if (since_ns)
		atomic_fetch_add(&q->flight_ns, now_ns - since_ns);
}

/* Polling flag held. `n` more signals have come back. Entries of one stage are counted together. */
static void account(struct shim_qp *q, uint32_t n)
{
	uint64_t tail = atomic_load_explicit(&q->signal_tail, memory_order_relaxed);
	uint64_t head = atomic_load_explicit(&q->signal_head, memory_order_acquire);
	uint64_t bytes = q->bytes_completed, end = q->completed_end, from_bytes = bytes, from_end = end, retired = 0;
	uint8_t stage = 0;

	if (unlikely(head - tail > q->signal_mask + 1)) {
		atomic_store(&q->broken, 1); /* more in flight than the provider promised: stop accounting */
		return;
	}
	if (likely(n && tail != head && tail >= atomic_load_explicit(&q->signal_even, memory_order_relaxed))) {
		tail += n < head - tail ? n : head - tail;
		bytes = atomic_load_explicit(&q->signals[(tail - 1) & q->signal_mask].bytes, memory_order_relaxed);
		end = atomic_load_explicit(&q->signals[(tail - 1) & q->signal_mask].end, memory_order_relaxed);
		stage = stage_of(end);
		retired = end &= SHIM_SIGNAL_END;
		n = 0;
	}
	while (n && tail != head) { /* fewer than n: work requests that were not posted through us */
		struct shim_signal *signal = &q->signals[tail++ & q->signal_mask];
		uint64_t word = atomic_load_explicit(&signal->end, memory_order_relaxed);

		if (unlikely(stage_of(word) != stage)) {
			if (end != from_end)
				count_completed(q, stage, bytes - from_bytes);
			from_bytes = bytes;
			from_end = end;
			stage = stage_of(word);
		}
		bytes = atomic_load_explicit(&signal->bytes, memory_order_relaxed);
		end = word & SHIM_SIGNAL_END;
		if (unlikely(word & SHIM_SIGNAL_MARK))
			continue;
		n--;
		if (!(word & SHIM_SIGNAL_FORCED))
			retired = end;
	}
	if (end != from_end)
		count_completed(q, stage, bytes - from_bytes);
	if (end != q->completed_end) {
		atomic_store_explicit(&q->signal_tail, tail, memory_order_relaxed);
		q->completed_end = end;
		q->bytes_completed = bytes;
		if (retired)
			atomic_store_explicit(&q->retired, retired, memory_order_release);
	}
	if (likely(!q->tasks))
		return;
	if (atomic_load_explicit(&q->task_done, memory_order_relaxed) !=
	    atomic_load_explicit(&q->task_posted, memory_order_relaxed))
		tasks_complete(q, end);
}

/* Both flags held. What was posted and is not known to be complete, by stage. */
void shim_in_flight(struct shim_qp *q, uint64_t bytes[MFS_STAGES_MAX])
{
	uint64_t head = atomic_load(&q->signal_head), from = q->bytes_completed;

	memset(bytes, 0, MFS_STAGES_MAX * sizeof(*bytes));
	for (uint64_t i = atomic_load(&q->signal_tail); i != head && head - i <= q->signal_mask + 1; i++) {
		struct shim_signal *signal = &q->signals[i & q->signal_mask];
		uint64_t to = atomic_load(&signal->bytes);

		bytes[stage_of(atomic_load(&signal->end))] += to - from;
		from = to;
	}
	bytes[q->run_stage] += q->bytes_posted - from;
}

void shim_ledger_mark(struct shim_qp *q, uint64_t head, uint64_t bytes)
{
	shim_ledger_signal(q, head, bytes, atomic_load(&q->wr_posted) | SHIM_SIGNAL_MARK, q->run_stage);
}

/* Polling flag held; lets go of it when nothing is left to account. */
static void complete_owned(struct shim_qp *q, uint32_t signals)
{
	for (;;) {
		if (unlikely(atomic_load_explicit(&q->poll_deferred, memory_order_relaxed)))
			signals += atomic_exchange(&q->poll_deferred, 0);
		if (likely(atomic_load_explicit(&q->live, memory_order_relaxed) &&
			   !atomic_load_explicit(&q->broken, memory_order_relaxed)))
			account(q, signals);
		shim_release(&q->polling);
		if (atomic_load_explicit(&q->holds, memory_order_relaxed))
			atomic_thread_fence(memory_order_seq_cst);
		if (likely(!atomic_load_explicit(&q->poll_deferred, memory_order_relaxed)) || !shim_try(&q->polling))
			return;
		signals = 0;
	}
}

void shim_complete(struct shim_qp *q, uint32_t signals)
{
	if (unlikely(!shim_try(&q->polling))) {
		atomic_fetch_add(&q->poll_deferred, signals);
		atomic_thread_fence(memory_order_seq_cst);
		if (!shim_try(&q->polling))
			return;
		signals = 0;
	}
	complete_owned(q, signals);
}

/* Completions that the caller has polled may still be in the hands of another thread, which the machine has put aside: he
 * is not told that his slots are used up before they are counted. The bound is for a signal handler that has interrupted
 * that very thread. */
void shim_settle(struct shim_qp *q)
{
	if (shim_acquire_for(&q->polling, 100000000))
		complete_owned(q, 0);
}

/* Counts what n completions finish, and takes out those that the caller did not ask for. */
static int look(struct shim_context *context, int n, struct ibv_wc *wc)
{
	struct shim_qp *q = NULL;
	uint32_t signals = 0, number = 0;
	int i = 0, kept;

	for (; i < n; i++) { /* nearly always: nothing failed, and nothing is held here */
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

/* ---- completions that no provider makes -------------------------------------------------------------------------------------- */

static enum ibv_wc_opcode completion_opcode(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

#define FLUSH_AFTER_NS 10000000 /* the provider's own flushed completions come first */

/* Owner held. Tasks whose work requests are all flushed need no permit any more. */
static void tasks_pass(struct shim_qp *q)
{
	for (uint64_t i = atomic_load(&q->task_posted); i != atomic_load(&q->task_formed); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];

		if (t->end > atomic_load(&q->wr_posted))
			break;
		if (!t->bypass && q->client)
			mfs_client_cancel(q->client, atomic_load(&t->id), false);
		atomic_store(&q->task_posted, i + 1);
	}
}

/* Held work requests of a queue pair whose provider refuses posts even in the error state. */
static int flushed(struct shim_qp *q, int n, struct ibv_wc *wc)
{
	int made = 0;

	if (shim_now_ns() - q->failed_ns < FLUSH_AFTER_NS || !shim_owner_try(q))
		return 0;
	while (made < n && atomic_load(&q->live)) {
		uint64_t index = atomic_load(&q->wr_posted);
		struct shim_held *held = shim_held_at(q, index);

		if (index == atomic_load(&q->wr_next) || atomic_load(&held->published) != index + 1) {
			if (index == atomic_load(&q->wr_next) && atomic_exchange(&q->failed, 0))
				atomic_fetch_sub(&shim.failures, 1);
			break;
		}
		if (!held->hole) {
			memset(&wc[made], 0, sizeof(wc[made]));
			wc[made].wr_id = held->caller_wr_id;
			wc[made].status = IBV_WC_WR_FLUSH_ERR;
			wc[made].opcode = completion_opcode(held->wr.opcode);
			wc[made].qp_num = atomic_load(&q->number);
			made++;
		}
		shim_held_left(q, index, index + 1);
		if (atomic_load(&q->wr_formed) == index)
			atomic_store(&q->wr_formed, index + 1);
	}
	tasks_pass(q);
	shim_report_held(q);
	shim_owner_leave(q);
	return made;
}

/* Up to n completions of this queue that no provider makes. */
int shim_flushed(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	unsigned cursor = 0;
	struct shim_qp *q;
	int made = 0;

	while (made < n && (q = shim_qp_each(&cursor)))
		if (q->send_cq_native == cq && atomic_load(&q->failed))
			made += flushed(q, n - made, wc + made);
	return made;
}

/* Something is held, and the program polls: it takes the permits that have arrived. */
void shim_attend(void)
{
	atomic_store_explicit(&shim.polls, atomic_load_explicit(&shim.polls, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	shim_permits();
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
		found = look(context, found, wc);
	if (unlikely(atomic_load_explicit(&shim.attention, memory_order_relaxed)) && found >= 0) {
		shim_attend();
		if (atomic_load_explicit(&shim.failures, memory_order_relaxed))
			found += shim_flushed(cq, n - found, wc + found);
	}
	return found;
}
