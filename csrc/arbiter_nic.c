/* The arbiter's view of a NIC: what is in flight each way, whether held flows may go, which goes first. */
#include "arbiter_watch.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define GRANTS_PER_LOOP 256
#define UNSCHEDULED_ABSURD_BYTES (1ull << 44)
/* A client that has bytes in flight should finish some within this plus four times their time on the wire. */
#define PROGRESS_NS 1e9
#define PROGRESS_BYTES_MAX (1ull << 31) /* the largest RDMA message */

static uint64_t usage_sum(const struct mfs_usage_half *half, uint32_t stages)
{
	uint64_t sum = 0;

	for (unsigned s = 0; s < MFS_STAGES_MAX; s++)
		if (stages >> s & 1)
			sum += atomic_load_explicit(&half->bytes[s], memory_order_relaxed);
	return sum;
}

/* Looks at the clients' counters of stages that never wait; true when some are in flight or were within quiet_ns. */
static bool nic_unscheduled_busy(struct mfs_arbiter *arbiter, uint32_t index)
{
	struct nic *nic = &arbiter->nic[index];
	uint64_t in_flight = 0;

	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		struct session *session = arbiter->session[i];
		struct session_nic *last = &session->nic[index];

		if (session->state != MFS_SEGMENT_ACTIVE)
			continue;

		/* completed first: a request that is posted and completed in between then seems in flight, not the reverse */
		uint64_t completed = usage_sum(&session->segment->usage[index].completed, MFS_STAGES_UNSCHEDULED);
		uint64_t posted = usage_sum(&session->segment->usage[index].posted, MFS_STAGES_UNSCHEDULED);
		uint64_t difference = posted - completed;

		if (posted != last->posted || completed != last->completed) {
			last->posted = posted;
			last->completed = completed;
			last->changed_ns = arbiter->now_ns;
			nic->unscheduled_ns = arbiter->now_ns;
		}
		/* Counters that stand still: the client is dead, stopped, lies, or waits for a receiver that takes nothing, and
		 * then the link is free. */
		if (difference == 0 || difference > UNSCHEDULED_ABSURD_BYTES ||
		    arbiter->now_ns - last->changed_ns > arbiter->config.stuck_ns)
			continue;
		in_flight += difference;
		nic->unscheduled_ns = arbiter->now_ns;
	}
	nic->unscheduled_bytes = in_flight;
	return in_flight > 0 || arbiter->now_ns - nic->unscheduled_ns < arbiter->config.quiet_ns;
}

void nic_gates_write(struct mfs_arbiter *arbiter, uint32_t index)
{
	uint32_t word = arbiter->gate_mask | (arbiter->nic[index].bell ? MFS_GATE_IDLE_BELL : 0);

	for (uint32_t i = 0; i < arbiter->sessions; i++)
		if (arbiter->session[i]->state == MFS_SEGMENT_ACTIVE)
			atomic_store_explicit(&arbiter->session[i]->segment->gate[index].word, word, memory_order_release);
	/* The bell and the counters are a Dekker pair like arbiter_asleep: abi.h. */
	atomic_thread_fence(memory_order_seq_cst);
}

static void way_waits_set(struct mfs_arbiter *arbiter, uint32_t index, bool waits)
{
	struct nic *nic = &arbiter->nic[index / MFS_DIRECTIONS];
	bool bell = false;

	way_at(arbiter, index)->waits = waits;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		bell |= nic->way[d].waits;
	if (nic->bell == bell)
		return;
	nic->bell = bell;
	nic_gates_write(arbiter, index / MFS_DIRECTIONS);
}

/* The task's bytes fill the window no more. */
static void window_leave(struct mfs_arbiter *arbiter, struct task *task)
{
	struct way *way = way_at(arbiter, task->way);

	if (!task->counted)
		return;
	task->counted = false;
	way->in_flight_bytes -= task->bytes;
	arbiter->nic[task->way / MFS_DIRECTIONS].in_flight_class_bytes[task->wire_class] -= task->bytes;
	way->dirty = true;
}

void nic_released(struct mfs_arbiter *arbiter, struct task *task, bool complete)
{
	struct way *way = way_at(arbiter, task->way);
	struct session_way *share = &task->session->way[task->way];

	share->in_flight_tasks--;
	share->in_flight_bytes -= task->bytes;
	share->progress_ns = arbiter->now_ns;
	if (complete)
		way->carried_bytes[task->wire_class] += task->bytes;
	if (complete && task->stage == MFS_STAGE_REUSE && task->way % MFS_DIRECTIONS == MFS_DIRECTION_OUT)
		arbiter->nic[task->way / MFS_DIRECTIONS].reuse_out_bytes += task->bytes;
	else if (complete && task->load)
		way->load_bytes += task->bytes;
	if (share->in_flight_tasks == 0)
		share->written_off = false;
	window_leave(arbiter, task);
}

/* Books a task that is in flight from now on. */
void nic_taken(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick)
{
	uint32_t wire_class = pick->wire_class;
	struct session *session = task->session;
	struct nic *nic = &arbiter->nic[task->way / MFS_DIRECTIONS];
	struct session_way *share = &session->way[task->way];

	task->phase = TASK_IN_FLIGHT;
	task->wire_class = (uint8_t)wire_class;
	task->counted = !share->written_off;
	/* Where the paper's rules hold, rho counts what promotion has put first, too. */
	task->load = pick->tier == MFS_TIER_CRITICAL && arbiter->config.policy.variant == MFS_VARIANT_PAPER;
	session->held_bytes -= task->bytes;
	session->grants++;
	share->in_flight_tasks++;
	share->in_flight_bytes += task->bytes;
	share->progress_ns = arbiter->now_ns;
	arbiter->grants++;
	if (task->counted) {
		way_at(arbiter, task->way)->in_flight_bytes += task->bytes;
		nic->in_flight_class_bytes[wire_class] += task->bytes;
	}
	nic->granted_bytes[wire_class] += task->bytes;
	nic->grants[wire_class]++;
	if (!task->taken && arbiter->now_ns > task->submit_ns)
		nic->wait_ns += arbiter->now_ns - task->submit_ns;
	watch_permit(arbiter, task, pick);
}

void nic_granted(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick)
{
	arbiter->asked_ns = arbiter->now_ns;
	credit_judged(arbiter, task, pick);
	nic_taken(arbiter, task, pick);
	session_grant(arbiter, task->session, (uint64_t)task->generation << 32 | (uint32_t)(task - task->session->task),
		      pick->wire_class);
}

/* Whether NIC and switches hold the task back behind collectives by themselves, because it travels in a lower class. Then
 * it need not wait here until they are done, and fills what they leave of the link. */
static bool kept_apart(const struct mfs_arbiter *arbiter, const struct mfs_pick *pick)
{
	return ((struct task *)(uintptr_t)pick->cookie)->laned && class_apart(arbiter, pick->wire_class);
}

/* Unscheduled bytes are counted where they are sent, and collectives receive about what they send: while some are under
 * way, both directions are theirs. */
void way_grant(struct mfs_arbiter *arbiter, uint32_t index)
{
	struct nic *nic = &arbiter->nic[index / MFS_DIRECTIONS];
	struct way *way = way_at(arbiter, index);
	bool enforce = arbiter->config.mode == MFS_MODE_ENFORCE;
	bool looked = false, busy = false;
	struct mfs_pick pick;

	way->dirty = false;
	way->look_ns = MFS_TIME_NEVER;
	for (unsigned n = 0;; n++) {
		if (mfs_rmlq_peek(way->queue, arbiter->now_ns, &pick) < 0) {
			way_waits_set(arbiter, index, false);
			return;
		}
		if (n == GRANTS_PER_LOOP) {
			way->dirty = true;
			return;
		}
		if (enforce && way->in_flight_bytes > 0 && way->in_flight_bytes + pick.bytes > nic->window_bytes)
			return; /* a completion will come */
		if (enforce && !looked) {
			looked = true;
			busy = nic_unscheduled_busy(arbiter, index / MFS_DIRECTIONS);
			if (nic->unscheduled_bytes > 0 && !nic->bell) {
				way_waits_set(arbiter, index, true);
				busy = nic_unscheduled_busy(arbiter, index / MFS_DIRECTIONS);
			}
			way_waits_set(arbiter, index, nic->unscheduled_bytes > 0);
		}
		if (busy && pick.tier != MFS_TIER_CRITICAL && !kept_apart(arbiter, &pick)) {
			uint64_t promotion_ns = mfs_rmlq_advance(way->queue, arbiter->now_ns);

			way->look_ns = nic->unscheduled_bytes ? arbiter->now_ns + arbiter->config.stuck_ns
							      : nic->unscheduled_ns + arbiter->config.quiet_ns;
			if (promotion_ns < way->look_ns)
				way->look_ns = promotion_ns;
			if (way->look_ns <= arbiter->now_ns)
				way->look_ns = arbiter->now_ns + 1;
			return;
		}
		mfs_rmlq_pick(way->queue, arbiter->now_ns, &pick);
		nic_granted(arbiter, (struct task *)(uintptr_t)pick.cookie, &pick);
	}
}

/* The clients' counters of completed bytes since they were last read: of stages that never wait, of stage 1, and of all
 * that may wait. */
static void nic_counters_read(struct mfs_arbiter *arbiter, uint32_t index, uint64_t *unscheduled, uint64_t *reuse,
			      uint64_t *others)
{
	*unscheduled = *reuse = *others = 0;
	for (uint32_t j = 0; j < arbiter->sessions; j++) {
		struct session *session = arbiter->session[j];
		struct session_nic *last = &session->nic[index];

		if (session->state != MFS_SEGMENT_ACTIVE)
			continue;

		const struct mfs_usage_half *completed = &session->segment->usage[index].completed;
		uint64_t sums[3] = {usage_sum(completed, MFS_STAGES_UNSCHEDULED), usage_sum(completed, 1u << MFS_STAGE_REUSE),
				    usage_sum(completed, ~MFS_STAGES_UNSCHEDULED)};

		if (sums[0] - last->load_bytes < UNSCHEDULED_ABSURD_BYTES)
			*unscheduled += sums[0] - last->load_bytes;
		if (sums[1] - last->reuse_bytes < UNSCHEDULED_ABSURD_BYTES)
			*reuse += sums[1] - last->reuse_bytes;
		if (sums[2] - last->others_bytes < UNSCHEDULED_ABSURD_BYTES)
			*others += sums[2] - last->others_bytes;
		last->load_bytes = sums[0];
		last->reuse_bytes = sums[1];
		last->others_bytes = sums[2];
	}
}

static uint64_t way_carried(const struct way *way)
{
	uint64_t sum = 0;

	for (unsigned c = 0; c < MFS_CLASSES_MAX; c++)
		sum += way->carried_bytes[c];
	return sum;
}

/* How much of the link was really taken, for people: what tasks completed, by their direction; what never waits, in both;
 * and what else completed without a permit, which mostly goes out. A task's bytes are counted by its program before its
 * end is heard of here, so those in flight are left out of the difference. */
static void nic_use_measure(struct nic *nic, uint64_t unscheduled, uint64_t others, uint64_t elapsed_ns, double weight)
{
	struct way *out = &nic->way[MFS_DIRECTION_OUT], *in = &nic->way[MFS_DIRECTION_IN];
	uint64_t asked = way_carried(out) + way_carried(in) + out->in_flight_bytes + in->in_flight_bytes;
	uint64_t passed = 0;

	nic->others_bytes += others;
	nic->unscheduled_carried_bytes += unscheduled;
	if (nic->others_bytes > asked + nic->passed_bytes)
		passed = nic->others_bytes - asked - nic->passed_bytes;
	nic->passed_bytes += passed;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
		struct way *way = &nic->way[d];
		uint64_t carried = way_carried(way);
		uint64_t bytes = carried - way->measured_bytes + unscheduled + (d == MFS_DIRECTION_OUT ? passed : 0);

		way->measured_bytes = carried;
		way->used += weight * ((double)bytes * 1e9 / ((double)elapsed_ns * (double)nic->rate_bytes_per_s) - way->used);
	}
}

/* rho: moving average of the share of the rate that was taken by what goes before the last stage. The weight is that of
 * mfsd.policy's Load.observe: one long look and several short ones come to the same.
 *
 * The counters know no direction. Collectives count for both, and stage 1 comes in (it is read by the node that reuses it)
 * as far as no outgoing task of that stage says otherwise. */
static void nic_loads_measure(struct mfs_arbiter *arbiter)
{
	uint64_t elapsed_ns = arbiter->now_ns - arbiter->load_read_ns;
	double weight = -expm1(-(double)elapsed_ns / (double)arbiter->config.load_time_constant_ns);

	if (elapsed_ns == 0)
		return;
	arbiter->load_read_ns = arbiter->now_ns;
	for (uint32_t i = 0; i < arbiter->nics; i++) {
		struct nic *nic = &arbiter->nic[i];
		struct way *out = &nic->way[MFS_DIRECTION_OUT], *in = &nic->way[MFS_DIRECTION_IN];
		uint64_t unscheduled, reuse, reuse_out, others;

		nic_counters_read(arbiter, i, &unscheduled, &reuse, &others);
		nic_use_measure(nic, unscheduled, others, elapsed_ns, weight);
		reuse_out = nic->reuse_out_bytes < reuse ? nic->reuse_out_bytes : reuse;
		nic->reuse_out_bytes = 0;
		out->load_bytes += reuse_out;
		in->load_bytes += reuse - reuse_out;
		for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
			struct way *way = &nic->way[d];
			double share = (double)(unscheduled + way->load_bytes) * 1e9 /
				       ((double)elapsed_ns * (double)nic->rate_bytes_per_s);

			way->load_bytes = 0;
			way->load += weight * ((share < 1.0 ? share : 1.0) - way->load);
			mfs_rmlq_set_load(way->queue, way->load);
		}
	}
}

/* A client that was granted bytes of a way and finishes none must not fill its window for ever. */
static void way_write_off(struct mfs_arbiter *arbiter, uint32_t index, struct session *session)
{
	struct nic *nic = &arbiter->nic[index / MFS_DIRECTIONS];
	struct session_way *share = &session->way[index];
	uint64_t bytes = share->in_flight_bytes < PROGRESS_BYTES_MAX ? share->in_flight_bytes : PROGRESS_BYTES_MAX;
	double patience_ns = PROGRESS_NS + 4e9 * (double)bytes / (double)nic->rate_bytes_per_s;

	if (share->in_flight_tasks == 0 || share->written_off ||
	    (double)(arbiter->now_ns - share->progress_ns) < patience_ns)
		return;
	share->written_off = true;
	watch_open(arbiter, session, MFS_OPEN_WRITTEN_OFF);
	for (unsigned i = 0; i < MFS_TASKS_MAX; i++) {
		struct task *task = &session->task[i];

		if (task->phase == TASK_IN_FLIGHT && task->way == index)
			window_leave(arbiter, task);
	}
}

void nic_tick(struct mfs_arbiter *arbiter)
{
	nic_loads_measure(arbiter);
	for (uint32_t i = 0; i < arbiter->nics; i++)
		nic_unscheduled_busy(arbiter, i);
	for (uint32_t i = 0; i < ways_count(arbiter); i++)
		for (uint32_t j = 0; j < arbiter->sessions; j++)
			way_write_off(arbiter, i, arbiter->session[j]);
}

static void nic_rate_set(struct mfs_arbiter *arbiter, struct nic *nic, uint64_t rate_bytes_per_s)
{
	double window = (double)rate_bytes_per_s * (double)arbiter->config.window_ns / 1e9;

	nic->rate_bytes_per_s = rate_bytes_per_s;
	nic->window_bytes = window < 1e15 ? (uint64_t)window : (uint64_t)1e15;
	if (nic->window_bytes < arbiter->config.window_bytes_min)
		nic->window_bytes = arbiter->config.window_bytes_min;
}

int nic_find_or_add(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s,
		    struct mfs_rmlq *queues[MFS_DIRECTIONS])
{
	struct nic *nic;
	uint32_t i;
	int rc;

	for (i = 0; i < arbiter->nics; i++)
		if (!strcmp(arbiter->nic[i].name, name) && arbiter->nic[i].guid == guid)
			break;
	if (i == MFS_NICS_MAX)
		return -ENOSPC;
	nic = &arbiter->nic[i];
	if (i == arbiter->nics) {
		if (!queues[0])
			return -ENOENT;
		for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
			nic->way[d] = (struct way){.queue = queues[d], .look_ns = MFS_TIME_NEVER};
			queues[d] = NULL;
		}
		memcpy(nic->name, name, strlen(name) + 1);
		nic->guid = guid;
		nic->unscheduled_ns = arbiter->now_ns - arbiter->config.quiet_ns;
		nic_rate_set(arbiter, nic, rate_bytes_per_s ? rate_bytes_per_s : arbiter->config.rate_default_bytes_per_s);
		arbiter->nics++;
	} else if (rate_bytes_per_s && rate_bytes_per_s != nic->rate_bytes_per_s) {
		for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
			rc = mfs_rmlq_set_rate(nic->way[d].queue, rate_bytes_per_s);
			if (rc < 0)
				return rc;
			nic->way[d].dirty = true;
		}
		nic_rate_set(arbiter, nic, rate_bytes_per_s);
	}
	for (uint32_t j = 0; j < arbiter->sessions; j++)
		session_nic_write(arbiter, arbiter->session[j], i);
	return (int)i;
}
