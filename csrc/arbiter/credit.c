/* Credit, the arbiter's side (the client's: client/credit.c): what each client may have in flight without
 * asking.
 *
 * There is credit while nothing waits for a direction: then every permit would be given at once, in the
 * order of asking. All clients that have used the direction lately get half of the window together, so
 * with what was permitted at most one and a half windows are in flight. The others ask for their first
 * task. Giving and withdrawing credit thus costs as much as there are such clients. If there are many,
 * credit is not given again until that cost is a small part of what the thread has done meanwhile. What
 * does not travel apart from collectives gets no credit while there are any: only a task that asks learns
 * when they are through. And a client whose flows are critical, nearly so or pruned asks for each task,
 * since only the queue knows their class. */
#include "state.h"

#define SILENT_NS 1000000000ull /* after this time without collectives, there are none */
/* time since the last request for a permit; a client that asks again sooner finds the arbiter awake */
#define REST_NS 1000000ull
#define USED_NS 10000000000ull /* a client loses its credit this long after its last task */
/* for each client that would get credit: about sixteen times the cost of giving and withdrawing it */
#define SHUT_NS 1600ull
#define CRITICAL_NS 1000000000ull /* since its last flow with such a class */
/* a report delayed by more than this was not held up in a ring, nor by its thread between credit and ring */
#define LATE_NS 1000000000ull

static uint64_t credit_of(const struct mfs_arbiter *arbiter, const struct session *session, uint32_t index)
{
	const struct session_direction *share = session_direction_at(session, index);
	const struct nic *nic = &arbiter->nic[index / MFS_DIRECTIONS];

	if (!share->holder || session->state != MFS_SEGMENT_ACTIVE ||
	    session_suspect(arbiter, session, index) ||
	    (share->critical_ns && arbiter->now_ns - share->critical_ns < CRITICAL_NS))
		return 0;
	return mfs_window_bytes(nic->direction[0].window) / 2 /
	       nic->direction[index % MFS_DIRECTIONS].holders;
}

/* The credit before may still be in use until the next heartbeat. It is remembered only once in that time,
 * so a client gains nothing when its credit ends often. */
static void credit_ends(const struct mfs_arbiter *arbiter, struct session_direction *share)
{
	if (arbiter->now_ns - share->credit_late_ns >= arbiter->config.heartbeat_ns) {
		share->credit_late = share->credit_class_marked;
		share->credit_late_ns = arbiter->now_ns;
	}
	share->credit_ended_ns = arbiter->now_ns;
}

static void credit_write(struct mfs_arbiter *arbiter, struct session *session, uint32_t index)
{
	bool silent = arbiter->now_ns - arbiter->nic[index / MFS_DIRECTIONS].gate.busy_ns > SILENT_NS;
	struct mfs_gate *gate = mfs_gate_of(session->segment, index / MFS_DIRECTIONS);
	struct session_direction *share = session_direction_at(session, index);
	uint64_t class_marked = direction_at(arbiter, index)->open ? credit_of(arbiter, session, index) : 0,
		 any = silent ? class_marked : 0;

	if (share->credit_class_marked != class_marked)
		atomic_store_explicit(&gate->credit_class_marked[index % MFS_DIRECTIONS], class_marked,
				      memory_order_relaxed);
	if (share->credit != any)
		atomic_store_explicit(&gate->credit[index % MFS_DIRECTIONS], any, memory_order_relaxed);
	if (class_marked < share->credit_class_marked)
		credit_ends(arbiter, share);
	share->credit_class_marked = class_marked;
	share->credit = any;
}

/* Returns how much of what a client reports as taken is believed: what its credit allows in total, and the
 * withdrawn credit once more while a report of it may have been on its way. An honest client may seem to have
 * more, since its rings are read in any order, and any rest of the credit admits a task. What is beyond is
 * not counted, but is no reason for suspicion. Taking where there has been no credit for long is one. */
uint64_t credit_believed(struct mfs_arbiter *arbiter, struct task *task)
{
	struct session_direction *share = session_direction_at(task->session, task->direction);
	uint64_t credit = share->credit_class_marked, late_ns = arbiter->now_ns - share->credit_ended_ns;
	uint64_t bytes = credit > share->taken_bytes ? credit - share->taken_bytes : 0;

	if (!credit && (!share->credit_ended_ns || late_ns >= LATE_NS))
		share->overdue_ns = arbiter->now_ns;
	if (bytes >= task->bytes)
		return task->bytes;
	if (share->credit_ended_ns && late_ns < arbiter->config.heartbeat_ns) {
		uint64_t rest = task->bytes - bytes,
			 late = rest < share->credit_late ? rest : share->credit_late;

		share->credit_late -= late;
		bytes += late;
	}
	return bytes;
}

void credit_used(struct mfs_arbiter *arbiter, struct session *session, uint32_t index)
{
	struct session_direction *share = session_direction_at(session, index);
	struct direction *direction = direction_at(arbiter, index);

	share->used_ns = arbiter->now_ns;
	if (share->holder)
		return;
	/* it gets credit with the next heartbeat, when all shares are written */
	arbiter->used_directions |= direction_bit(index);
	arbiter->holder[index][direction->holders++] = session;
	share->holder = direction->holders;
}

static void holder_remove(struct mfs_arbiter *arbiter, struct session *session, uint32_t index)
{
	struct session_direction *share = session_direction_at(session, index);
	struct direction *direction = direction_at(arbiter, index);
	struct session *last;

	if (!share->holder)
		return;
	last = arbiter->holder[index][--direction->holders];
	arbiter->holder[index][share->holder - 1] = last;
	session_direction_at(last, index)->holder = share->holder;
	share->holder = 0;
	if (!direction->holders)
		arbiter->used_directions &= ~direction_bit(index);
	credit_write(arbiter, session, index);
}

void credit_forget(struct mfs_arbiter *arbiter, struct session *session)
{
	for (uint32_t i = 0; i < directions_count(arbiter); i++)
		holder_remove(arbiter, session, i);
}

static void direction_credits_write(struct mfs_arbiter *arbiter, uint32_t index)
{
	for (uint32_t i = direction_at(arbiter, index)->holders; i-- > 0;) {
		struct session *session = arbiter->holder[index][i];

		if (arbiter->now_ns - session_direction_at(session, index)->used_ns >= USED_NS)
			holder_remove(arbiter, session, index);
	}
	for (uint32_t i = 0; i < direction_at(arbiter, index)->holders; i++)
		credit_write(arbiter, arbiter->holder[index][i], index);
}

/* True if nothing changes in the direction until it is used again. */
static bool direction_settled(const struct direction *direction, bool open)
{
	return !direction->dirty && direction->evaluate_ns == MFS_TIME_NEVER && !direction->flight_first &&
	       direction->open == open;
}

void credits_write(struct mfs_arbiter *arbiter, bool all)
{
	direction_set left = arbiter->active_directions | (all ? arbiter->used_directions : 0);

	for (; left; left &= left - 1) {
		uint32_t i = direction_first(left);
		struct direction *direction = direction_at(arbiter, i);
		bool idle = mfs_rmlq_waiting(direction->queue) == 0;
		bool open = arbiter->config.mode == MFS_MODE_ENFORCE && idle;

		if (idle && direction_settled(direction, open))
			arbiter->active_directions &= ~direction_bit(i);
		if (!direction->open && arbiter->now_ns - direction->shut_ns < SHUT_NS * direction->holders)
			open = false;
		if (!all && open == direction->open)
			continue;
		if (direction->open && !open)
			direction->shut_ns = arbiter->now_ns;
		direction->open = open;
		direction_credits_write(arbiter, i);
	}
}

bool at_rest(struct mfs_arbiter *arbiter)
{
	if (arbiter->now_ns - arbiter->asked_ns < REST_NS)
		return false;
	for (direction_set left = arbiter->active_directions; left; left &= left - 1)
		if (mfs_rmlq_waiting(direction_at(arbiter, direction_first(left))->queue))
			return false;
	return true;
}

void credit_evaluated(struct mfs_arbiter *arbiter, const struct task *task, const struct mfs_pick *pick)
{
	const struct mfs_policy *policy = &arbiter->config.policy;
	bool demoted = pick->tier == MFS_TIER_SCAVENGER && task->stage < MFS_STAGE_BACKGROUND;
	uint8_t usual = mfs_policy_class(policy, MFS_STAGE_P2D, 0);
	bool near = pick->tier == MFS_TIER_LAST && usual != MFS_CLASS_ASK && pick->wire_class != usual;

	if (pick->tier != MFS_TIER_CRITICAL && !demoted && !near)
		return;
	session_direction_at(task->session, task->direction)->critical_ns = arbiter->now_ns;
	credit_write(arbiter, task->session, task->direction);
}
