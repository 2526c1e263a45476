/* Clients' messages about their tasks, and how tasks end.
 *
 * Whatever a client writes is copied, then checked. The first thing that no correct client can write detaches
 * that client and no other. What may be due to another thread's progress (a finished task named twice, a lost
 * message) is only counted and ignored. */
#include "watch.h"

#include <errno.h>

#define CREDIBLE_NS 60000000000ull /* a client's time is not believed if it is this old, or in the future */

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void task_drop(struct mfs_arbiter *arbiter, struct task *task, bool complete)
{
	if (task->handle)
		mfs_rmlq_cancel(direction_at(arbiter, task->direction)->queue, task->handle);
	if (task->phase == TASK_IN_FLIGHT) {
		nic_released(arbiter, task, complete);
	} else {
		fifo_remove(task->session, task);
		nic_waits_no_more(arbiter, task);
	}
	nic_unplace(arbiter, task);
	task->phase = TASK_FREE;
	direction_touch(arbiter, task->direction);
}

/* Ends a task at `end_ns`, as its program reported it or would have reported it. */
static void task_end(struct mfs_arbiter *arbiter, struct task *task, enum watch_end how, uint64_t end_ns)
{
	bool gone = how == WATCH_COMPLETE || how == WATCH_BYPASS; /* its bytes are on the wire */

	if (gone && task->handle) {
		mfs_rmlq_complete(direction_at(arbiter, task->direction)->queue, task->handle, UINT64_MAX);
		task->handle = 0;
	}
	if (gone && task->request)
		request_completed(task->session, task);
	watch_end(arbiter, task, how, end_ns > task->submit_ns ? end_ns : task->submit_ns);
	task_drop(arbiter, task, gone);
}

/* Drops a task whose end will not be reported. */
static void task_lose(struct mfs_arbiter *arbiter, struct task *task)
{
	watch_end(arbiter, task, WATCH_DROP, arbiter->now_ns);
	task_drop(arbiter, task, false);
}

void session_detach(struct mfs_arbiter *arbiter, struct session *session, int reason)
{
	struct mfs_segment *segment = session->segment;

	if (session->state != MFS_SEGMENT_ACTIVE)
		return;
	session->state = MFS_SEGMENT_DETACHED;
	session->detach_reason = reason;
	if (reason != -ESHUTDOWN)
		watch_open(arbiter, session, MFS_OPEN_GIVEN_UP);
	for (unsigned i = 0; i < MFS_TASKS_MAX; i++)
		if (session->task[i].phase != TASK_FREE)
			task_lose(arbiter, &session->task[i]);
	session_contexts_forget(arbiter, session);
	gate_forget(arbiter, session);
	credit_forget(arbiter, session);
	active_remove(arbiter, session);
	work_forget(arbiter, session);
	atomic_store_explicit(&segment->header.state, MFS_SEGMENT_DETACHED, memory_order_release);
	for (unsigned i = 0; i < MFS_NICS_MAX; i++)
		atomic_store_explicit(&mfs_gate_of(segment, i)->word, 0, memory_order_release);
	session->announce = true; /* a thread that waits for a permit checks the state */
	session_announce(session);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Returns when the message was sent, or the present time if what it says cannot be believed. */
static uint64_t sent_ns(const struct mfs_arbiter *arbiter, const struct mfs_message *message)
{
	return arbiter->now_ns - message->submit_ns < CREDIBLE_NS ? message->submit_ns : arbiter->now_ns;
}

_Static_assert(MFS_TASK_BYTES_MAX <= MFS_FLOW_BYTES_MAX, "the queue takes every task");

/* Frees the slot for the message's task if needed. Returns 1: the task may use it; 0: the task had ended
 * before this message was read, or another has followed it; -EBADMSG: it was submitted before. */
static int slot_claim(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_message *message)
{
	uint32_t generation = (uint32_t)(message->task >> 32);

	/* A client reuses a slot only after its task has ended, but rings are read in any order
	 * (tests/model/slots.pml). */
	if ((int32_t)(generation - task->generation) < 0) { /* ended long ago */
		watch_late(arbiter, message->request_id);
		return 0;
	}
	if (task->phase != TASK_FREE) { /* the message of its end is still on its way */
		if (generation == task->generation)
			return -EBADMSG;
		if (task->phase == TASK_IN_FLIGHT)
			/* it had its permit, so most likely its bytes are on the wire */
			task_end(arbiter, task, WATCH_COMPLETE, arbiter->now_ns);
		else
			task_lose(arbiter, task);
	}
	task->generation = generation;
	if (task->ended_generation == generation && !(message->flags & MFS_TASK_TAKEN)) {
		task->ended_generation = 0;
		watch_late(arbiter, message->request_id);
		return 0;
	}
	return 1;
}

/* Copies the message. A deadline or batch that it does not give is taken from the task's request. */
static void task_read(struct mfs_arbiter *arbiter, struct session *session, struct task *task,
		      const struct mfs_message *message)
{
	task->session = session;
	task->direction = (uint8_t)direction_index(message->nic, message->flags & MFS_TASK_INCOMING
									 ? MFS_DIRECTION_IN
									 : MFS_DIRECTION_OUT);
	task->request = message->request_id ? request_find(session, message->request_id) : 0;
	task->deadline_ns = message->deadline_ns;
	task->batch = message->batch;
	task->bytes = message->bytes;
	task->submit_ns = sent_ns(arbiter, message);
	task->taken = message->flags & MFS_TASK_TAKEN;
	task->request_id = message->request_id;
	task->peer = message->peer;
	task->layer = message->layer;
	task->stage = message->stage;
	task->phase = TASK_WAITING;
	task->class_marked = message->flags & MFS_TASK_CLASS_MARKED;
	task->fifo = 0;
	if (task->request) {
		const struct request *request = &session->request[task->request - 1];

		if (task->deadline_ns == 0)
			task->deadline_ns = request->deadline_ns;
		if (task->batch == MFS_NONE_U32)
			task->batch = request->batch;
		if (message->stage == MFS_STAGE_P2D)
			request_submitted(arbiter, session, task->request - 1, task->direction);
	}
	nic_place(arbiter, task, message->peer);
	task->turn = turn_of(arbiter, task);
}

/* Returns false if the queue is full: then the task goes at once, out of order. */
static bool task_enqueue(struct mfs_arbiter *arbiter, struct session *session, struct task *task,
			 uint64_t bytes_left)
{
	struct mfs_flow flow = {
		.bytes = task->bytes,
		.bytes_left = bytes_left,
		.request = task->request_id ? key_mix(session->key_salt, task->request_id) : 0,
		.batch = task->batch != MFS_NONE_U32
				 ? batch_key(arbiter, session, task->batch, task->direction)
				 : 0,
		.deadline_ns = task->deadline_ns,
		.cookie = (uintptr_t)task,
		.layer = task->layer,
		.stage = task->stage,
		.destination = task->destination,
		.turn = task->turn,
	};

	nic_waits(arbiter, task);
	credit_used(arbiter, session, task->direction);
	direction_touch(arbiter, task->direction);
	watch_submit(arbiter, task);
	if (mfs_rmlq_submit(direction_at(arbiter, task->direction)->queue, &flow, arbiter->now_ns,
			    &task->handle) == 0)
		return true;
	task->handle = 0;
	watch_full(arbiter, task);
	return false;
}

/* Returns the bytes of the task and of what its sender will submit behind it. 0: not known. */
static uint64_t left_of(const struct mfs_message *message)
{
	if (message->flags & MFS_TASK_TAKEN || message->wire_class == MFS_BEHIND_UNKNOWN)
		return 0;
	return message->bytes + mfs_behind_bytes(message->wire_class);
}

static int task_submit(struct mfs_arbiter *arbiter, struct session *session,
		       const struct mfs_message *message)
{
	struct mfs_pick pick = {.tier = MFS_TIER_SCAVENGER,
				.wire_class = (uint8_t)(arbiter->config.policy.classes - 1)};
	uint32_t slot = (uint32_t)message->task;
	struct task *task;
	bool over, queued;
	int rc;

	if (slot >= MFS_TASKS_MAX || message->nic >= arbiter->nics ||
	    ((message->flags & MFS_TASK_TAKEN) && message->wire_class >= arbiter->config.policy.classes) ||
	    (message->batch != MFS_NONE_U32 && message->batch >= MFS_BATCHES_MAX))
		return -EBADMSG;
	task = &session->task[slot];
	session->submits++;
	rc = slot_claim(arbiter, task, message);
	if (rc <= 0)
		return rc;
	over = task->ended_generation == task->generation;
	if (over)
		task->ended_generation = 0;
	task_read(arbiter, session, task, message);
	queued = task_enqueue(arbiter, session, task, left_of(message));
	if (task->taken) {
		session->taken++;
		mfs_rmlq_take(direction_at(arbiter, task->direction)->queue, task->handle, arbiter->now_ns,
			      &pick);
		credit_evaluated(arbiter, task, &pick);
		pick.wire_class = message->wire_class;
		nic_taken(arbiter, task, &pick);
		if (over)
			task_end(arbiter, task, task->ended_how, task->ended_ns);
	} else if (!queued) {
		nic_permitted(arbiter, task, &pick);
	} else {
		fifo_add(session, task, message->queue ? (uint32_t)message->nic << 24 | message->queue : 0);
	}
	return 0;
}

static int task_finish(struct mfs_arbiter *arbiter, struct session *session,
		       const struct mfs_message *message)
{
	uint32_t slot = (uint32_t)message->task;

	if (slot >= MFS_TASKS_MAX)
		return -EBADMSG;

	struct task *task = &session->task[slot];
	int32_t ahead = (int32_t)((uint32_t)(message->task >> 32) - task->generation);

	if (ahead == 0 && task->phase == TASK_FREE) {
		session->bad_messages++; /* ended twice */
		return 0;
	}
	if (message->kind == MFS_MESSAGE_COMPLETE)
		session->completes++;
	else
		session->cancels++;

	enum watch_end how = message->kind == MFS_MESSAGE_COMPLETE ? WATCH_COMPLETE
			     : message->flags & MFS_TASK_BYPASSED  ? WATCH_BYPASS
								   : WATCH_CANCEL;

	if (ahead > 0 &&
	    (!task->ended_generation || ahead > (int32_t)(task->ended_generation - task->generation))) {
		task->ended_generation = (uint32_t)(message->task >> 32);
		task->ended_ns = sent_ns(arbiter, message);
		task->ended_how = (uint8_t)how;
	}
	if (ahead == 0)
		task_end(arbiter, task, how, sent_ns(arbiter, message));
	return 0;
}

/* Like batch_ends in batch.c: the end is processed when all rings are empty. Returns false if the request
 * has not ended. */
static bool request_ends(struct session *session, uint32_t slot)
{
	uint64_t id = atomic_load_explicit(&session->segment->request[slot].request_id, memory_order_relaxed);

	if (!session->request[slot].id || (id != 0 && id != MFS_CONTEXT_CLAIMED))
		return false;
	session->requests_ending[slot / 64] |= 1ull << slot % 64;
	return session->ending = true;
}

static void ends_process(struct mfs_arbiter *arbiter, struct session *session)
{
	uint64_t batches = session->batches_ending;

	session->ending = false;
	for (uint32_t word = 0; word < MFS_REQUESTS_MAX / 64; word++)
		for (uint64_t *bits = &session->requests_ending[word]; *bits; *bits &= *bits - 1)
			request_refresh(arbiter, session, word * 64 + (uint32_t)__builtin_ctzll(*bits));
	session->batches_ending = 0; /* a batch that ends meanwhile is processed next time */
	for (; batches; batches &= batches - 1)
		batch_read(arbiter, session, (uint32_t)__builtin_ctzll(batches));
}

static int message_apply(struct mfs_arbiter *arbiter, struct session *session,
			 const struct mfs_message *message)
{
	switch (message->kind) {
	case MFS_MESSAGE_SUBMIT:
		return task_submit(arbiter, session, message);
	case MFS_MESSAGE_COMPLETE:
	case MFS_MESSAGE_CANCEL:
		return task_finish(arbiter, session, message);
	case MFS_MESSAGE_BATCH:
		if (message->batch >= MFS_BATCHES_MAX)
			return -EBADMSG;
		batch_refresh(arbiter, session, message->batch);
		return 0;
	case MFS_MESSAGE_REQUEST:
		if (message->task >= MFS_REQUESTS_MAX)
			return -EBADMSG;
		if (!request_ends(session, (uint32_t)message->task))
			request_refresh(arbiter, session, (uint32_t)message->task);
		return 0;
	default:
		return -EBADMSG;
	}
}

static int messages_take(struct mfs_arbiter *arbiter, struct session *session, uint32_t rings)
{
	struct mfs_segment *segment = session->segment;
	int n;

	if (session->message_next < session->message_end)
		return 0;
	if (session->ending)
		rings = RINGS_ALL;
	n = mfs_submit_pop_some(&session->reader, rings, segment->submit, segment->submit_slot[0],
				MFS_SUBMIT_SLOTS, session->message, MESSAGES_PER_TURN, arbiter->now_ns,
				arbiter->config.torn_slot_ns);
	session->read_whole = rings == RINGS_ALL && n < MESSAGES_PER_TURN;
	session->message_next = 0;
	session->message_end = n > 0 ? (uint32_t)n : 0;
	if (n > 0) {
		arbiter->messages += (uint64_t)n;
		active_add(arbiter, session);
	}
	arbiter->behind |= n == MESSAGES_PER_TURN;
	return n < 0 ? n : 0;
}

/* True if a client that is read after the others has used up the rest of this turn's time for them. */
static bool turn_over(struct mfs_arbiter *arbiter, const struct session *session, uint64_t before_ns)
{
	return session->behind && session->work_ns - before_ns >= arbiter->turn_left_ns;
}

bool session_drain(struct mfs_arbiter *arbiter, struct session *session, uint32_t rings)
{
	bool worked = false;
	uint64_t before_ns;
	int rc;

	if (session->state != MFS_SEGMENT_ACTIVE || work_owes(arbiter, session))
		return false;
	before_ns = session->work_ns;
	rc = messages_take(arbiter, session, rings);
	while (rc >= 0 && session->message_next < session->message_end) {
		worked = true;
		if (arbiter->actives > 1)
			session->work_ns += WORK_MESSAGE_NS;
		rc = message_apply(arbiter, session, &session->message[session->message_next++]);
		if (rc < 0)
			session->bad_messages++;
		else
			rc = session->failed;
		if (rc >= 0 && (work_owes(arbiter, session) || turn_over(arbiter, session, before_ns)))
			break;
	}
	if (session->behind)
		work_turn_spend(arbiter, session->work_ns - before_ns);
	if (rc < 0) {
		session_detach(arbiter, session, rc);
		return true;
	}
	if (session->ending && session->read_whole && session->message_next == session->message_end)
		ends_process(arbiter, session);
	return worked;
}

bool permits_end(struct mfs_arbiter *arbiter)
{
	bool fails = false;

	for (uint32_t i = 0; i < arbiter->announcings; i++) {
		struct session *session = arbiter->announcing[i];

		if (session->failed && session->state == MFS_SEGMENT_ACTIVE) {
			session_detach(arbiter, session, session->failed);
			fails = true;
		}
		session_announce(session);
	}
	arbiter->announcings = 0;
	return fails;
}
