/* The arbiter's view of a NIC: what is in flight in each direction, whether held flows may go, and which
 * goes first. */
#include "watch.h"

#include <errno.h>
#include <string.h>

#define GRANTS_PER_LOOP 256
/* one part in this many of the link may go beside collectives, once a direction has been closed for as
 * long as it may */
#define AGED_SHARE 20

void nic_gates_write(struct mfs_arbiter *arbiter, uint32_t index)
{
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		session_gate_write(arbiter, arbiter->session[i], index);
}

/* Updates the gates of clients that have collectives; the others need not ring when their collectives end. */
static void nic_bell_write(struct mfs_arbiter *arbiter, uint32_t index)
{
	const struct gate *gate = &arbiter->nic[index].gate;

	for (uint32_t m = 0; m < gate->members; m++)
		session_gate_write(arbiter, gate->member[m], index);
	/* The bell and the counters are a Dekker pair like arbiter_asleep: abi.h. */
	atomic_thread_fence(memory_order_seq_cst);
}

static void direction_waits_set(struct mfs_arbiter *arbiter, uint32_t index, bool waits)
{
	struct nic *nic = &arbiter->nic[index / MFS_DIRECTIONS];
	bool bell = false;

	direction_at(arbiter, index)->waits = waits;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		bell |= nic->direction[d].waits;
	if (nic->bell == bell)
		return;
	nic->bell = bell;
	nic_bell_write(arbiter, index / MFS_DIRECTIONS);
}

/* ---- windows ----------------------------------------------------------------------------------------------------- */

/* All programs share the table of destinations: how many numbers of it each may use. */
static uint32_t destinations_each(const struct mfs_arbiter *arbiter)
{
	return (MFS_DESTINATIONS_MAX - 1) / (arbiter->sessions + 1);
}

/* `alone`: in a window that no other program uses. */
static void place(struct mfs_arbiter *arbiter, struct task *task, uint32_t peer, bool alone)
{
	struct mfs_window *window = direction_at(arbiter, task->direction)->window;
	struct session *session = task->session;
	uint64_t key = key_mix(alone ? ~session->key_salt : session->key_salt, peer);

	task->destination =
		mfs_window_destination(window, key, alone ? key : key_mix(arbiter->key_secret, peer),
				       arbiter->now_ns);
	task->placed = true;
	if (mfs_window_destination_users(window, task->destination) == 1)
		session_direction_at(session, task->direction)->destinations++;
}

void nic_unplace(struct mfs_arbiter *arbiter, struct task *task)
{
	if (task->placed &&
	    mfs_window_destination_give(direction_at(arbiter, task->direction)->window, task->destination))
		session_direction_at(task->session, task->direction)->destinations--;
	task->placed = false;
}

/* Chooses a task's destination. Programs share the window of a destination, so that the first flow of all of
 * them goes first. A program whose tasks do not end gets windows of its own, which it may fill: still one for
 * each peer, since most often a single peer does not answer. A program that names more peers than its part of
 * the table gets a single window for the others. Tasks that do not say where they go share one, too. */
void nic_place(struct mfs_arbiter *arbiter, struct task *task, uint32_t peer)
{
	const struct session_direction *share = session_direction_at(task->session, task->direction);

	place(arbiter, task, peer, !peer || session_suspect(arbiter, task->session, task->direction));
	if (!peer || share->destinations <= destinations_each(arbiter))
		return;
	nic_unplace(arbiter, task);
	place(arbiter, task, 0, true);
}

static void flight_append(struct direction *direction, struct task *task)
{
	task->flight_next = NULL;
	task->flight_prev = direction->flight_last;
	*(direction->flight_last ? &direction->flight_last->flight_next : &direction->flight_first) = task;
	direction->flight_last = task;
}

static void flight_remove(struct direction *direction, struct task *task)
{
	*(task->flight_prev ? &task->flight_prev->flight_next : &direction->flight_first) = task->flight_next;
	*(task->flight_next ? &task->flight_next->flight_prev : &direction->flight_last) = task->flight_prev;
}

/* The task's bytes are no longer in the windows, and its destination may have room. */
static void window_left(struct mfs_arbiter *arbiter, struct task *task)
{
	struct direction *direction = direction_at(arbiter, task->direction);
	uint16_t waits;

	task->counted = false;
	if (task->taken)
		session_direction_at(task->session, task->direction)->taken_bytes -= task->passage.bytes;
	direction->in_flight_bytes -= task->bytes;
	flight_remove(direction, task);
	arbiter->nic[task->direction / MFS_DIRECTIONS].in_flight_class_bytes[task->wire_class] -= task->bytes;
	while ((waits = mfs_window_waiting_take(direction->window, task->destination)) !=
	       MFS_DESTINATION_NONE)
		mfs_rmlq_destination_open(direction->queue, waits);
	direction_touch(arbiter, task->direction);
}

static void load_count(struct mfs_arbiter *arbiter, const struct task *task)
{
	if (task->stage == MFS_STAGE_REUSE && task->direction % MFS_DIRECTIONS == MFS_DIRECTION_OUT)
		arbiter->nic[task->direction / MFS_DIRECTIONS].reuse_out_bytes += task->bytes;
	else if (task->load)
		direction_at(arbiter, task->direction)->load_bytes += task->bytes;
}

void nic_released(struct mfs_arbiter *arbiter, struct task *task, bool complete)
{
	struct direction *direction = direction_at(arbiter, task->direction);
	struct session_direction *share = session_direction_at(task->session, task->direction);

	share->in_flight_tasks--;
	word_add(&share->in_flight_bytes, -task->bytes);
	if (complete)
		direction->carried_bytes[task->wire_class] += task->bytes;
	else
		word_add(&share->permitted_bytes, -task->bytes);
	if (complete && arbiter->measures_load)
		load_count(arbiter, task);
	if (!task->counted)
		return;
	if (complete)
		mfs_window_complete(direction->window, &task->passage, arbiter->now_ns);
	else
		mfs_window_leave(direction->window, &task->passage, false, arbiter->now_ns);
	window_left(arbiter, task);
}

/* Writes off tasks that have not ended by the time given to their destination: the peer or the program is
 * dead, or the bytes were never sent. What was permitted first is due first, or nearly so. The oldest
 * tasks are therefore checked, whatever else their program does. */
static void direction_write_off(struct mfs_arbiter *arbiter, uint32_t index)
{
	struct direction *direction = direction_at(arbiter, index);
	struct task *next;

	for (struct task *task = direction->flight_first; task; task = next) {
		next = task->flight_next;
		if (arbiter->now_ns - task->passage.entered_ns < MFS_WINDOW_PATIENCE_NS)
			return;
		if (arbiter->now_ns < task->passage.due_ns)
			continue;
		session_direction_at(task->session, index)->overdue_ns = arbiter->now_ns;
		watch_open(arbiter, task->session, MFS_OPEN_WRITTEN_OFF);
		mfs_window_leave(direction->window, &task->passage, true, arbiter->now_ns);
		window_left(arbiter, task);
	}
}

void directions_write_off(struct mfs_arbiter *arbiter)
{
	for (direction_set left = arbiter->active_directions; left; left &= left - 1)
		direction_write_off(arbiter, direction_first(left));
}

/* ---- what waits -------------------------------------------------------------------------------------------------- */

/* The tier at submission. A request that becomes critical or is pruned while it waits stays where it was
 * counted: otherwise each promotion would have to walk over its tasks. */
static enum mfs_tier tier_of(const struct task *task)
{
	if (task->request && task->session->request[task->request - 1].pruned)
		return MFS_TIER_SCAVENGER;
	return task->stage <= MFS_STAGE_COLLECTIVE ? MFS_TIER_EARLY
	       : task->stage == MFS_STAGE_P2D      ? MFS_TIER_LAST
						   : MFS_TIER_SCAVENGER;
}

void nic_waits(struct mfs_arbiter *arbiter, struct task *task)
{
	task->tier = (uint8_t)tier_of(task);
	task->session->held_bytes += task->bytes;
	direction_at(arbiter, task->direction)->waiting_bytes[task->tier] += task->bytes;
}

void nic_waits_no_more(struct mfs_arbiter *arbiter, struct task *task)
{
	task->session->held_bytes -= task->bytes;
	direction_at(arbiter, task->direction)->waiting_bytes[task->tier] -= task->bytes;
}

/* ---- grants ------------------------------------------------------------------------------------------------------ */

/* Accounts for a task that is in flight from now on. */
void nic_taken(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick)
{
	uint32_t wire_class = pick->wire_class;
	struct session *session = task->session;
	struct nic *nic = &arbiter->nic[task->direction / MFS_DIRECTIONS];
	struct direction *direction = direction_at(arbiter, task->direction);
	struct session_direction *share = session_direction_at(session, task->direction);
	uint64_t bytes = task->taken ? credit_believed(arbiter, task) : task->bytes;

	fifo_remove(session, task);
	task->phase = TASK_IN_FLIGHT;
	task->wire_class = (uint8_t)wire_class;
	task->counted = true;
	/* the measured load includes what a promotion has put first */
	task->load = pick->tier == MFS_TIER_CRITICAL;
	nic_waits_no_more(arbiter, task);
	session->grants++;
	share->in_flight_tasks++;
	word_add(&share->in_flight_bytes, task->bytes);
	word_add(&share->permitted_bytes, task->bytes);
	arbiter->grants++;
	turn_went(arbiter, task);
	flight_append(direction, task);
	direction->in_flight_bytes += task->bytes;
	nic->in_flight_class_bytes[wire_class] += task->bytes;
	mfs_window_enter(direction->window, task->destination, bytes, arbiter->now_ns, &task->passage);
	if (task->taken)
		share->taken_bytes += task->passage.bytes;
	nic->granted_bytes[wire_class] += task->bytes;
	nic->grants[wire_class]++;
	if (!task->taken && arbiter->now_ns > task->submit_ns)
		nic->wait_ns += arbiter->now_ns - task->submit_ns;
	watch_permit(arbiter, task, pick);
}

void nic_permitted(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick)
{
	arbiter->asked_ns = arbiter->now_ns;
	credit_evaluated(arbiter, task, pick);
	nic_taken(arbiter, task, pick);
	session_permit(arbiter, task->session,
		       (uint64_t)task->generation << 32 | (uint32_t)(task - task->session->task),
		       pick->wire_class);
}

/* True if the NIC and the switches themselves hold the task back behind collectives, because it travels in
 * a lower class. It then need not wait here for them, and fills what they leave of the link. */
static bool kept_apart(const struct mfs_arbiter *arbiter, const struct mfs_pick *pick)
{
	return ((struct task *)(uintptr_t)pick->cookie)->class_marked &&
	       class_apart(arbiter, pick->wire_class);
}

/* Returns false if the task has to wait for collectives. Collectives are counted where they are sent, and
 * receive about as much as they send: while some are under way, both directions belong to them. */
static bool beside_collectives(struct mfs_arbiter *arbiter, uint32_t index, const struct mfs_pick *pick)
{
	struct nic *nic = &arbiter->nic[index / MFS_DIRECTIONS];
	struct direction *direction = direction_at(arbiter, index);
	uint64_t at_ns, promotion_ns;
	bool closed;

	if (pick->tier == MFS_TIER_CRITICAL || kept_apart(arbiter, pick))
		return true;
	closed = gate_closed(arbiter, index / MFS_DIRECTIONS, &at_ns);
	if (nic->gate.wire_bytes > 0.0 && !nic->bell) {
		/* read once more: what ended before the bell was set has not rung */
		direction_waits_set(arbiter, index, true);
		nic->gate.read = false;
		closed = gate_closed(arbiter, index / MFS_DIRECTIONS, &at_ns);
	}
	direction_waits_set(arbiter, index, nic->gate.wire_bytes > 0.0);
	if (!closed) {
		direction->closed_ns = 0;
		return true;
	}
	if (pick->tier != MFS_TIER_SCAVENGER && gate_aged(arbiter, direction, &at_ns)) {
		direction->aged_bytes += (double)pick->bytes;
		if (direction->aged_bytes * AGED_SHARE * 1e9 >=
		    (double)nic->rate_bytes_per_s * (double)arbiter->config.gate_max_ns) {
			direction->aged_bytes = 0.0;
			direction->closed_ns = arbiter->now_ns;
		}
		return true;
	}
	promotion_ns = mfs_rmlq_advance(direction->queue, arbiter->now_ns);
	direction->evaluate_ns = promotion_ns < at_ns ? promotion_ns : at_ns;
	if (direction->evaluate_ns <= arbiter->now_ns)
		direction->evaluate_ns = arbiter->now_ns + 1;
	return false;
}

/* Returns the first task of the chosen task's queue pair, which goes in its place. It gets the class of
 * the chosen task if that is the better one. */
static struct task *first_of_queue_pair(struct mfs_arbiter *arbiter, struct mfs_pick *pick)
{
	struct task *chosen = (struct task *)(uintptr_t)pick->cookie,
		    *first = fifo_first(chosen->session, chosen);
	uint8_t wire_class = pick->wire_class;

	/* A queue pair has one peer: tasks that contradict this have no order. But one peer may have two
	 * destinations: a client whose tasks were written off has another one there for what it sends from then on. */
	if (first->direction == chosen->direction && first->peer != chosen->peer)
		return chosen;
	/* it may wait in the queue of the other direction */
	if (first != chosen &&
	    mfs_rmlq_place(direction_at(arbiter, first->direction)->queue, first->handle, pick) == 0 &&
	    wire_class < pick->wire_class)
		pick->wire_class = wire_class;
	return first;
}

void direction_permit(struct mfs_arbiter *arbiter, uint32_t index)
{
	struct direction *direction = direction_at(arbiter, index);
	bool enforce = arbiter->config.mode == MFS_MODE_ENFORCE;
	struct mfs_pick pick, taken;
	struct task *task;
	uint16_t destination;

	direction->dirty = false;
	direction->evaluate_ns = MFS_TIME_NEVER;
	for (unsigned n = 0; mfs_rmlq_peek(direction->queue, arbiter->now_ns, &pick) == 0; n++) {
		if (n == GRANTS_PER_LOOP) {
			direction_touch(arbiter, index);
			return;
		}
		destination = ((struct task *)(uintptr_t)pick.cookie)->destination;
		task = first_of_queue_pair(arbiter, &pick);
		/* A task that takes the other direction, or that has another destination, goes with the
		 * chosen one, whatever room there is for it. */
		if (enforce && task->direction == index) {
			enum mfs_room room =
				mfs_window_room(direction->window, destination, task->bytes, pick.tier,
						arbiter->now_ns, &direction->evaluate_ns);

			if (room == MFS_ROOM_NIC_FULL)
				return;
			if (room == MFS_ROOM_DESTINATION_FULL) {
				mfs_rmlq_destination_close(direction->queue, destination);
				continue;
			}
		}
		if (enforce && !beside_collectives(arbiter, index, &pick))
			return;
		mfs_rmlq_take(direction_at(arbiter, task->direction)->queue, task->handle, arbiter->now_ns,
			      &taken);
		nic_permitted(arbiter, task, &pick);
	}
	direction->closed_ns = 0;
	direction_waits_set(arbiter, index, false);
}

int nic_find_or_add(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s,
		    struct nic_parts *parts)
{
	struct nic *nic;
	bool added;
	uint32_t i;
	int rc;

	for (i = 0; i < arbiter->nics; i++)
		if (!strcmp(arbiter->nic[i].name, name) && arbiter->nic[i].guid == guid)
			break;
	if (i == MFS_NICS_MAX)
		return -ENOSPC;
	nic = &arbiter->nic[i];
	added = i == arbiter->nics;
	if (added) {
		if (!parts->queue[0])
			return -ENOENT;
		for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
			nic->direction[d] = (struct direction){.queue = parts->queue[d],
							       .window = parts->window[d],
							       .evaluate_ns = MFS_TIME_NEVER};
			parts->queue[d] = NULL;
			parts->window[d] = NULL;
			direction_touch(arbiter, direction_index(i, d));
		}
		memcpy(nic->name, name, strlen(name) + 1);
		nic->guid = guid;
		nic->gate.busy_ns = arbiter->now_ns - arbiter->config.quiet_ns;
		nic->gate.read_ns = nic->gate.pause_read_ns = arbiter->now_ns;
		nic->measured_ns = arbiter->now_ns;
		nic_moved(arbiter, i);
		nic->rate_bytes_per_s =
			rate_bytes_per_s ? rate_bytes_per_s : arbiter->config.rate_default_bytes_per_s;
		arbiter->nics++;
	} else if (rate_bytes_per_s && rate_bytes_per_s != nic->rate_bytes_per_s) {
		for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
			rc = mfs_rmlq_set_rate(nic->direction[d].queue, rate_bytes_per_s);
			if (rc == 0)
				rc = mfs_window_set_rate(nic->direction[d].window, rate_bytes_per_s,
							 arbiter->now_ns);
			if (rc < 0)
				return rc;
			direction_touch(arbiter, direction_index(i, d));
		}
		nic->rate_bytes_per_s = rate_bytes_per_s;
	}
	for (uint32_t j = 0; j < arbiter->sessions; j++) {
		if (added)
			arbiter->session[j]->nic[i].read_ns = arbiter->now_ns;
		session_nic_write(arbiter, arbiter->session[j], i);
	}
	return (int)i;
}
