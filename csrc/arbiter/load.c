/* What each NIC carries, measured with every heartbeat: its use for display, the load that the policy's levels
 * depend on, and whether the NIC is in use at all. */
#include "state.h"

#include <math.h>

#define COUNTER_ABSURD_BYTES (1ull << 44)
/* how long a NIC counts as used; the same as USED_NS of a client (credit.c) */
#define NIC_USED_NS 10000000000ull
#define NICS_IN_TURN 4 /* unused NICs that are measured with each heartbeat */

static uint64_t usage_sum(const struct mfs_usage_half *half, uint32_t stages)
{
	uint64_t sum = 0;

	for (unsigned s = 0; s < MFS_STAGES_MAX; s++)
		if (stages >> s & 1)
			sum += atomic_load_explicit(&half->bytes[s], memory_order_relaxed);
	return sum;
}

struct moved_bytes {
	uint64_t unscheduled, reuse, others;
};

/* Reads a client's counters of completed bytes since they were last read: of stages that never wait, of
 * stage 1, and of all stages that may wait. */
static void counters_read(struct session *session, uint32_t index, struct moved_bytes *moved)
{
	const struct mfs_usage_half *completed = &mfs_usage_of(session->segment, index)->completed;
	uint64_t sums[3] = {usage_sum(completed, MFS_STAGES_UNSCHEDULED),
			    usage_sum(completed, 1u << MFS_STAGE_REUSE),
			    usage_sum(completed, ~MFS_STAGES_UNSCHEDULED)};
	struct session_nic *last = &session->nic[index];

	session->nics_counted &= ~(1ull << index);
	if (sums[0] != last->load_bytes || sums[2] != last->others_bytes)
		session->nics_counted |= 1ull << index;
	if (sums[0] - last->load_bytes < COUNTER_ABSURD_BYTES)
		moved->unscheduled += sums[0] - last->load_bytes;
	if (sums[1] - last->reuse_bytes < COUNTER_ABSURD_BYTES)
		moved->reuse += sums[1] - last->reuse_bytes;
	if (sums[2] - last->others_bytes < COUNTER_ABSURD_BYTES)
		moved->others += sums[2] - last->others_bytes;
	last->load_bytes = sums[0];
	last->reuse_bytes = sums[1];
	last->others_bytes = sums[2];
}

static uint64_t direction_carried(const struct direction *direction)
{
	uint64_t sum = 0;

	for (unsigned c = 0; c < MFS_CLASSES_MAX; c++)
		sum += direction->carried_bytes[c];
	return sum;
}

/* Measures how much of the link was really used, for display. It adds what tasks completed, by their
 * direction; what never waits, in both directions; what else completed without a permit, which mostly goes
 * out; and what bypasses, by the port's counters. A program counts the bytes of a task before the message
 * of its end is read here, so tasks in flight are excluded from the difference. */
static void nic_use_measure(const struct mfs_arbiter *arbiter, struct nic *nic,
			    const struct moved_bytes *moved, uint64_t elapsed_ns, double weight)
{
	struct direction *out = &nic->direction[MFS_DIRECTION_OUT], *in = &nic->direction[MFS_DIRECTION_IN];
	uint64_t asked =
		direction_carried(out) + direction_carried(in) + out->in_flight_bytes + in->in_flight_bytes;
	uint64_t unscheduled = moved->unscheduled, passed = 0;

	nic->others_bytes += moved->others;
	nic->unscheduled_carried_bytes += unscheduled;
	nic->unscheduled_used +=
		weight * ((double)unscheduled * 1e9 / ((double)elapsed_ns * (double)nic->rate_bytes_per_s) -
			  nic->unscheduled_used);
	if (nic->others_bytes > asked + nic->passed_bytes)
		passed = nic->others_bytes - asked - nic->passed_bytes;
	nic->passed_bytes += passed;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
		struct direction *direction = &nic->direction[d];
		uint64_t carried = direction_carried(direction);
		uint64_t bytes = carried - direction->measured_bytes + unscheduled +
				 (d == MFS_DIRECTION_OUT ? passed : 0);

		direction->measured_bytes = carried;
		direction->used +=
			weight *
			((double)bytes * 1e9 / ((double)elapsed_ns * (double)nic->rate_bytes_per_s) +
			 bypass_rate(arbiter, nic, d) / (double)nic->rate_bytes_per_s - direction->used);
	}
}

/* For the NICs that are due, one bit each. Clients whose counters have moved lately are read with every
 * heartbeat, the others in turn. */
static void all_counters_read(struct mfs_arbiter *arbiter, uint64_t due, struct moved_bytes *moved)
{
	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		struct session *session = arbiter->session[i];
		bool turn = i >= arbiter->slice && i < arbiter->slice_end;

		if (session->state == MFS_SEGMENT_ACTIVE)
			for (uint64_t nics = due & (turn ? ~0ull : session->nics_counted); nics;
			     nics &= nics - 1)
				counters_read(session, (uint32_t)__builtin_ctzll(nics),
					      &moved[__builtin_ctzll(nics)]);
	}
}

/* rho: moving average of the share of the rate taken by what goes before the last stage. Measured only if
 * the policy has levels, which depend on it. What bypasses counts as going before, as it never waits. One
 * long interval gives the same result as several short ones.
 *
 * The counters know no direction. Collectives count for both. Stage 1 counts as incoming, since the node
 * that reuses it reads it, except for outgoing tasks of that stage. */
static void nic_load_measure(const struct mfs_arbiter *arbiter, struct nic *nic,
			     const struct moved_bytes *moved, uint64_t elapsed_ns, double weight)
{
	uint64_t unscheduled = moved->unscheduled, reuse = moved->reuse;
	uint64_t reuse_out = nic->reuse_out_bytes < reuse ? nic->reuse_out_bytes : reuse;

	nic->reuse_out_bytes = 0;
	nic->direction[MFS_DIRECTION_OUT].load_bytes += reuse_out;
	nic->direction[MFS_DIRECTION_IN].load_bytes += reuse - reuse_out;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
		struct direction *direction = &nic->direction[d];
		double share = (double)(unscheduled + direction->load_bytes) * 1e9 /
			       ((double)elapsed_ns * (double)nic->rate_bytes_per_s);

		share += bypass_rate(arbiter, nic, d) / (double)nic->rate_bytes_per_s;
		direction->load_bytes = 0;
		direction->load += weight * ((share < 1.0 ? share : 1.0) - direction->load);
		mfs_rmlq_set_load(direction->queue, direction->load);
	}
}

/* Returns the NICs to measure now, one bit each. A heartbeat costs what is in use, not what exists: of the
 * NICs through which nothing has gone for ten seconds, it takes a few in turn. A permit on such a NIC
 * still reads the gate whenever one is asked for. */
static uint64_t nics_due(struct mfs_arbiter *arbiter, bool all)
{
	uint64_t exist = arbiter->nics ? ~0ull >> (64 - arbiter->nics) : 0,
		 due = all ? exist : arbiter->moved_nics;

	for (direction_set left = arbiter->active_directions | arbiter->used_directions; left;
	     left &= left - 1)
		due |= 1ull << direction_first(left) / MFS_DIRECTIONS;
	for (uint32_t n = 0; n < NICS_IN_TURN && n < arbiter->nics; n++) {
		arbiter->nic_slice = (arbiter->nic_slice + 1) % arbiter->nics;
		due |= 1ull << arbiter->nic_slice;
	}
	for (uint64_t left = due; left; left &= left - 1)
		if (arbiter->nic[__builtin_ctzll(left)].measured_ns == arbiter->now_ns)
			due &= ~(left & -left);
	return arbiter->counted_ns == arbiter->now_ns ? 0 : due;
}

static void nic_measure(struct mfs_arbiter *arbiter, uint32_t index, const struct moved_bytes *moved)
{
	struct nic *nic = &arbiter->nic[index];
	uint64_t since_ns = nic->measured_ns > arbiter->counted_ns ? nic->measured_ns : arbiter->counted_ns;
	uint64_t elapsed_ns = arbiter->now_ns - since_ns;
	double weight = -expm1(-(double)elapsed_ns / (double)arbiter->config.load_time_constant_ns);

	nic->measured_ns = arbiter->now_ns;
	nic_use_measure(arbiter, nic, moved, elapsed_ns, weight);
	if (arbiter->measures_load)
		nic_load_measure(arbiter, nic, moved, elapsed_ns, weight);
	gate_tick(arbiter, index, elapsed_ns, weight);
	if (moved->unscheduled || moved->reuse || moved->others || nic->gate.members)
		nic_moved(arbiter, index);
	else if (arbiter->now_ns - nic->moved_ns >= NIC_USED_NS &&
		 arbiter->now_ns >= nic->bypass.valid_until_ns)
		arbiter->moved_nics &= ~(1ull << index);
}

void nics_measure(struct mfs_arbiter *arbiter, bool all)
{
	struct moved_bytes moved[MFS_NICS_MAX] = {{0}};
	uint64_t due = nics_due(arbiter, all);

	all_counters_read(arbiter, due, moved);
	for (; due; due &= due - 1)
		nic_measure(arbiter, (uint32_t)__builtin_ctzll(due), &moved[__builtin_ctzll(due)]);
	directions_write_off(arbiter);
}
