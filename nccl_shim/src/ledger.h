/* Accounting of native posts: the owner adds work requests to a ledger, publishes it, then posts. */
#ifndef MFS_SHIM_LEDGER_H
#define MFS_SHIM_LEDGER_H

#include "compiler.h"
#include "counter.h"
#include "records.h"

/* Writes the entry that closes what was posted without a signal in another stage. Its `bytes` complete
 * with the next signal, but are counted separately. */
void shim_ledger_mark(struct shim_qp *q, uint64_t head, uint64_t bytes);

static inline struct shim_ledger shim_ledger_open(struct shim_qp *q, uint8_t stage)
{
	struct shim_ledger ledger = {
		.head = atomic_load_explicit(&q->signal_head, memory_order_relaxed),
		.bytes = q->bytes_posted,
		.marked = q->bytes_marked,
		.stage = stage,
	};

	if (unlikely(stage != q->run_stage) && q->signals) {
		if (ledger.bytes != ledger.marked) {
			shim_ledger_mark(q, ledger.head++, ledger.bytes);
			ledger.marked = ledger.bytes;
		}
		atomic_store_explicit(&q->signal_even, ledger.head, memory_order_relaxed);
	}
	return ledger;
}

static inline void shim_ledger_signal(struct shim_qp *q, uint64_t head, uint64_t bytes, uint64_t end,
				      uint8_t stage)
{
	struct shim_signal *signal = &q->signals[head & q->signal_mask];

	atomic_store_explicit(&signal->bytes, bytes, memory_order_relaxed);
	atomic_store_explicit(&signal->end, end | (uint64_t)stage << SHIM_SIGNAL_STAGE_SHIFT,
			      memory_order_relaxed);
}

static inline void shim_ledger_add(struct shim_qp *q, struct shim_ledger *ledger, uint64_t bytes,
				   bool signaled, uint64_t end, bool forced)
{
	ledger->bytes += bytes;
	ledger->requests++;
	if (signaled && q->signals) {
		shim_ledger_signal(q, ledger->head++, ledger->bytes, end | (forced ? SHIM_SIGNAL_FORCED : 0),
				   ledger->stage);
		ledger->marked = ledger->bytes;
		if (unlikely(forced))
			atomic_store_explicit(&q->signal_even, ledger->head, memory_order_relaxed);
	}
}

/* Publishes `now` in place of a ledger with `bytes_before`, which may be larger when a post has failed.
 * `alone`: the caller entered with shim_owner_enter. */
static inline void shim_ledger_publish(struct shim_qp *q, uint64_t bytes_before,
				       const struct shim_ledger *now, bool alone)
{
	struct mfs_usage *usage = atomic_load_explicit(&q->usage, memory_order_relaxed);

	if (alone && likely(q->posted_shard))
		shim_count_alone(&q->posted_shard->bytes[now->stage], now->bytes - bytes_before);
	else
		shim_count(&usage->posted.bytes[now->stage], now->bytes - bytes_before);
	if (unlikely(!atomic_load_explicit(&q->accounted, memory_order_relaxed) ||
		     atomic_load_explicit(&q->broken, memory_order_relaxed))) {
		/* completions will not be seen, or not in order: count as complete at once */
		shim_count(&usage->completed.bytes[now->stage], now->bytes - bytes_before);
		return;
	}
	q->bytes_posted = now->bytes;
	q->bytes_marked = now->marked;
	q->run_stage = now->stage;
	atomic_store_explicit(&q->signal_head, now->head, memory_order_release);
}

#endif
