/* Which thread may post on a queue pair: the owner flag, and the one thread that posts without setting it.
 *
 * Most queue pairs are posted to by one thread. Once a thread has posted SHIM_OWNER_ROW times in a row on
 * a queue pair that does not hold, the queue pair is *given* to it: the word of the flag then also
 * contains the thread's id. That thread sets `inside` while it posts, and reads the word again. These are
 * plain loads and stores; only the compiler is kept from reordering them. Every other thread sets the
 * flag, and then makes all threads of the process pass a memory barrier (membarrier). If the first thread
 * had set `inside` before the barrier, the other thread sees it. If it sets `inside` after the barrier, it
 * sees the flag and turns back. tests/model/owner.pml checks this.
 *
 *  - While the flag is set, only its holder may change to whom the queue pair is given. `inside` is
 *    written by the given thread only.
 *  - A queue pair is given once in its life. If another thread posts there, or it begins to hold, it is
 *    given to no thread for good. A thread that was stopped between reading the word and setting `inside`
 *    may write `inside` arbitrarily late, and must not overwrite the `inside` of another thread.
 *  - A thread that ends leaves `inside` at 0, so its queue pairs can be taken; its id is not used again. A
 *    thread that was cancelled while posting stays inside, as it would otherwise have kept the flag.
 *  - A signal handler that finds its own thread inside waits for the flag, as it would without all this.
 *  - The given thread counts what it posts in a shard of counters of its own (mfs_usage_shard), if there
 *    is one left. The shard of a thread that has ended is taken over.
 *  - Without membarrier (Linux before 4.14) nothing is given. Nor is a queue pair whose completions are
 *    not accounted. */
#ifndef MFS_SHIM_OWNER_H
#define MFS_SHIM_OWNER_H

#include "flag.h"
#include "records.h"
#include "thread.h"

#include <mfs/usage.h>

#define SHIM_OWNER_ROW 64

#define SHIM_OWNER_HELD 1u
void shim_owner_start(void);
bool shim_owner_settled(struct shim_qp *q, uint32_t word);
void shim_owner_acquire(struct shim_qp *q);
void shim_owner_wait(unsigned rounds);
bool shim_owner_acquire_for(struct shim_qp *q, uint64_t timeout_ns);
void shim_owner_give(struct shim_qp *q);
void shim_owner_share(struct shim_qp *q);
void shim_owner_forget(struct shim_qp *q);
void shim_owner_shards(struct shim_qp *q, struct mfs_usage_shard *shards);
void shim_owner_after_fork(void);

/* True when the queue pair is given to the thread with this id and may be posted to; leave with
 * shim_owner_exit. Such a queue pair does not hold. */
static inline bool shim_owner_enter_as(struct shim_qp *q, uint32_t id)
{
	if (unlikely(atomic_load_explicit(&q->owner, memory_order_relaxed) != id ||
		     atomic_load_explicit(&q->inside, memory_order_relaxed)))
		return false;
	atomic_store_explicit(&q->inside, 1, memory_order_relaxed);
	atomic_signal_fence(memory_order_seq_cst); /* the other side's membarrier does the rest */
	if (likely(atomic_load_explicit(&q->owner, memory_order_acquire) == id))
		return true;
	atomic_store_explicit(&q->inside, 0, memory_order_release);
	return false;
}

static inline bool shim_owner_enter(struct shim_qp *q)
{
	return shim_owner_enter_as(q, shim_thread_id);
}

static inline void shim_owner_exit(struct shim_qp *q)
{
	atomic_store_explicit(&q->inside, 0, memory_order_release);
}

/* Clears the flag. For a queue pair that may hold, use shim_owner_leave, which also posts what others have left. */
static inline void shim_owner_release(struct shim_qp *q)
{
	uint32_t word = atomic_load_explicit(&q->owner, memory_order_relaxed);

	atomic_store_explicit(&q->owner, word & ~SHIM_OWNER_HELD, memory_order_release);
}

static inline bool shim_owner_try(struct shim_qp *q)
{
	uint32_t word = atomic_load_explicit(&q->owner, memory_order_relaxed);

	if (word & SHIM_OWNER_HELD ||
	    !atomic_compare_exchange_strong_explicit(&q->owner, &word, word | SHIM_OWNER_HELD,
						     memory_order_acquire, memory_order_relaxed))
		return false;
	if (likely(!word) || shim_owner_settled(q, word))
		return true;
	shim_owner_release(q);
	return false;
}

#endif
