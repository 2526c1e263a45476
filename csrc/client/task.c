/* The life of a task at the client (submit, complete, cancel), and the messages about it.
 *
 * Tasks live in a fixed table. `state` of a slot is generation << 32 | phase. Every step of a task's life
 * is one compare-and-swap on it, so exactly one of two threads wins that finish, cancel or permit the same
 * task:
 *
 *   FREE -submit-> WAITING -permit-> PERMITTED -complete, cancel-> FREE
 *                     `---------------cancel, complete-----------^
 *
 * A task that goes on credit (credit.c) is PERMITTED from the start.
 *
 * A message that finds the ring full is remembered in the phase and in a bitmap, and sent by a later call.
 * The slot stays taken until then, so no message is ever lost. */
#include "task.h"

#include "../base/clock.h"
#include "credit.h"
#include "message.h"

#include <errno.h>

static bool finish_send(struct mfs_client *client, uint64_t task_id, enum phase phase)
{
	struct mfs_message message = {
		.task = task_id,
		.submit_ns = mfs_clock_ns(),
		.batch = MFS_NONE_U32,
		.kind = phase == PHASE_OWES_COMPLETE ? MFS_MESSAGE_COMPLETE : MFS_MESSAGE_CANCEL,
		.flags = phase == PHASE_OWES_BYPASS ? MFS_TASK_BYPASSED : 0,
	};

	/* not urgent: as long as anything waits, every message rings anyway */
	return client_message_send(client, &message, false);
}

static uint32_t ring_slot_take(struct mfs_client *client, uint32_t ring)
{
	_Atomic uint64_t *free_head = &client->ring[ring].free_head;
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
	uint32_t first = client_ring_own(client);

	for (uint32_t i = 0; i < MFS_SUBMIT_RINGS; i++) {
		uint32_t slot = ring_slot_take(client, (first + i) % MFS_SUBMIT_RINGS);

		if (slot != MFS_NONE_U32)
			return slot;
	}
	return MFS_NONE_U32;
}

static void slot_give(struct mfs_client *client, uint32_t slot)
{
	_Atomic uint64_t *free_head = &client->ring[task_ring(slot)].free_head;
	uint64_t head = atomic_load_explicit(free_head, memory_order_relaxed);

	do {
		atomic_store_explicit(&client->task[slot].next_free, (uint32_t)head, memory_order_relaxed);
	} while (!atomic_compare_exchange_weak_explicit(free_head, &head,
							((head >> 32) + 1) << 32 | (slot + 1),
							memory_order_release, memory_order_relaxed));
}

/* Takes each bit of the map and sends its message. A bit for whose message the ring has no room is set again. */
static bool owed_slots_flush(struct mfs_client *client, _Atomic uint64_t *map, uint32_t words,
			     bool (*send)(struct mfs_client *, uint32_t))
{
	for (uint32_t word = 0; word < words; word++) {
		uint64_t bits = atomic_load_explicit(&map[word], memory_order_relaxed);

		for (; bits; bits &= bits - 1) {
			uint64_t bit = bits & -bits;

			if (!(atomic_fetch_and_explicit(&map[word], ~bit, memory_order_acquire) & bit))
				continue;
			atomic_fetch_sub_explicit(&client->owed, 1, memory_order_relaxed);
			if (!send(client, word * MFS_WORD_BITS + (uint32_t)__builtin_ctzll(bit))) {
				if (!(atomic_fetch_or_explicit(&map[word], bit, memory_order_release) & bit))
					atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
				return false;
			}
		}
	}
	return true;
}

/* May be called by any thread: each bit is taken by exactly one. */
void client_owed_flush(struct mfs_client *client)
{
	if (!owed_slots_flush(client, &client->owed_batches, 1, client_batch_send) ||
	    !owed_slots_flush(client, client->owed_requests, MFS_REQUESTS_MAX / MFS_WORD_BITS,
			      client_request_send))
		return;
	for (uint32_t word = 0; word < MFS_TASKS_MAX / MFS_WORD_BITS; word++) {
		uint64_t bits = atomic_load_explicit(&client->owed_tasks[word], memory_order_relaxed);

		for (; bits; bits &= bits - 1) {
			uint64_t bit = bits & -bits;
			uint32_t slot = word * MFS_WORD_BITS + (uint32_t)__builtin_ctzll(bit);

			if (!(atomic_fetch_and_explicit(&client->owed_tasks[word], ~bit,
							memory_order_acquire) &
			      bit))
				continue;

			uint64_t state =
				atomic_load_explicit(&client->task[slot].state, memory_order_relaxed);

			if (!finish_send(client, (state >> 32) << 32 | slot, (enum phase)(uint32_t)state)) {
				atomic_fetch_or_explicit(&client->owed_tasks[word], bit,
							 memory_order_release);
				return;
			}
			atomic_fetch_sub_explicit(&client->owed, 1, memory_order_relaxed);
			atomic_store_explicit(&client->task[slot].state, state & ~0xffffffffull,
					      memory_order_relaxed);
			slot_give(client, slot);
		}
	}
}

/* ---- tasks --------------------------------------------------------------------------------------------------------- */

static uint8_t behind_of(const struct mfs_client *client, const struct mfs_task *task)
{
	if (client->minor < MINOR_BEHIND || !task->bytes_left || task->bytes_left < task->bytes)
		return MFS_BEHIND_UNKNOWN;
	return mfs_behind_code(task->bytes_left - task->bytes);
}

int mfs_client_submit(struct mfs_client *client, const struct mfs_task *task, void *cookie, uint64_t *task_id)
{
	uint64_t now_ns = mfs_clock_ns();

	if (task->bytes > MFS_TASK_BYTES_MAX)
		return -EINVAL;
	if (!mfs_client_alive(client, now_ns))
		return -ENOTCONN;
	client_owed_check(client);

	uint32_t slot = slot_take(client);

	if (slot == MFS_NONE_U32)
		return -EAGAIN;

	int taken = task->at_once ? credit_take(client, task) : -EAGAIN;

	if (taken < 0 && task->on_credit) {
		slot_give(client, slot);
		return -EAGAIN;
	}

	struct task_slot *entry = &client->task[slot];
	uint64_t generation = (atomic_load_explicit(&entry->state, memory_order_relaxed) >> 32) + 1;
	bool grouped = client->minor >= MINOR_GROUPS; /* earlier daemons take the whole word for bytes */
	struct mfs_message message = {
		.task = generation << 32 | slot,
		.bytes = task->bytes & MFS_TASK_BYTES_MAX,
		.queue = grouped ? task->queue & MFS_TASK_QUEUE_MAX : 0,
		.request_id = task->request_id,
		.deadline_ns = task->deadline_ns,
		.submit_ns = now_ns,
		.batch = task->batch,
		.layer = task->layer,
		.kind = MFS_MESSAGE_SUBMIT,
		.stage = task->stage,
		.nic = task->nic,
		.role = task->role,
		.flags = (uint8_t)((task->class_marked ? MFS_TASK_CLASS_MARKED : 0) |
				   (task->incoming ? MFS_TASK_INCOMING : 0) |
				   (taken >= 0 ? MFS_TASK_TAKEN : 0)),
		.wire_class = taken >= 0 ? (uint8_t)taken : behind_of(client, task),
		.peer = grouped ? task->peer : 0,
	};
	uint64_t phase = taken >= 0 ? PHASE_PERMITTED | (uint64_t)taken << CLASS_SHIFT : PHASE_WAITING;

	atomic_store_explicit(&entry->cookie, cookie, memory_order_relaxed);
	entry->direction = taken >= 0 ? task->nic * MFS_DIRECTIONS + (uint32_t)task->incoming : MFS_NONE_U32;
	entry->bytes = task->bytes;
	/* before the message is sent: the permit may reach another thread at once */
	*task_id = message.task;
	atomic_store_explicit(&entry->state, generation << 32 | phase, memory_order_release);
	if (taken < 0)
		waiting_add(client, slot, 1);
	if (client_message_send(client, &message, taken < 0))
		return taken >= 0;
	if (taken < 0)
		waiting_add(client, slot, -1u);
	else
		credit_give(client, entry->direction, entry->bytes);
	atomic_store_explicit(&entry->state, generation << 32 | PHASE_FREE, memory_order_relaxed);
	slot_give(client, slot);
	return -EAGAIN;
}

static void task_finish(struct mfs_client *client, uint64_t task_id, enum phase owes)
{
	uint32_t slot = (uint32_t)task_id;
	uint64_t generation = (task_id >> 32) << 32;

	if (slot >= MFS_TASKS_MAX)
		return;
	client_owed_check(client);

	struct task_slot *entry = &client->task[slot];
	uint64_t state = atomic_load_explicit(&entry->state, memory_order_relaxed);

	do {
		if (state != (generation | PHASE_WAITING) &&
		    (state & ~CLASS_MASK) != (generation | PHASE_PERMITTED))
			return; /* finished by another call */
	} while (!atomic_compare_exchange_weak_explicit(&entry->state, &state, generation | owes,
							memory_order_acq_rel, memory_order_relaxed));
	if ((uint32_t)state == PHASE_WAITING)
		waiting_add(client, slot, -1u);
	if (entry->direction != MFS_NONE_U32)
		credit_give(client, entry->direction, entry->bytes);
	if (finish_send(client, task_id, owes)) {
		atomic_store_explicit(&entry->state, generation | PHASE_FREE, memory_order_relaxed);
		slot_give(client, slot);
		return;
	}
	atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
	atomic_fetch_or_explicit(&client->owed_tasks[slot / MFS_WORD_BITS], 1ull << slot % MFS_WORD_BITS,
				 memory_order_release);
}

void mfs_client_complete(struct mfs_client *client, uint64_t task_id)
{
	task_finish(client, task_id, PHASE_OWES_COMPLETE);
}

void mfs_client_cancel(struct mfs_client *client, uint64_t task_id, bool bypassed)
{
	task_finish(client, task_id, bypassed ? PHASE_OWES_BYPASS : PHASE_OWES_CANCEL);
}
