/* The rare paths of the owner flag: waiting for it, and giving a queue pair to a thread. See owner.h. */
#define _GNU_SOURCE
#include "owner.h"

#include "../../csrc/base/clock.h"
#include "../../csrc/base/pause.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEVER UINT64_MAX
#define DRAIN_NS 1000000 /* far longer than a store stays in the core's store buffer */
/* after this many yields, sleep: the thread waited for may have a lower priority and not run while this one yields */
#define YIELDS 256
#define NAP_NS 50000
#define THREADS_MAX (1u << 30)

static _Atomic uint32_t usable;  /* 1: membarrier works */
static _Atomic uint32_t threads; /* number of thread ids given out */
/* thread id (gettid) of each shard's owner; 0: none */
static _Atomic uint32_t shard_thread[MFS_USAGE_SHARDS];

/* Called once, before the first queue pair is made. */
void shim_owner_start(void)
{
	int saved = errno;

	if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0)
		atomic_store(&usable, 1);
	errno = saved;
}

/* For the child: it registers again when it opens a device of its own. */
void shim_owner_after_fork(void)
{
	atomic_store(&usable, 0);
}

static void nap(long ns)
{
	struct timespec pause = {.tv_nsec = ns};
	int saved = errno;

	syscall(SYS_nanosleep, &pause, NULL); /* not a cancellation point */
	errno = saved;
}

/* Makes all threads of the process pass a barrier. A program may have forbidden itself the call since the
 * start. Then no further queue pair is given, and for those already given it is enough to wait: a store
 * reaches memory by itself, and a thread that is not on a core has passed a barrier. */
static void threads_barrier(void)
{
	int saved = errno;

	if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0)) {
		atomic_store(&usable, 0);
		nap(DRAIN_NS);
	}
	errno = saved;
}

/* Flag set; the word was `word` before. Returns false if the thread that it is given to is posting. */
bool shim_owner_settled(struct shim_qp *q, uint32_t word)
{
	if (word && word != shim_thread_id)
		threads_barrier();
	return !atomic_load_explicit(&q->inside, memory_order_acquire);
}

void shim_owner_wait(unsigned rounds)
{
	mfs_pause();
	if (rounds % 16 != 15)
		return;
	if (rounds / 16 < YIELDS)
		sched_yield();
	else
		nap(NAP_NS);
}

/* Sets the flag, then waits until the thread that it is given to has left. That thread cannot enter again
 * meanwhile. */
static bool acquire_until(struct shim_qp *q, uint64_t until_ns)
{
	uint32_t word;

	for (unsigned spins = 0;; spins++) {
		word = atomic_load_explicit(&q->owner, memory_order_relaxed);
		if (!(word & SHIM_OWNER_HELD) &&
		    atomic_compare_exchange_weak_explicit(&q->owner, &word, word | SHIM_OWNER_HELD,
							  memory_order_acquire, memory_order_relaxed))
			break;
		if (until_ns != NEVER && mfs_clock_ns() >= until_ns)
			return false;
		shim_owner_wait(spins);
	}
	if (!word || shim_owner_settled(q, word))
		return true;
	for (unsigned spins = 0; atomic_load_explicit(&q->inside, memory_order_acquire); spins++) {
		if (until_ns != NEVER && mfs_clock_ns() >= until_ns) {
			shim_owner_release(q);
			return false;
		}
		shim_owner_wait(spins);
	}
	return true;
}

void shim_owner_acquire(struct shim_qp *q)
{
	acquire_until(q, NEVER);
}

/* The bound is for a thread that was cancelled while inside. */
bool shim_owner_acquire_for(struct shim_qp *q, uint64_t timeout_ns)
{
	return shim_owner_try(q) || acquire_until(q, mfs_clock_ns() + timeout_ns);
}

/* Returns the shard of the calling thread, claiming one if needed, or -1. */
static int shard_claim(void)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid), owner;
	int saved = errno, found = -1;

	for (int i = 0; i < MFS_USAGE_SHARDS && found < 0; i++)
		if (atomic_load(&shard_thread[i]) == tid)
			found = i;
	for (int i = 0; i < MFS_USAGE_SHARDS && found < 0; i++) {
		owner = atomic_load(&shard_thread[i]);
		if ((!owner || (syscall(SYS_tgkill, getpid(), owner, 0) < 0 && errno == ESRCH)) &&
		    atomic_compare_exchange_strong(&shard_thread[i], &owner, tid))
			found = i;
	}
	errno = saved;
	return found;
}

static void shard_set(struct shim_qp *q, int shard)
{
	q->shard_given = shard;
	q->posted_shard = shard >= 0 && q->posted_shards ? &q->posted_shards[shard] : NULL;
}

/* Flag set, or the queue pair cannot be found yet. Changes where its counters are. */
void shim_owner_shards(struct shim_qp *q, struct mfs_usage_shard *shards)
{
	q->posted_shards = shards;
	shard_set(q, q->shard_given);
}

/* Flag set by the caller, which posts on a queue pair that does not hold. Gives the queue pair to this
 * thread, or to no thread if several post. */
void shim_owner_give(struct shim_qp *q)
{
	bool given = atomic_load_explicit(&q->owner, memory_order_relaxed) != SHIM_OWNER_HELD;

	if (q->shared || !atomic_load_explicit(&usable, memory_order_relaxed) ||
	    !atomic_load_explicit(&q->accounted, memory_order_relaxed) ||
	    atomic_load_explicit(&q->unsure, memory_order_relaxed))
		return;
	if (unlikely(shim_thread_id == SHIM_THREAD_NONE)) {
		uint32_t number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) + 1;

		if (number >= THREADS_MAX) {
			atomic_store(&threads, THREADS_MAX);
			return;
		}
		shim_thread_id = number << 1;
		shim_plain_set();
	}
	if (q->poster != shim_thread_id) {
		if (given)
			shim_owner_share(q);
		q->poster = shim_thread_id;
		q->posts_in_a_row = 0;
	} else if (!given && ++q->posts_in_a_row == SHIM_OWNER_ROW) {
		shard_set(q, shard_claim());
		atomic_store_explicit(&q->owner, SHIM_OWNER_HELD | shim_thread_id, memory_order_relaxed);
	}
}

/* Flag set. From now on the queue pair is given to no thread. */
void shim_owner_share(struct shim_qp *q)
{
	q->shared = true;
	shard_set(q, -1);
	atomic_store_explicit(&q->owner, SHIM_OWNER_HELD, memory_order_relaxed);
}

/* Flag set. Prepares the record for another queue pair. */
void shim_owner_forget(struct shim_qp *q)
{
	q->poster = q->posts_in_a_row = 0;
	q->shared = false;
	shard_set(q, -1);
	atomic_store_explicit(&q->owner, 0, memory_order_release);
}
