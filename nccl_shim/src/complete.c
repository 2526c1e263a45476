/* The accounting of completions: bytes by stage, free slots, tasks that have left.
 *
 * The thread that gets the `polling` flag accounts for a queue pair's completions. Others add to
 * `poll_deferred`, which the holder of the flag reads again after it has cleared the flag. */
#include "complete.h"

#include "../../csrc/base/clock.h"
#include "compiler.h"
#include "counter.h"
#include "flag.h"

#include <mfs/client.h>
#include <string.h>

static void count_completed(struct shim_qp *q, uint8_t stage, uint64_t bytes)
{
	if (unlikely(atomic_load_explicit(atomic_load_explicit(&q->gate, memory_order_relaxed),
					  memory_order_relaxed) &
		     MFS_GATE_IDLE_BELL) &&
	    q->client) /* rings the doorbell if held flows wait for idleness */
		mfs_client_count_completed(q->client, (unsigned)atomic_load(&q->context)->nic, stage, bytes);
	else
		shim_count(&atomic_load_explicit(&q->usage, memory_order_relaxed)->completed.bytes[stage],
			   bytes);
}

static inline uint8_t stage_of(uint64_t end)
{
	return (end & SHIM_SIGNAL_STAGE) >> SHIM_SIGNAL_STAGE_SHIFT;
}

/* Polling flag held. Everything before index `end` is complete. */
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
	/* if nothing is under way any more, a task that is posted at this very moment may be missed: its
	 * time counts as standing still */
	now_ns = mfs_clock_ns();
	since_ns = atomic_exchange(&q->flight_since_ns, i == atomic_load(&q->task_posted) ? 0 : now_ns);
	if (since_ns)
		atomic_fetch_add(&q->flight_ns, now_ns - since_ns);
}

/* Polling flag held. `n` more signals have come back. Entries of the same stage are counted together. */
static void account(struct shim_qp *q, uint32_t n)
{
	uint64_t tail = atomic_load_explicit(&q->signal_tail, memory_order_relaxed);
	uint64_t head = atomic_load_explicit(&q->signal_head, memory_order_acquire);
	uint64_t bytes = q->bytes_completed, end = q->completed_end, from_bytes = bytes, from_end = end,
		 retired = 0;
	uint8_t stage = 0;

	if (unlikely(head - tail > q->signal_mask + 1)) {
		atomic_store(&q->broken, 1); /* more in flight than the provider promised: stop accounting */
		return;
	}
	if (likely(n && tail != head &&
		   tail >= atomic_load_explicit(&q->signal_even, memory_order_relaxed))) {
		tail += n < head - tail ? n : head - tail;
		bytes = atomic_load_explicit(&q->signals[(tail - 1) & q->signal_mask].bytes,
					     memory_order_relaxed);
		end = atomic_load_explicit(&q->signals[(tail - 1) & q->signal_mask].end,
					   memory_order_relaxed);
		stage = stage_of(end);
		retired = end &= SHIM_SIGNAL_END;
		n = 0;
	}
	/* if there are fewer than n, work requests were posted that did not go through us */
	while (n && tail != head) {
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

/* Both flags held. Returns, by stage, the bytes that were posted and are not known to be complete. */
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

/* Polling flag held. Clears it when nothing is left to account for. */
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
		if (likely(!atomic_load_explicit(&q->poll_deferred, memory_order_relaxed)) ||
		    !shim_try(&q->polling))
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

/* Waits until completions that the caller has polled are counted. Another thread may have been preempted
 * while it counted them, and no slot may be refused before that. The bound is for a signal handler that
 * has interrupted that very thread. */
void shim_settle(struct shim_qp *q)
{
	if (shim_acquire_for(&q->polling, SHIM_SETTLE_WAIT_NS))
		complete_owned(q, 0);
}

/* Both flags held. Counts everything posted as complete: the queue pair was reset, destroyed or has failed. */
void shim_complete_all(struct shim_qp *q)
{
	struct mfs_usage *usage = atomic_load_explicit(&q->usage, memory_order_relaxed);
	uint64_t in_flight[MFS_STAGES_MAX];

	shim_in_flight(q, in_flight);
	for (int i = 0; i < MFS_STAGES_MAX; i++)
		shim_count(&usage->completed.bytes[i], in_flight[i]);
	q->bytes_completed = q->bytes_marked = q->bytes_posted;
	atomic_store(&q->signal_tail, atomic_load(&q->signal_head));
	q->completed_end = atomic_load(&q->wr_posted);
	atomic_store(&q->retired, q->completed_end);
	for (uint64_t i = atomic_load(&q->task_done); i != atomic_load(&q->task_posted); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];

		if (t->owed && q->client)
			mfs_client_complete(q->client, atomic_load(&t->id));
		t->owed = false;
		atomic_store(&q->task_done, i + 1);
	}
	atomic_store(&q->flight_since_ns, 0);
}
