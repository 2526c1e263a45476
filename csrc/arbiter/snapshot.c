/* Copies of the arbiter's state for readers: the daemon's status, its Python. Every function is one
 * bounded command. It only copies; the caller evaluates the copy on its own thread. */
#include "state.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#define TASK_SLOTS_PER_SNAPSHOT 1024u
#define FLOWS_PER_SNAPSHOT 1024u

static uint64_t thread_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static int run_stats(struct mfs_arbiter *arbiter, void *argument)
{
	struct mfs_arbiter_stats *stats = argument;

	*stats = (struct mfs_arbiter_stats){
		.loops = arbiter->loops,
		.wakeups = arbiter->wakeups,
		.messages = arbiter->messages,
		.grants = arbiter->grants,
		.cpu_ns = arbiter->running ? thread_cpu_ns() : 0,
		.clients = arbiter->sessions,
		.nics = arbiter->nics,
	};
	for (uint32_t d = 0; d < direction_index(arbiter->nics, 0); d++)
		stats->waiting_tasks += mfs_rmlq_waiting(direction_at(arbiter, d)->queue);
	return 0;
}

int mfs_arbiter_stats(struct mfs_arbiter *arbiter, struct mfs_arbiter_stats *stats)
{
	return arbiter_command(arbiter, run_stats, stats);
}

struct nic_stats_argument {
	uint32_t nic;
	struct mfs_nic_stats *stats;
};

static int run_nic_stats(struct mfs_arbiter *arbiter, void *argument)
{
	struct nic_stats_argument *a = argument;
	struct mfs_nic_stats *stats = a->stats;
	struct mfs_rmlq_stats queue;
	struct nic *nic;

	if (a->nic >= arbiter->nics)
		return -ENOENT;
	nic = &arbiter->nic[a->nic];
	memset(stats, 0, sizeof(*stats));
	memcpy(stats->name, nic->name, sizeof(stats->name));
	stats->guid = nic->guid;
	stats->rate_bytes_per_s = nic->rate_bytes_per_s;
	stats->window_bytes = mfs_window_bytes(nic->direction[0].window);
	stats->unscheduled_in_flight_bytes = nic->gate.pending_bytes;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
		mfs_rmlq_stats_begin(nic->direction[d].queue, &queue);
		stats->in_flight_bytes[d] = nic->direction[d].in_flight_bytes;
		stats->load[d] = arbiter->measures_load ? nic->direction[d].load : -1.0;
		stats->used[d] = nic->direction[d].used;
		memcpy(stats->carried_bytes[d], nic->direction[d].carried_bytes,
		       sizeof(stats->carried_bytes[d]));
		stats->promotions += queue.promotions;
	}
	memcpy(stats->in_flight_class_bytes, nic->in_flight_class_bytes,
	       sizeof(stats->in_flight_class_bytes));
	memcpy(stats->granted_bytes, nic->granted_bytes, sizeof(stats->granted_bytes));
	memcpy(stats->grants, nic->grants, sizeof(stats->grants));
	stats->wait_ns = nic->wait_ns;
	stats->unscheduled_carried_bytes = nic->unscheduled_carried_bytes;
	stats->passed_bytes = nic->passed_bytes;
	return 0;
}

struct held_argument {
	uint32_t direction, next;
	struct mfs_rmlq_stats queue;
};

static int run_held(struct mfs_arbiter *arbiter, void *argument)
{
	struct held_argument *a = argument;

	a->next = mfs_rmlq_stats_add(direction_at(arbiter, a->direction)->queue, a->next, FLOWS_PER_SNAPSHOT,
				     &a->queue);
	return 0;
}

/* Held flows are counted in several commands: counting a full queue in one would block the thread for
 * milliseconds. So what comes or goes meanwhile may be missed or counted twice. */
int mfs_arbiter_nic_stats(struct mfs_arbiter *arbiter, uint32_t nic, struct mfs_nic_stats *stats)
{
	struct nic_stats_argument a = {.nic = nic, .stats = stats};
	int rc = arbiter_command(arbiter, run_nic_stats, &a);

	for (unsigned d = 0; d < MFS_DIRECTIONS && rc == 0; d++) {
		struct held_argument held = {.direction = direction_index(nic, d)};

		do
			rc = arbiter_command(arbiter, run_held, &held);
		while (rc == 0 && held.next);
		for (unsigned c = 0; c < MFS_CLASSES_MAX; c++) {
			stats->held_bytes[c] += held.queue.waiting_bytes[c];
			stats->held_tasks[c] += held.queue.waiting_tasks[c];
		}
	}
	return rc;
}

struct client_stats_argument {
	uint32_t client_id;
	struct mfs_client_stats *stats;
};

static int run_client_stats(struct mfs_arbiter *arbiter, void *argument)
{
	struct client_stats_argument *a = argument;
	struct session *session = session_find(arbiter, a->client_id);
	struct mfs_client_stats *stats = a->stats;

	if (!session)
		return -ENOENT;

	struct mfs_client_report *report = &session->segment->report;

	*stats = (struct mfs_client_stats){
		.client_id = session->client_id,
		.state = session->state,
		.detach_reason = session->detach_reason,
		.submits = session->submits,
		.grants = session->grants,
		.taken = session->taken,
		.completes = session->completes,
		.cancels = session->cancels,
		.bad_messages = session->bad_messages,
		.held_bytes = session->held_bytes,
		.report_held_bytes = atomic_load_explicit(&report->held_bytes, memory_order_relaxed),
		.report_permits = atomic_load_explicit(&report->permits, memory_order_relaxed),
		.bypassed_overflow = atomic_load_explicit(&report->bypassed_overflow, memory_order_relaxed),
		.bypassed_hold = atomic_load_explicit(&report->bypassed_hold, memory_order_relaxed),
		.bypassed_stale = atomic_load_explicit(&report->bypassed_stale, memory_order_relaxed),
		.hold_ns = atomic_load_explicit(&report->hold_ns, memory_order_relaxed),
	};
	for (unsigned ring = 0; ring < MFS_SUBMIT_RINGS; ring++)
		stats->torn_slots += session->reader.ring[ring].torn_slots;
	for (unsigned r = 0; r < MFS_ROLES_MAX; r++)
		stats->queue_pairs[r] = atomic_load_explicit(&report->queue_pairs[r], memory_order_relaxed);
	for (uint32_t i = 0; i < arbiter->nics; i++) {
		for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
			stats->in_flight_bytes += word_read(&session->nic[i].direction[d].in_flight_bytes);
		for (unsigned s = 0; s < MFS_STAGES_MAX; s++) {
			stats->posted_bytes[s] += mfs_usage_posted(session->segment, i, s);
			stats->completed_bytes[s] += mfs_usage_completed(session->segment, i, s);
		}
		stats->collective_bytes[i] = mfs_usage_completed(session->segment, i, MFS_STAGE_COLLECTIVE);
	}
	return 0;
}

int mfs_arbiter_client_stats(struct mfs_arbiter *arbiter, uint32_t client_id, struct mfs_client_stats *stats)
{
	struct client_stats_argument a = {.client_id = client_id, .stats = stats};

	return arbiter_command(arbiter, run_client_stats, &a);
}

struct communicators_argument {
	uint32_t client_id;
	struct mfs_communicator_snapshot *snapshots;
};

static int run_communicators(struct mfs_arbiter *arbiter, void *argument)
{
	struct communicators_argument *a = argument;
	struct session *session = session_find(arbiter, a->client_id);
	int found = 0;

	if (!session)
		return -ENOENT;
	for (int i = 0; i < MFS_COMMUNICATORS_MAX; i++) {
		struct mfs_communicator *from = &session->segment->communicator[i];
		struct mfs_communicator_snapshot *to = &a->snapshots[found];
		uint64_t id = atomic_load_explicit(&from->id, memory_order_acquire);

		if (!id)
			continue;
		found++;
		to->id = id;
		memcpy(to->name, from->name, sizeof(to->name));
		to->name[sizeof(to->name) - 1] = 0;
		to->rank = atomic_load_explicit(&from->rank, memory_order_relaxed);
		to->ranks = atomic_load_explicit(&from->ranks, memory_order_relaxed);
		to->operations = atomic_load_explicit(&from->operations, memory_order_relaxed);
		to->operation_bytes = atomic_load_explicit(&from->operation_bytes, memory_order_relaxed);
		to->work_requests = atomic_load_explicit(&from->work_requests, memory_order_relaxed);
		to->batch_bytes = atomic_load_explicit(&from->batch_bytes, memory_order_relaxed);
		for (int o = 0; o < MFS_OPERATIONS_MAX; o++)
			to->bytes[o] = atomic_load_explicit(&from->bytes[o], memory_order_relaxed);
		to->batch = atomic_load_explicit(&from->batch, memory_order_relaxed);
		to->layer = atomic_load_explicit(&from->layer, memory_order_relaxed);
	}
	return found;
}

int mfs_arbiter_communicators(struct mfs_arbiter *arbiter, uint32_t client_id,
			      struct mfs_communicator_snapshot *snapshots)
{
	struct communicators_argument a = {.client_id = client_id, .snapshots = snapshots};

	return arbiter_command(arbiter, run_communicators, &a);
}

/* ---- contexts ---------------------------------------------------------------------------------------------------- */

struct batch_snapshot_argument {
	uint32_t client_id, slot;
	struct mfs_batch_snapshot *batch;
	struct mfs_request_snapshot *requests;
	struct mfs_demand_snapshot *demands;
};

static void request_copy(const struct session *session, const struct request *request,
			 struct mfs_request_snapshot *to, struct mfs_demand_snapshot *demands)
{
	*to = (struct mfs_request_snapshot){
		.request_id = request->id,
		.program_id = request->program_id,
		.deadline_ns = request->deadline_ns,
		.budget_ns = request->budget_ns,
		.value = request->value,
		.flags = request->flags,
		.rank = request->rank,
		.tokens_left = request->tokens_left,
		.pruned = request->pruned,
	};
	for (uint32_t d = request->demand; d; d = session->demand[d - 1].next) {
		const struct demand *demand = &session->demand[d - 1];
		struct mfs_demand_snapshot *copy = &demands[to->demands++];

		*copy = (struct mfs_demand_snapshot){
			.bytes = demand->bytes,
			.bytes_left = demand->bytes_left,
			.layer = demand->layer,
			.stage = demand->stage,
			.nic = demand->direction / MFS_DIRECTIONS,
			.direction = demand->direction % MFS_DIRECTIONS,
		};
		memcpy(copy->peer, demand->peer, sizeof(copy->peer));
	}
}

static void batch_copy(const struct mfs_arbiter *arbiter, const struct session *session, uint32_t slot,
		       const struct batch_snapshot_argument *a)
{
	const struct batch *batch = &session->batch[slot];

	*a->batch = (struct mfs_batch_snapshot){
		.batch_id = batch->id,
		.deadline_ns = batch->deadline_ns,
		.compute_left_ns = batch_compute_left_ns(batch, arbiter->now_ns),
		.layers = batch->layers,
		.layer_current = batch->layer_current,
		.rank = batch->rank,
	};
	for (uint32_t r = session->batch_request[slot]; r; r = session->request[r - 1].next) {
		struct mfs_request_snapshot *to = &a->requests[a->batch->requests++];

		request_copy(session, &session->request[r - 1], to, &a->demands[a->batch->demands]);
		a->batch->demands += to->demands;
	}
}

static int run_batch_snapshot(struct mfs_arbiter *arbiter, void *argument)
{
	const struct batch_snapshot_argument *a = argument;
	const struct session *session = session_find(arbiter, a->client_id);

	if (!session || !session->batch[a->slot].id)
		return -ENOENT;
	batch_copy(arbiter, session, a->slot, a);
	return 0;
}

int mfs_arbiter_batch_snapshot(struct mfs_arbiter *arbiter, uint32_t client_id, uint32_t slot,
			       struct mfs_batch_snapshot *batch, struct mfs_request_snapshot *requests,
			       struct mfs_demand_snapshot *demands)
{
	struct batch_snapshot_argument a = {client_id, slot, batch, requests, demands};

	return slot >= MFS_BATCHES_MAX ? -ENOENT : arbiter_command(arbiter, run_batch_snapshot, &a);
}

static int run_changed(struct mfs_arbiter *arbiter, void *argument)
{
	struct batch_snapshot_argument *a = argument;
	struct session *first = NULL;
	int changed = 0;

	arbiter->noticed = false;
	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		if (!first && arbiter->session[i]->batches_changed)
			first = arbiter->session[i];
		changed += __builtin_popcountll(arbiter->session[i]->batches_changed);
	}
	if (!first)
		return 0;
	a->client_id = first->client_id;
	a->slot = (uint32_t)__builtin_ctzll(first->batches_changed);
	first->batches_changed &= first->batches_changed - 1;
	a->batch->batch_id = 0;
	if (first->batch[a->slot].id)
		batch_copy(arbiter, first, a->slot, a);
	return changed;
}

int mfs_arbiter_changed(struct mfs_arbiter *arbiter, struct mfs_change *change,
			struct mfs_batch_snapshot *batch, struct mfs_request_snapshot *requests,
			struct mfs_demand_snapshot *demands)
{
	struct batch_snapshot_argument a = {.batch = batch, .requests = requests, .demands = demands};
	int changed = arbiter_command(arbiter, run_changed, &a);

	*change = (struct mfs_change){.client_id = a.client_id, .slot = a.slot};
	return changed;
}

struct waiting_argument {
	uint32_t client_id, requests_count;
	struct mfs_request_snapshot *requests;
	struct mfs_demand_snapshot *demands;
};

static int run_waiting(struct mfs_arbiter *arbiter, void *argument)
{
	struct waiting_argument *a = argument;
	struct mfs_demand_snapshot *demands = a->demands;
	struct session *first = NULL;
	int changed = 0;

	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		if (!arbiter->session[i]->waiting_changed)
			continue;
		if (!first)
			first = arbiter->session[i];
		changed++;
	}
	if (!first)
		return 0;
	first->waiting_changed = false;
	a->client_id = first->client_id;
	for (uint32_t r = 0; r < MFS_REQUESTS_MAX; r++) {
		const struct request *request = &first->request[r];
		struct mfs_request_snapshot *to = &a->requests[a->requests_count];

		if (!request->id || !(request->flags & MFS_REQUEST_WAITING))
			continue;
		a->requests_count++;
		request_copy(first, request, to, demands);
		demands += to->demands;
	}
	return changed;
}

int mfs_arbiter_waiting(struct mfs_arbiter *arbiter, uint32_t *client_id,
			struct mfs_request_snapshot *requests, uint32_t *requests_count,
			struct mfs_demand_snapshot *demands)
{
	struct waiting_argument a = {.requests = requests, .demands = demands};
	int changed = arbiter_command(arbiter, run_waiting, &a);

	*client_id = a.client_id;
	*requests_count = a.requests_count;
	return changed;
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

struct tasks_argument {
	uint32_t client_id, first;
	struct mfs_task_snapshot *tasks;
	int n;
	uint32_t *next;
};

static void task_copy(struct mfs_arbiter *arbiter, const struct session *session, const struct task *task,
		      struct mfs_task_snapshot *to)
{
	*to = (struct mfs_task_snapshot){
		.task = (uint64_t)task->generation << 32 | (uint32_t)(task - session->task),
		.bytes = task->bytes,
		.submit_ns = task->submit_ns,
		.request_id = task->request_id,
		.batch_id = task->batch < MFS_BATCHES_MAX ? session->batch[task->batch].id : 0,
		.deadline_ns = task->deadline_ns,
		.in_flight = task->phase == TASK_IN_FLIGHT,
		.layer = task->layer,
		.stage = task->stage,
		.nic = task->direction / MFS_DIRECTIONS,
		.direction = task->direction % MFS_DIRECTIONS,
		.wire_class = task->wire_class,
		.why.rank = MFS_RANK_NONE,
	};
	if (task->handle && mfs_rmlq_snapshot(direction_at(arbiter, task->direction)->queue, task->handle,
					      arbiter->now_ns, &to->why) == 0) {
		to->queued = 1;
		to->wire_class = to->why.place.wire_class;
	}
	/* the queue has forgotten it, since nothing depends on it any more */
	if (to->in_flight && to->batch_id)
		to->why.rank = session->batch[task->batch].rank;
}

static int run_tasks(struct mfs_arbiter *arbiter, void *argument)
{
	struct tasks_argument *a = argument;
	struct session *session = session_find(arbiter, a->client_id);
	uint32_t end = a->first + TASK_SLOTS_PER_SNAPSHOT < MFS_TASKS_MAX ? a->first + TASK_SLOTS_PER_SNAPSHOT
									  : MFS_TASKS_MAX;
	uint32_t slot;
	int found = 0;

	if (!session)
		return -ENOENT;
	for (slot = a->first; slot < end && found < a->n; slot++)
		if (session->task[slot].phase != TASK_FREE)
			task_copy(arbiter, session, &session->task[slot], &a->tasks[found++]);
	*a->next = slot;
	return found;
}

int mfs_arbiter_tasks(struct mfs_arbiter *arbiter, uint32_t client_id, uint32_t first,
		      struct mfs_task_snapshot *tasks, int n, uint32_t *next)
{
	struct tasks_argument a = {client_id, first, tasks, n, next};

	*next = MFS_TASKS_MAX;
	return first >= MFS_TASKS_MAX ? 0 : arbiter_command(arbiter, run_tasks, &a);
}

struct facts_argument {
	uint32_t nic, direction;
	struct mfs_rmlq_facts *facts;
};

static int run_facts(struct mfs_arbiter *arbiter, void *argument)
{
	struct facts_argument *a = argument;

	if (a->nic >= arbiter->nics || a->direction >= MFS_DIRECTIONS)
		return -ENOENT;
	mfs_rmlq_facts(arbiter->nic[a->nic].direction[a->direction].queue, arbiter->now_ns, a->facts);
	return 0;
}

int mfs_arbiter_facts(struct mfs_arbiter *arbiter, uint32_t nic, uint32_t direction,
		      struct mfs_rmlq_facts *facts)
{
	struct facts_argument a = {nic, direction, facts};

	return arbiter_command(arbiter, run_facts, &a);
}
