/* The gate: whether held flows may go beside collectives, which never wait.
 *
 * All that is known of collectives is what their senders count in their own memory, and not all of it
 * completes there: a program may signal one work request in many, poll for completions rarely, have died,
 * or lie. So the gate goes by bytes that can really be under way, and every possible error is bounded:
 *
 *  - Only collectives count. Control messages are small and often unsignaled: they close nothing.
 *  - Posted bytes count as on the wire for 4/3 of the time that the wire takes for them, or less if they
 *    complete sooner. No client is believed to have more than the NIC can carry.
 *  - Between the messages of one collective the link falls silent for moments that are worth waiting
 *    through, since what starts then is in the way of the next message. Such a pause is paid for from a
 *    twelfth of the time in which the link is free. Where no messages follow the pauses they are skipped,
 *    so what collectives leave of the link is used.
 *  - Whatever collectives seem to need, a direction is closed for no longer than gate_max, and then for as
 *    long again after the first held flow, or a twentieth of the link, has gone. What is pruned or in the
 *    background gets no such turn: it waits for what collectives leave, or for the shim's hold budget. */
#include "state.h"

#define ABSURD_BYTES (1ull << 44)
#define DRAIN_SHARE 0.75
#define PAUSE_SHARE 12 /* one part in this many of the time in which collectives leave the link free */
#define SKIPPED_MAX 16
#define SCAN_NS 10000000ull
#define SCAN_SLICE 128          /* clients that each scan reads, besides those known to have collectives */
#define MEMBER_NS 5000000000ull /* a client without a collective for this long is read only by scans */
#define AGED_SHARE 20

static uint64_t collective_posted(const struct session *session, uint32_t index)
{
	return mfs_usage_posted(session->segment, index, MFS_STAGE_COLLECTIVE);
}

static uint64_t collective_completed(const struct session *session, uint32_t index)
{
	return mfs_usage_completed(session->segment, index, MFS_STAGE_COLLECTIVE);
}

static bool moved(const struct session *session, uint32_t index)
{
	return session->state == MFS_SEGMENT_ACTIVE &&
	       (collective_posted(session, index) != session->nic[index].posted ||
		collective_completed(session, index) != session->nic[index].completed);
}

static void member_set(struct mfs_arbiter *arbiter, uint32_t index, struct session *session, bool member)
{
	session->nic[index].member = member;
	session_gate_write(arbiter, session, index);
}

/* Finds the clients that have had collectives lately. The counters of the others need not be read for each
 * permit, and they need not ring. */
static void members_scan(struct mfs_arbiter *arbiter, uint32_t index)
{
	struct gate *gate = &arbiter->nic[index].gate;
	uint32_t end;

	gate->scan_ns = arbiter->now_ns;
	for (uint32_t m = gate->members; m-- > 0;) {
		struct session *session = gate->member[m];

		if (moved(session, index) || arbiter->now_ns - session->nic[index].moved_ns < MEMBER_NS)
			continue;
		gate->member[m] = gate->member[--gate->members];
		member_set(arbiter, index, session, false);
	}
	if (gate->slice >= arbiter->sessions)
		gate->slice = 0;
	end = gate->slice + SCAN_SLICE < arbiter->sessions ? gate->slice + SCAN_SLICE : arbiter->sessions;
	for (; gate->slice < end; gate->slice++) {
		struct session *session = arbiter->session[gate->slice];

		if (session->nic[index].member || !moved(session, index))
			continue;
		gate->member[gate->members++] = session;
		member_set(arbiter, index, session, true);
	}
	/* The bell and the counters, which are read next, are a Dekker pair like arbiter_asleep: abi.h. */
	atomic_thread_fence(memory_order_seq_cst);
}

void gate_forget(struct mfs_arbiter *arbiter, struct session *session)
{
	for (uint32_t i = 0; i < arbiter->nics; i++) {
		struct gate *gate = &arbiter->nic[i].gate;

		for (uint32_t m = 0; m < gate->members; m++)
			if (gate->member[m] == session)
				gate->member[m--] = gate->member[--gate->members];
		session->nic[i].member = false;
	}
}

/* Returns what the client has posted since its counters were last read, as far as it can be believed. */
static double member_read(struct mfs_arbiter *arbiter, uint32_t index, struct session *session)
{
	struct nic *nic = &arbiter->nic[index];
	struct session_nic *last = &session->nic[index];
	/* completed first: what is posted and completed in between then seems to be in flight, not the reverse */
	uint64_t completed = collective_completed(session, index);
	uint64_t posted = collective_posted(session, index);
	uint64_t news = posted - last->posted;
	double most = (double)nic->rate_bytes_per_s / 1e9 *
		      (double)(arbiter->now_ns - last->read_ns + arbiter->config.gate_max_ns);

	if (posted != last->posted || completed != last->completed)
		last->moved_ns = nic->gate.busy_ns = arbiter->now_ns;
	last->posted = posted;
	last->completed = completed;
	last->read_ns = arbiter->now_ns;
	if (posted - completed < ABSURD_BYTES)
		nic->gate.pending_bytes += posted - completed;
	if (news > ABSURD_BYTES)
		return 0.0;
	return (double)news < most ? (double)news : most;
}

static void gate_read(struct mfs_arbiter *arbiter, uint32_t index)
{
	struct nic *nic = &arbiter->nic[index];
	struct gate *gate = &nic->gate;
	double rate = (double)nic->rate_bytes_per_s / 1e9;
	double most = rate * DRAIN_SHARE * 2 * (double)arbiter->config.gate_max_ns, news = 0.0;

	if (gate->read && gate->read_ns == arbiter->now_ns) /* once a turn, however many flows go */
		return;
	gate->read = true;
	if (arbiter->now_ns - gate->scan_ns >= SCAN_NS)
		members_scan(arbiter, index);
	gate->wire_bytes -= (double)(arbiter->now_ns - gate->read_ns) * rate * DRAIN_SHARE;
	gate->read_ns = arbiter->now_ns;
	if (gate->wire_bytes < 0.0)
		gate->wire_bytes = 0.0;
	gate->pending_bytes = 0;
	for (uint32_t m = 0; m < gate->members; m++)
		if (gate->member[m]->state == MFS_SEGMENT_ACTIVE)
			news += member_read(arbiter, index, gate->member[m]);
	gate->moved_bytes += (uint64_t)news;
	gate->wire_bytes += news;
	if (gate->wire_bytes > most)
		gate->wire_bytes = most;
	if (gate->wire_bytes > (double)gate->pending_bytes)
		gate->wire_bytes = (double)gate->pending_bytes;
	if (gate->wire_bytes >= 1.0)
		gate->busy_ns = arbiter->now_ns;
	else
		gate->wire_bytes = 0.0;
}

/* A pause ended without a message, so it was for nothing: the next one is skipped, then two, up to SKIPPED_MAX. */
static void pause_ran_out(struct gate *gate)
{
	gate->skips_after = gate->skips_after ? gate->skips_after * 2 : 1;
	if (gate->skips_after > SKIPPED_MAX)
		gate->skips_after = SKIPPED_MAX;
	gate->skips = gate->skips_after;
}

/* Counts the time since the last call: a current pause uses up the allowance, otherwise some is earned. */
static void pause_count(struct mfs_arbiter *arbiter, struct gate *gate, bool paused)
{
	uint64_t elapsed_ns = arbiter->now_ns - gate->pause_read_ns, most_ns = 4 * arbiter->config.quiet_ns;

	gate->pause_read_ns = arbiter->now_ns;
	if (paused)
		gate->pause_ns -= elapsed_ns < gate->pause_ns ? elapsed_ns : gate->pause_ns;
	else
		gate->pause_ns += elapsed_ns / PAUSE_SHARE;
	if (gate->pause_ns > most_ns)
		gate->pause_ns = most_ns;
}

bool gate_closed(struct mfs_arbiter *arbiter, uint32_t index, uint64_t *at_ns)
{
	struct nic *nic = &arbiter->nic[index];
	struct gate *gate = &nic->gate;
	bool paused = gate->paused;

	gate_read(arbiter, index);
	gate->paused = false;
	if (gate->wire_bytes > 0.0) {
		if (paused)
			gate->skips_after = 0;
		gate->decided = false;
		/* the link is not free: nothing is earned or used up */
		gate->pause_read_ns = arbiter->now_ns;
		*at_ns = arbiter->now_ns + 1 +
			 (uint64_t)(gate->wire_bytes / ((double)nic->rate_bytes_per_s / 1e9 * DRAIN_SHARE));
		return true;
	}
	pause_count(arbiter, gate, paused);
	if (!gate->decided) { /* the first decision since the last message */
		gate->decided = true;
		gate->skipped = gate->skips > 0;
		gate->skips -= gate->skipped;
	}
	if (arbiter->now_ns - gate->busy_ns >= arbiter->config.quiet_ns) {
		if (paused)
			pause_ran_out(gate);
		return false;
	}
	if (!gate->pause_ns || gate->skipped)
		return false;
	gate->paused = true;
	*at_ns = gate->busy_ns + arbiter->config.quiet_ns;
	if (*at_ns > arbiter->now_ns + gate->pause_ns)
		*at_ns = arbiter->now_ns + gate->pause_ns;
	return true;
}

bool gate_aged(struct mfs_arbiter *arbiter, struct direction *direction, uint64_t *at_ns)
{
	if (!direction->closed_ns)
		direction->closed_ns = arbiter->now_ns;
	if (arbiter->now_ns - direction->closed_ns >= arbiter->config.gate_max_ns)
		return true;
	if (direction->closed_ns + arbiter->config.gate_max_ns < *at_ns)
		*at_ns = direction->closed_ns + arbiter->config.gate_max_ns;
	return false;
}

/* Measures the rate of collectives, and sets the rate at which the windows expect the NIC to send
 * permitted bytes: the link's rate, less collectives and what bypasses. */
void gate_tick(struct mfs_arbiter *arbiter, uint32_t index, uint64_t elapsed_ns, double weight)
{
	struct nic *nic = &arbiter->nic[index];
	struct gate *gate = &nic->gate;

	gate_read(arbiter, index);
	gate->rate += weight * ((double)gate->moved_bytes * 1e9 / (double)elapsed_ns - gate->rate);
	gate->moved_bytes = 0;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		mfs_window_set_drain(nic->direction[d].window,
				     (double)nic->rate_bytes_per_s - gate->rate -
					     bypass_rate(arbiter, nic, d),
				     arbiter->now_ns);
}
