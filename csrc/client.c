/* The client's data path: submit, permit, completion, usage, batches.
 *
 * Tasks live in a fixed table. `state` of a slot is generation << 32 | phase; every step of a task's life is one
 * compare-and-swap on it, so that of two threads that finish, cancel or grant the same task exactly one wins:
 *
 *   FREE -submit-> WAITING -permit-> GRANTED -complete, cancel-> FREE
 *                     `---------------cancel, complete-----------^
 *
 * What finds the ring full is remembered in the phase and in a bitmap, and sent by a later call; its slot stays taken
 * until then, so no message is ever lost.
 */
#define _GNU_SOURCE
#include "client_state.h"

#include <errno.h>
#include <linux/futex.h>
#include <mfs/ring.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BATCH_CLAIMED UINT64_MAX /* batch_id while begin fills the slot */

enum phase {
	PHASE_FREE = 0,
	PHASE_WAITING = 1,
	PHASE_GRANTED = 2,
	/* finished; the message could not be sent yet */
	PHASE_OWES_COMPLETE = 3,
	PHASE_OWES_CANCEL = 4,
	PHASE_OWES_BYPASS = 5,
};

/* The lane of this thread. Static TLS: no allocation on first use. */
struct own {
	uint64_t serial; /* of the client whose lane it is */
	uint32_t lane;
	uint32_t sending; /* a message is being written: who comes now is a signal handler of this very thread */
};
static __thread volatile struct own own __attribute__((tls_model("initial-exec")));

/* ---- state ------------------------------------------------------------------------------------------------------- */

struct mfs_segment *mfs_client_segment(struct mfs_client *client)
{
	return client->segment;
}

bool mfs_client_alive(const struct mfs_client *client, uint64_t now_ns)
{
	const struct mfs_segment_header *header = &client->segment->header;
	uint64_t heartbeat_ns = atomic_load_explicit(&header->heartbeat_ns, memory_order_relaxed);

	return atomic_load_explicit(&header->state, memory_order_relaxed) == MFS_SEGMENT_ACTIVE &&
	       (int64_t)(now_ns - heartbeat_ns) < (int64_t)client->stale_after_ns;
}

/* ---- messages to the arbiter ------------------------------------------------------------------------------------- */

/* Call after what the arbiter should see was stored. The fence and the arbiter's own are a Dekker pair: abi.h. */
static void doorbell_ring(struct mfs_client *client)
{
	_Atomic uint32_t *asleep = &client->segment->header.arbiter_asleep;

	atomic_thread_fence(memory_order_seq_cst);
	if (__builtin_expect(atomic_load_explicit(asleep, memory_order_relaxed), 0) &&
	    atomic_exchange_explicit(asleep, 0, memory_order_relaxed)) {
		uint64_t one = 1;
		int saved = errno;

		syscall(SYS_write, client->doorbell, &one, sizeof(one));
		errno = saved;
	}
}

/* Gives this thread a lane to itself: the one it had, a free one, or that of a thread that has ended. */
static uint32_t lane_acquire(struct mfs_client *client)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid);
	uint32_t found = MFS_LANE_SHARED;
	int saved = errno;

	for (uint32_t lane = 0; lane < MFS_LANE_SHARED && found == MFS_LANE_SHARED; lane++)
		if (atomic_load_explicit(&client->lane[lane].owner, memory_order_relaxed) == tid)
			found = lane;
	for (uint32_t lane = 0; lane < MFS_LANE_SHARED && found == MFS_LANE_SHARED; lane++) {
		uint32_t owner = atomic_load_explicit(&client->lane[lane].owner, memory_order_relaxed);

		if ((owner == 0 || (syscall(SYS_tgkill, getpid(), owner, 0) < 0 && errno == ESRCH)) &&
		    atomic_compare_exchange_strong_explicit(&client->lane[lane].owner, &owner, tid, memory_order_acquire,
							    memory_order_relaxed))
			found = lane;
	}
	errno = saved;
	if (found != MFS_LANE_SHARED)
		mfs_mpsc_adopt(&client->segment->submit[found], client->segment->submit_slot[found], MFS_LANE_SLOTS);
	own.lane = found;
	own.serial = client->serial;
	return found;
}

static inline uint32_t lane_own(struct mfs_client *client)
{
	return __builtin_expect(own.serial == client->serial, 1) ? own.lane : lane_acquire(client);
}

static bool message_send(struct mfs_client *client, const struct mfs_message *message)
{
	struct mfs_segment *segment = client->segment;
	uint32_t lane = own.sending ? MFS_LANE_SHARED : lane_own(client);
	unsigned sent = 0;

	if (lane != MFS_LANE_SHARED) {
		own.sending = 1;
		atomic_signal_fence(memory_order_seq_cst);
		sent = mfs_mpsc_push_owned(&segment->submit[lane], segment->submit_slot[lane], MFS_LANE_SLOTS, message, 1);
		atomic_signal_fence(memory_order_seq_cst);
		own.sending = 0;
	}
	if (!sent)
		sent = mfs_mpsc_push(&segment->submit[MFS_LANE_SHARED], segment->submit_slot[MFS_LANE_SHARED], MFS_LANE_SLOTS,
				     message, 1);
	if (!sent)
		return false;
	doorbell_ring(client);
	return true;
}

static bool finish_send(struct mfs_client *client, uint64_t task_id, enum phase phase)
{
	struct mfs_message message = {
		.task = task_id,
		.batch = MFS_NONE_U32,
		.kind = phase == PHASE_OWES_COMPLETE ? MFS_MESSAGE_COMPLETE : MFS_MESSAGE_CANCEL,
		.flags = phase == PHASE_OWES_BYPASS ? MFS_TASK_BYPASSED : 0,
	};

	return message_send(client, &message);
}

static uint32_t lane_slot_take(struct mfs_client *client, uint32_t lane)
{
	_Atomic uint64_t *free_head = &client->lane[lane].free_head;
	uint64_t head = atomic_load_explicit(free_head, memory_order_acquire);

	for (;;) {
		uint32_t top = (uint32_t)head;

		if (top == 0)
			return MFS_NONE_U32;

		uint64_t next = atomic_load_explicit(&client->task[top - 1].next_free, memory_order_relaxed);

		if (atomic_compare_exchange_weak_explicit(free_head, &head, ((head >> 32) + 1) << 32 | next,
							  memory_order_acquire, memory_order_acquire))
			return top - 1;
	}
}

static uint32_t slot_take(struct mfs_client *client)
{
	uint32_t first = lane_own(client);

	for (uint32_t i = 0; i < MFS_LANES; i++) {
		uint32_t slot = lane_slot_take(client, (first + i) % MFS_LANES);

		if (slot != MFS_NONE_U32)
			return slot;
	}
	return MFS_NONE_U32;
}

static void slot_give(struct mfs_client *client, uint32_t slot)
{
	_Atomic uint64_t *free_head = &client->lane[task_lane(slot)].free_head;
	uint64_t head = atomic_load_explicit(free_head, memory_order_relaxed);

	do {
		atomic_store_explicit(&client->task[slot].next_free, (uint32_t)head, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(free_head, &head, ((head >> 32) + 1) << 32 | (slot + 1),
							memory_order_release, memory_order_relaxed));
}

static void waiting_add(struct mfs_client *client, uint32_t slot, uint32_t change)
{
	atomic_fetch_add_explicit(&client->lane[task_lane(slot)].waiting, change, memory_order_relaxed);
}

static bool batch_send(struct mfs_client *client, uint32_t batch)
{
	struct mfs_message message = {.batch = batch, .kind = MFS_MESSAGE_BATCH};

	return message_send(client, &message);
}

/* Sends what found the ring full. Any thread may; each bit is taken by one. */
static void owed_flush(struct mfs_client *client)
{
	uint64_t batches = atomic_load_explicit(&client->owed_batches, memory_order_relaxed);

	for (; batches; batches &= batches - 1) {
		uint64_t bit = batches & -batches;

		if (!(atomic_fetch_and_explicit(&client->owed_batches, ~bit, memory_order_acquire) & bit))
			continue;
		atomic_fetch_sub_explicit(&client->owed, 1, memory_order_relaxed);
		if (!batch_send(client, (uint32_t)__builtin_ctzll(bit))) {
			if (!(atomic_fetch_or_explicit(&client->owed_batches, bit, memory_order_release) & bit))
				atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
			return;
		}
	}
	for (uint32_t word = 0; word < MFS_TASKS_MAX / MFS_WORD_BITS; word++) {
		uint64_t bits = atomic_load_explicit(&client->owed_tasks[word], memory_order_relaxed);

		for (; bits; bits &= bits - 1) {
			uint64_t bit = bits & -bits;
			uint32_t slot = word * MFS_WORD_BITS + (uint32_t)__builtin_ctzll(bit);

			if (!(atomic_fetch_and_explicit(&client->owed_tasks[word], ~bit, memory_order_acquire) & bit))
				continue;

			uint64_t state = atomic_load_explicit(&client->task[slot].state, memory_order_relaxed);

			if (!finish_send(client, (state >> 32) << 32 | slot, (enum phase)(uint32_t)state)) {
				atomic_fetch_or_explicit(&client->owed_tasks[word], bit, memory_order_release);
				return;
			}
			atomic_fetch_sub_explicit(&client->owed, 1, memory_order_relaxed);
			atomic_store_explicit(&client->task[slot].state, state & ~0xffffffffull, memory_order_relaxed);
			slot_give(client, slot);
		}
	}
}

static inline void owed_check(struct mfs_client *client)
{
	if (__builtin_expect(atomic_load_explicit(&client->owed, memory_order_relaxed) != 0, 0))
		owed_flush(client);
}

/* ---- the three primitives ---------------------------------------------------------------------------------------- */

int mfs_client_submit(struct mfs_client *client, const struct mfs_task *task, void *cookie, uint64_t *task_id)
{
	uint64_t now_ns = client_clock_ns();

	if (!mfs_client_alive(client, now_ns))
		return -ENOTCONN;
	owed_check(client);

	uint32_t slot = slot_take(client);

	if (slot == MFS_NONE_U32)
		return -EAGAIN;

	struct task_slot *entry = &client->task[slot];
	uint64_t generation = (atomic_load_explicit(&entry->state, memory_order_relaxed) >> 32) + 1;
	struct mfs_message message = {
		.task = generation << 32 | slot,
		.bytes = task->bytes,
		.request_id = task->request_id,
		.deadline_ns = task->deadline_ns,
		.submit_ns = now_ns,
		.batch = task->batch,
		.layer = task->layer,
		.kind = MFS_MESSAGE_SUBMIT,
		.stage = task->stage,
		.nic = task->nic,
		.role = task->role,
	};

	atomic_store_explicit(&entry->cookie, cookie, memory_order_relaxed);
	*task_id = message.task; /* before the message: the permit may arrive at another thread at once */
	atomic_store_explicit(&entry->state, generation << 32 | PHASE_WAITING, memory_order_release);
	waiting_add(client, slot, 1);
	if (message_send(client, &message))
		return 0;
	waiting_add(client, slot, -1u);
	atomic_store_explicit(&entry->state, generation << 32 | PHASE_FREE, memory_order_relaxed);
	slot_give(client, slot);
	return -EAGAIN;
}

int mfs_client_permits(struct mfs_client *client, struct mfs_permit *permits, int n)
{
	struct mfs_segment *segment = client->segment;
	struct mfs_grant grants[64];
	int taken = 0;

	owed_check(client);
	while (taken < n) {
		unsigned want = n - taken < 64 ? (unsigned)(n - taken) : 64;
		int got = mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, grants, want);

		if (got < 0)
			return taken ? taken : got;
		if (got == 0)
			break;
		for (int i = 0; i < got; i++) {
			uint64_t task_id = atomic_load_explicit(&grants[i].task, memory_order_relaxed);
			uint64_t class_epoch = atomic_load_explicit(&grants[i].class_epoch, memory_order_relaxed);
			uint32_t slot = (uint32_t)task_id;
			uint64_t generation = (task_id >> 32) << 32;

			if (slot >= MFS_TASKS_MAX || class_epoch >> 32 != client->epoch)
				continue;

			/* The cookie is read between two looks at the state: another thread may end the task and reuse the
			 * slot as soon as the permit is taken. */
			struct task_slot *entry = &client->task[slot];
			uint64_t state = atomic_load_explicit(&entry->state, memory_order_acquire);
			void *cookie = atomic_load_explicit(&entry->cookie, memory_order_relaxed);

			if (state != (generation | PHASE_WAITING) ||
			    !atomic_compare_exchange_strong_explicit(&entry->state, &state, generation | PHASE_GRANTED,
								     memory_order_acq_rel, memory_order_relaxed))
				continue;
			waiting_add(client, slot, -1u);
			permits[taken++] = (struct mfs_permit){
				.task_id = task_id,
				.cookie = cookie,
				.wire_class = (uint32_t)class_epoch,
			};
		}
	}
	return taken;
}

bool mfs_client_permits_pending(const struct mfs_client *client)
{
	return mfs_spmc_pending(&client->segment->grant) ||
	       atomic_load_explicit(&client->owed, memory_order_relaxed) != 0;
}

int mfs_client_wait(struct mfs_client *client, uint64_t timeout_ns)
{
	struct mfs_segment_header *header = &client->segment->header;
	struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
				   .tv_nsec = (long)(timeout_ns % 1000000000u)};
	uint32_t word = atomic_load_explicit(&header->grant_word, memory_order_acquire);
	int saved = errno;

	owed_check(client);
	/* Dekker with the arbiter's grants_announce: abi.h */
	atomic_fetch_add_explicit(&header->grant_waiters, 1, memory_order_seq_cst);
	atomic_thread_fence(memory_order_seq_cst);
	if (!mfs_spmc_pending(&client->segment->grant) &&
	    atomic_load_explicit(&header->state, memory_order_relaxed) == MFS_SEGMENT_ACTIVE)
		syscall(SYS_futex, &header->grant_word, FUTEX_WAIT, word, &timeout, NULL, 0);
	atomic_fetch_sub_explicit(&header->grant_waiters, 1, memory_order_relaxed);
	errno = saved;
	return mfs_spmc_pending(&client->segment->grant) ? 0 : -ETIMEDOUT;
}

static void task_finish(struct mfs_client *client, uint64_t task_id, enum phase owes)
{
	uint32_t slot = (uint32_t)task_id;
	uint64_t generation = (task_id >> 32) << 32;

	if (slot >= MFS_TASKS_MAX)
		return;
	owed_check(client);

	struct task_slot *entry = &client->task[slot];
	uint64_t state = atomic_load_explicit(&entry->state, memory_order_relaxed);

	do {
		if (state != (generation | PHASE_WAITING) && state != (generation | PHASE_GRANTED))
			return; /* finished before */
	} while (!atomic_compare_exchange_weak_explicit(&entry->state, &state, generation | owes, memory_order_acq_rel,
							memory_order_relaxed));
	if ((uint32_t)state == PHASE_WAITING)
		waiting_add(client, slot, -1u);
	if (finish_send(client, task_id, owes)) {
		atomic_store_explicit(&entry->state, generation | PHASE_FREE, memory_order_relaxed);
		slot_give(client, slot);
		return;
	}
	atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
	atomic_fetch_or_explicit(&client->owed_tasks[slot / MFS_WORD_BITS], 1ull << slot % MFS_WORD_BITS, memory_order_release);
}

void mfs_client_complete(struct mfs_client *client, uint64_t task_id)
{
	task_finish(client, task_id, PHASE_OWES_COMPLETE);
}

void mfs_client_cancel(struct mfs_client *client, uint64_t task_id, bool bypassed)
{
	task_finish(client, task_id, bypassed ? PHASE_OWES_BYPASS : PHASE_OWES_CANCEL);
}

/* ---- usage ------------------------------------------------------------------------------------------------------- */

static void usage_add(struct mfs_usage_half *half, unsigned stage, uint64_t bytes)
{
	atomic_fetch_add_explicit(&half->bytes[stage], bytes, memory_order_relaxed);
	atomic_fetch_add_explicit(&half->work_requests[stage], 1, memory_order_relaxed);
}

void mfs_client_count_posted(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
{
	if (nic < MFS_NICS_MAX)
		usage_add(&client->segment->usage[nic].posted, stage < MFS_STAGES_MAX ? stage : MFS_STAGE_BACKGROUND, bytes);
}

void mfs_client_count_completed(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
{
	struct mfs_segment *segment = client->segment;

	if (nic >= MFS_NICS_MAX)
		return;

	struct mfs_usage *usage = &segment->usage[nic];

	usage_add(&usage->completed, stage < MFS_STAGES_MAX ? stage : MFS_STAGE_BACKGROUND, bytes);
	if (__builtin_expect(!(atomic_load_explicit(&segment->gate[nic].word, memory_order_relaxed) & MFS_GATE_IDLE_BELL), 1))
		return;
	for (unsigned s = 0; s < MFS_STAGES_MAX; s++)
		if (MFS_STAGES_UNSCHEDULED >> s & 1 &&
		    atomic_load_explicit(&usage->posted.bytes[s], memory_order_relaxed) !=
			    atomic_load_explicit(&usage->completed.bytes[s], memory_order_relaxed))
			return;
	doorbell_ring(client);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static void batch_tell(struct mfs_client *client, uint32_t batch)
{
	owed_check(client);
	if (batch_send(client, batch))
		return;
	if (!(atomic_fetch_or_explicit(&client->owed_batches, 1ull << batch, memory_order_release) >> batch & 1))
		atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
}

int mfs_client_batch_begin(struct mfs_client *client, uint64_t batch_id, uint32_t layers, uint64_t deadline_ns,
			   uint64_t compute_ns)
{
	if (batch_id == 0 || batch_id == BATCH_CLAIMED)
		return -EINVAL;
	for (int i = 0; i < MFS_BATCHES_MAX; i++) {
		struct mfs_batch *batch = &client->segment->batch[i];
		uint64_t free_id = 0;

		if (!atomic_compare_exchange_strong_explicit(&batch->batch_id, &free_id, BATCH_CLAIMED, memory_order_acquire,
							     memory_order_relaxed))
			continue;
		atomic_store_explicit(&batch->layer_current, 0, memory_order_relaxed);
		atomic_store_explicit(&batch->layers, layers, memory_order_relaxed);
		atomic_store_explicit(&batch->deadline_ns, deadline_ns, memory_order_relaxed);
		atomic_store_explicit(&batch->compute_ns, compute_ns, memory_order_relaxed);
		atomic_store_explicit(&batch->batch_id, batch_id, memory_order_release);
		batch_tell(client, (uint32_t)i);
		return i;
	}
	return -ENOSPC;
}

int mfs_client_batch_layer(struct mfs_client *client, uint32_t batch, uint32_t layer_current)
{
	if (batch >= MFS_BATCHES_MAX)
		return -EINVAL;
	atomic_store_explicit(&client->segment->batch[batch].layer_current, layer_current, memory_order_relaxed);
	/* The arbiter reads the context with every submit; a message is due only for what waits already. */
	for (uint32_t lane = 0; lane < MFS_LANES; lane++) {
		if (atomic_load_explicit(&client->lane[lane].waiting, memory_order_relaxed)) {
			batch_tell(client, batch);
			break;
		}
	}
	return 0;
}

int mfs_client_batch_end(struct mfs_client *client, uint32_t batch)
{
	if (batch >= MFS_BATCHES_MAX)
		return -EINVAL;
	atomic_store_explicit(&client->segment->batch[batch].batch_id, 0, memory_order_release);
	batch_tell(client, batch);
	return 0;
}
