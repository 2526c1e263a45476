/* Permits that have arrived: taking them, asking for one by its task's id, and sleeping until one arrives.
 *
 * The permit of a task with a cookie is returned to the thread that takes permits (mfs_client_permits). A
 * task without one (MFS_COOKIE_NONE) is polled by its id, and its class stays in the state until the task
 * ends. So the shim and an engine's own code can share one client. */
#define _GNU_SOURCE
#include "task.h"

#include "../base/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <mfs/ring.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALIVE_CHECK_NS 20000000ull /* how often a waiting thread checks that the daemon is alive */

/* Wakes threads that sleep until a task without a cookie is permitted: another thread may have taken the permit. */
static void waiters_wake(struct mfs_client *client)
{
	struct mfs_segment_header *header = &client->segment->header;
	int saved = errno;

	atomic_fetch_add_explicit(&header->grant_word, 1, memory_order_release);
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&header->grant_waiters, memory_order_relaxed))
		syscall(SYS_futex, &header->grant_word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	errno = saved;
}

/* Gives the permit to its task. Returns true when mfs_client_permits has to return it. */
static bool permit_take(struct mfs_client *client, const struct mfs_grant *grant, struct mfs_permit *permit)
{
	uint64_t task_id = atomic_load_explicit(&grant->task, memory_order_relaxed);
	uint64_t class_epoch = atomic_load_explicit(&grant->class_epoch, memory_order_relaxed);
	uint32_t slot = (uint32_t)task_id;
	uint64_t generation = (task_id >> 32) << 32;

	if (slot >= MFS_TASKS_MAX || class_epoch >> 32 != client->epoch)
		return false;

	/* The cookie is read before the compare-and-swap, which checks that the state is still the one read
	 * before the cookie: as soon as the permit is taken, another thread may end the task and reuse the slot. */
	struct task_slot *entry = &client->task[slot];
	uint64_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
	void *cookie = atomic_load_explicit(&entry->cookie, memory_order_relaxed);
	uint64_t permitted = generation | PHASE_PERMITTED;

	if (cookie == MFS_COOKIE_NONE)
		permitted |= (class_epoch << CLASS_SHIFT) & CLASS_MASK;
	if (state != (generation | PHASE_WAITING) ||
	    !atomic_compare_exchange_strong_explicit(&entry->state, &state, permitted, memory_order_acq_rel,
						     memory_order_relaxed))
		return false;
	waiting_add(client, slot, -1u);
	if (cookie == MFS_COOKIE_NONE) {
		waiters_wake(client);
		return false;
	}
	*permit = (struct mfs_permit){.task_id = task_id,
				      .cookie = cookie,
				      .wire_class = (uint32_t)class_epoch};
	return true;
}

int mfs_client_permits(struct mfs_client *client, struct mfs_permit *permits, int n)
{
	struct mfs_segment *segment = client->segment;
	struct mfs_grant grants[64];
	int taken = 0;

	client_owed_check(client);
	while (taken < n) {
		unsigned want = n - taken < 64 ? (unsigned)(n - taken) : 64;
		int got = mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, grants, want);

		if (got < 0)
			return taken ? taken : got;
		if (got == 0)
			break;
		for (int i = 0; i < got; i++)
			taken += permit_take(client, &grants[i], &permits[taken]);
	}
	return taken;
}

/* True if the permit belongs to a task with a cookie: it is left to the thread that takes such permits. */
static bool permit_foreign(struct mfs_client *client, const struct mfs_grant *grant)
{
	uint64_t task_id = atomic_load_explicit(&grant->task, memory_order_relaxed);
	uint32_t slot = (uint32_t)task_id;

	if (slot >= MFS_TASKS_MAX ||
	    atomic_load_explicit(&grant->class_epoch, memory_order_relaxed) >> 32 != client->epoch)
		return false;
	return atomic_load_explicit(&client->task[slot].state, memory_order_acquire) ==
		       ((task_id >> 32) << 32 | PHASE_WAITING) &&
	       atomic_load_explicit(&client->task[slot].cookie, memory_order_relaxed) != MFS_COOKIE_NONE;
}

int mfs_client_permit(struct mfs_client *client, uint64_t task_id)
{
	struct mfs_segment *segment = client->segment;
	uint32_t slot = (uint32_t)task_id;
	struct mfs_grant grant;
	struct mfs_permit none;
	uint64_t state;

	if (slot >= MFS_TASKS_MAX)
		return -ENOENT;
	client_owed_check(client);
	for (;;) {
		state = atomic_load_explicit(&client->task[slot].state, memory_order_acquire);
		if (state >> 32 != task_id >> 32)
			return -ENOENT;
		if ((state & 0xff) == PHASE_PERMITTED)
			return (int)((state & CLASS_MASK) >> CLASS_SHIFT);
		if ((state & 0xff) != PHASE_WAITING)
			return -ENOENT;

		uint64_t head;
		int64_t used = mfs_spmc_used(&segment->grant, MFS_GRANT_SLOTS, &head);

		if (used == 0)
			return -EAGAIN;
		if (used < 0)
			continue;
		mfs_grant_copy(&grant, &segment->grant_slot[head & (MFS_GRANT_SLOTS - 1)]);
		if (permit_foreign(client, &grant))
			return -EAGAIN;
		if (atomic_compare_exchange_strong_explicit(&segment->grant.head, &head, head + 1,
							    memory_order_acq_rel, memory_order_relaxed))
			permit_take(client, &grant, &none);
	}
}

int mfs_client_permit_wait(struct mfs_client *client, uint64_t task_id, uint64_t timeout_ns)
{
	struct mfs_segment_header *header = &client->segment->header;
	uint64_t now_ns = mfs_clock_ns();
	uint64_t until_ns = timeout_ns < UINT64_MAX - now_ns ? now_ns + timeout_ns : UINT64_MAX;
	int saved = errno;
	int rc;

	for (;; now_ns = mfs_clock_ns()) {
		uint32_t word = atomic_load_explicit(&header->grant_word, memory_order_acquire);

		/* Dekker with session_announce and waiters_wake: abi.h */
		atomic_fetch_add_explicit(&header->grant_waiters, 1, memory_order_seq_cst);
		atomic_thread_fence(memory_order_seq_cst);
		rc = mfs_client_permit(client, task_id);
		if (rc == -EAGAIN && !mfs_client_alive(client, now_ns))
			rc = -ENOTCONN;
		else if (rc == -EAGAIN && now_ns >= until_ns)
			rc = -ETIMEDOUT;
		else if (rc == -EAGAIN) {
			uint64_t wait_ns =
				until_ns - now_ns < ALIVE_CHECK_NS ? until_ns - now_ns : ALIVE_CHECK_NS;
			struct timespec timeout = {.tv_nsec = (long)wait_ns};

			syscall(SYS_futex, &header->grant_word, FUTEX_WAIT, word, &timeout, NULL, 0);
		}
		atomic_fetch_sub_explicit(&header->grant_waiters, 1, memory_order_relaxed);
		if (rc != -EAGAIN)
			break;
	}
	errno = saved;
	return rc;
}

bool mfs_client_permits_pending(const struct mfs_client *client)
{
	return mfs_spmc_pending(&client->segment->grant, MFS_GRANT_SLOTS) ||
	       atomic_load_explicit(&client->owed, memory_order_relaxed) != 0;
}

int mfs_client_wait(struct mfs_client *client, uint64_t timeout_ns)
{
	struct mfs_segment_header *header = &client->segment->header;
	struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / MFS_NS_PER_S),
				   .tv_nsec = (long)(timeout_ns % MFS_NS_PER_S)};
	uint32_t word = atomic_load_explicit(&header->grant_word, memory_order_acquire);
	int saved = errno;

	client_owed_check(client);
	/* Dekker with the arbiter's session_announce: abi.h */
	atomic_fetch_add_explicit(&header->grant_waiters, 1, memory_order_seq_cst);
	atomic_thread_fence(memory_order_seq_cst);
	if (!mfs_spmc_pending(&client->segment->grant, MFS_GRANT_SLOTS) &&
	    atomic_load_explicit(&header->state, memory_order_relaxed) == MFS_SEGMENT_ACTIVE)
		syscall(SYS_futex, &header->grant_word, FUTEX_WAIT, word, &timeout, NULL, 0);
	atomic_fetch_sub_explicit(&header->grant_waiters, 1, memory_order_relaxed);
	errno = saved;
	return mfs_spmc_pending(&client->segment->grant, MFS_GRANT_SLOTS) ? 0 : -ETIMEDOUT;
}
