/* The reverse multi-level queue: its calls. Batches are in early.c, requests in last.c, closed destinations in
 * parked.c. */
#include "lone.h"
#include "parked.h"

#include <errno.h>
#include <math.h>

static uint32_t *positions_lay(struct mfs_arena *arena, uint32_t nodes)
{
	return mfs_arena_take(arena, ((size_t)nodes + 1) * sizeof(uint32_t));
}

static void heap_lay(struct mfs_heap *heap, struct mfs_arena *arena, uint32_t nodes, uint32_t *position)
{
	heap->entry = mfs_arena_take(arena, ((size_t)nodes + 1) * sizeof(*heap->entry));
	heap->position = position;
}

/* Lays out all tables of a queue. Runs twice: once to count, once to cut them out. */
static void lay(struct mfs_rmlq *q, struct mfs_arena *arena, uint32_t flows_max)
{
	/* As many as are announced, and at most two for each flow: a strand with its last flow, and its
	 * owner, which had a flow of its own when the strand was made. A batch may also exist for a
	 * last-stage flow only */
	const uint32_t requests = 3 * flows_max, batches = 3 * flows_max + MFS_BATCH_UNNAMED;
	const uint32_t nodes = requests + 1 + batches;
	uint32_t *position;

	q->flows_max = flows_max;
	q->node_batch = requests + 1;
	q->node_parked = nodes + 1;
	mfs_slab_lay(&q->flow, arena, sizeof(struct flow), flows_max, 0);
	mfs_slab_lay(&q->group, arena, sizeof(struct group), flows_max, flows_max);
	mfs_slab_lay(&q->batch, arena, sizeof(struct batch), batches, 2 * flows_max);
	mfs_slab_lay(&q->request, arena, sizeof(struct request), requests, 2 * flows_max);
	position = positions_lay(arena, nodes + MFS_TIERS * MFS_DESTINATIONS_MAX);
	/* a stand-in for parked nodes takes the place of one of them */
	for (unsigned tier = 0; tier < MFS_TIERS; tier++)
		heap_lay(&q->tier[tier], arena, tier == MFS_TIER_EARLY ? batches : requests, position);
	heap_lay(&q->timer, arena, requests, positions_lay(arena, requests));
	heap_lay(&q->slack, arena, batches, positions_lay(arena, batches));
	heap_lay(&q->deadline, arena, batches, positions_lay(arena, batches));
	q->destination = mfs_arena_take(arena, MFS_DESTINATIONS_MAX * sizeof(*q->destination));
	q->park = mfs_arena_take(arena, ((size_t)nodes + 1) * sizeof(*q->park));
}

int mfs_rmlq_create(const struct mfs_policy *policy, uint64_t rate_bytes_per_s, uint32_t flows_max,
		    struct mfs_rmlq **queue)
{
	struct mfs_policy checked = *policy;
	struct mfs_arena arena = {0};
	struct mfs_rmlq counted, *q;

	if (mfs_policy_check(&checked) || !rate_bytes_per_s || rate_bytes_per_s > MFS_TIME_MAX ||
	    !flows_max || flows_max > MFS_FLOWS_MAX)
		return -EINVAL;
	mfs_arena_take(&arena, sizeof(*q));
	lay(&counted, &arena, flows_max);
	if (!mfs_arena_map(&arena))
		return -ENOMEM;
	q = mfs_arena_take(&arena, sizeof(*q));
	lay(q, &arena, flows_max);
	q->memory_bytes = arena.used;
	q->policy = checked;
	q->rules = policy_rules(&checked);
	q->rate_bytes_per_s = rate_bytes_per_s;
	mfs_slab_take(&q->batch, 0, 0);
	batch_at(q, MFS_BATCH_UNNAMED)->rank = MFS_RANK_NONE;
	*queue = q;
	return 0;
}

void mfs_rmlq_set_incoming(struct mfs_rmlq *q)
{
	q->incoming = true;
}

void mfs_rmlq_destroy(struct mfs_rmlq *q)
{
	if (q)
		mfs_arena_unmap(q, q->memory_bytes);
}

/* Time never goes back: an older clock reading of a caller counts as the newest one. */
static void now(struct mfs_rmlq *q, uint64_t now_ns)
{
	if (now_ns > q->now_ns)
		q->now_ns = now_ns < MFS_TIME_MAX ? now_ns : MFS_TIME_MAX;
}

static mfs_flow_handle handle_of(const struct mfs_rmlq *q, uint32_t i)
{
	return (uint64_t)flow_at(q, i)->record.part << 32 | i;
}

/* Returns the flow's record, 0 when the handle's flow is gone. */
static uint32_t flow_of(const struct mfs_rmlq *q, mfs_flow_handle handle)
{
	uint32_t i = (uint32_t)handle;

	if (!i || i > q->flow.used || flow_at(q, i)->record.part != handle >> 32 ||
	    flow_at(q, i)->state == MFS_FLOW_FREE)
		return 0;
	return i;
}

int mfs_rmlq_submit(struct mfs_rmlq *q, const struct mfs_flow *info, uint64_t now_ns, mfs_flow_handle *handle)
{
	uint32_t i;
	struct flow *flow;

	if (info->bytes > MFS_FLOW_BYTES_MAX || info->bytes_left > 2 * MFS_FLOW_BYTES_MAX ||
	    info->destination >= MFS_DESTINATIONS_MAX)
		return -EINVAL;
	i = mfs_slab_take(&q->flow, 0, 0);
	if (!i)
		return -ENOSPC;
	now(q, now_ns);
	flow = flow_at(q, i);
	record_clear(flow);
	if (++flow->record.part == 0) /* every use has a generation of its own, never 0 */
		flow->record.part = 1;
	flow->record.key = info->request;
	flow->cookie = info->cookie;
	flow->bytes = info->bytes;
	flow->arrival = info->turn ? info->turn : q->arrivals++;
	flow->layer = info->layer;
	flow->stage = info->stage <= MFS_STAGE_BACKGROUND ? info->stage : MFS_STAGE_BACKGROUND;
	flow->record.chain = info->destination;
	q->waiting++;
	q->destination[info->destination].waiting++;
	if (flow->stage == MFS_STAGE_BACKGROUND) {
		early_alone(q, i,
			    info->deadline_ns && info->deadline_ns < MFS_TIME_MAX ? info->deadline_ns
										  : MFS_TIME_MAX);
	} else if (flow->stage == MFS_STAGE_P2D) {
		last_submit(q, i, info);
	} else {
		early_submit(q, i, info);
	}
	*handle = handle_of(q, i);
	return 0;
}

/* Returns the first flow in order, 0 if nothing waits that may go. */
static uint32_t first(struct mfs_rmlq *q)
{
	const uint32_t i = early_head(q);
	const struct mfs_heap_entry *entry = node_first(q, MFS_TIER_CRITICAL);

	/* by size, critical requests have keys of the early tier; otherwise they go before all of it */
	if (!entry ||
	    (i && policy_by_size(&q->policy) && entry->high >= q->tier[MFS_TIER_EARLY].entry[0].high)) {
		if (i)
			return i;
		entry = node_first(q, MFS_TIER_LAST);
		if (!entry)
			entry = node_first(q, MFS_TIER_SCAVENGER);
	}
	return entry ? request_at(q, entry->node)->fifo.head : 0;
}

static void describe_early(const struct mfs_rmlq *q, const struct flow *flow, struct mfs_pick *pick)
{
	struct mfs_early_facts facts;

	if (flow->stage == MFS_STAGE_REUSE &&
	    early_demoted(q, flow->record.key, group_at(q, flow->owner)->batch)) {
		pick->tier = MFS_TIER_SCAVENGER;
		return;
	}
	early_facts(q, flow, &facts);
	pick->tier = MFS_TIER_EARLY;
	pick->rli = facts.rli;
	pick->wire_class = policy_class_of_tier(&q->policy, MFS_TIER_EARLY);
	if (pick->wire_class == MFS_CLASS_ASK)
		pick->wire_class = q->rules->class_early(&q->policy, &facts);
}

static void describe(const struct mfs_rmlq *q, uint32_t i, struct mfs_pick *pick)
{
	const struct flow *flow = flow_at(q, i);

	*pick = (struct mfs_pick){.handle = handle_of(q, i),
				  .cookie = flow->cookie,
				  .bytes = flow->bytes,
				  .destination = flow_destination(flow)};
	switch (flow->state) {
	case MFS_FLOW_EARLY:
		describe_early(q, flow, pick);
		break;
	case MFS_FLOW_LAST:
		pick->tier = request_at(q, flow->owner)->tier;
		pick->level = request_at(q, flow->owner)->level;
		break;
	case MFS_FLOW_ALONE:
		pick->tier = MFS_TIER_SCAVENGER;
		break;
	default:
		pick->in_flight = 1;
		pick->tier = flow->tier;
		if (flow->stage == MFS_STAGE_P2D && q->rules->levels)
			pick->level = flow->level + 1;
		pick->wire_class = flow->wire_class;
		return;
	}
	if (pick->tier == MFS_TIER_EARLY)
		return;
	pick->wire_class = policy_class_of_tier(&q->policy, pick->tier);
	if (pick->wire_class == MFS_CLASS_ASK)
		pick->wire_class = last_class(q, flow->owner);
}

/* Takes a flow out of the waiting set. Only a last-stage flow keeps its owner: its bytes still count there. */
static void unqueue(struct mfs_rmlq *q, uint32_t i)
{
	struct flow *flow = flow_at(q, i);

	q->waiting--;
	q->destination[flow_destination(flow)].waiting--;
	if (flow->state == MFS_FLOW_LAST) {
		last_remove(q, i);
		return;
	}
	if (flow->state == MFS_FLOW_EARLY)
		early_remove(q, i);
	else
		early_alone_remove(q, i);
	flow->owner = 0;
}

/* Prefetches the records of the node that is first now, while the caller works on the flow that it got. */
static void prefetch_first(const struct mfs_rmlq *q)
{
	for (unsigned tier = 0; tier < MFS_TIERS; tier++) {
		const struct mfs_heap_entry *entry = q->tier[tier].entry;

		if (!q->tier[tier].n)
			continue;
		__builtin_prefetch(flow_at(q, entry->hint));
		if (entry->node >= q->node_parked)
			return;
		if (entry->node > q->node_batch) { /* there are few batches: this one is in the cache */
			const struct batch *batch = batch_at(q, entry->node - q->node_batch);

			__builtin_prefetch(group_at(q, batch->due ? batch->due : batch->ahead));
		} else {
			__builtin_prefetch(request_at(q, entry->node));
		}
		return;
	}
}

int mfs_rmlq_peek(struct mfs_rmlq *q, uint64_t now_ns, struct mfs_pick *pick)
{
	uint32_t i;

	mfs_rmlq_advance(q, now_ns);
	i = first(q);
	if (!i)
		return -EAGAIN;
	describe(q, i, pick);
	return 0;
}

/* The waiting flow that `pick` describes is in flight from now on. */
static void fly(struct mfs_rmlq *q, uint32_t i, struct mfs_pick *pick)
{
	struct flow *flow = flow_at(q, i);

	unqueue(q, i);
	flow->state = MFS_FLOW_FLIGHT;
	flow->tier = pick->tier & 3u;
	flow->wire_class = pick->wire_class & 7u;
	flow->level = (pick->level - 1u) & 7u;
	q->in_flight_tasks++;
	q->in_flight_bytes += flow->bytes;
	pick->in_flight = 1;
}

int mfs_rmlq_pick(struct mfs_rmlq *q, uint64_t now_ns, struct mfs_pick *pick)
{
	int rc = mfs_rmlq_peek(q, now_ns, pick);

	if (rc)
		return rc;
	fly(q, (uint32_t)pick->handle, pick);
	prefetch_first(q);
	return 0;
}

int mfs_rmlq_take(struct mfs_rmlq *q, mfs_flow_handle handle, uint64_t now_ns, struct mfs_pick *pick)
{
	uint32_t i = flow_of(q, handle);

	mfs_rmlq_advance(q, now_ns);
	if (!i || flow_at(q, i)->state == MFS_FLOW_FLIGHT)
		return -ENOENT;
	describe(q, i, pick);
	fly(q, i, pick);
	return 0;
}

int mfs_rmlq_place(struct mfs_rmlq *q, mfs_flow_handle handle, struct mfs_pick *pick)
{
	uint32_t i = flow_of(q, handle);

	if (!i)
		return -ENOENT;
	describe(q, i, pick);
	return 0;
}

static void forget(struct mfs_rmlq *q, uint32_t i)
{
	struct flow *flow = flow_at(q, i);

	if (flow->state == MFS_FLOW_FLIGHT) {
		q->in_flight_tasks--;
		q->in_flight_bytes -= flow->bytes;
	} else {
		unqueue(q, i);
	}
	if (flow->stage == MFS_STAGE_P2D)
		last_forget(q, i);
	flow->state = MFS_FLOW_FREE;
	flow->record.key = 0;
	mfs_slab_give(&q->flow, i);
}

int mfs_rmlq_complete(struct mfs_rmlq *q, mfs_flow_handle handle, uint64_t bytes)
{
	uint32_t i = flow_of(q, handle);
	struct flow *flow;

	if (!i)
		return -ENOENT;
	flow = flow_at(q, i);
	if (bytes < flow->bytes) {
		if (flow->state == MFS_FLOW_EARLY)
			early_shrink(q, i, bytes);
		flow->bytes -= bytes;
		if (flow->state == MFS_FLOW_FLIGHT)
			q->in_flight_bytes -= bytes;
		if (flow->stage == MFS_STAGE_P2D)
			last_shrink(q, flow->owner, bytes);
		return 0;
	}
	forget(q, i);
	return 1;
}

int mfs_rmlq_cancel(struct mfs_rmlq *q, mfs_flow_handle handle)
{
	uint32_t i = flow_of(q, handle);

	if (!i)
		return -ENOENT;
	forget(q, i);
	return 0;
}

int mfs_rmlq_batch(struct mfs_rmlq *q, uint64_t key, const struct mfs_batch_context *context, uint64_t now_ns)
{
	uint32_t b;

	if (!key)
		return -EINVAL;
	b = mfs_slab_find(&q->batch, key, 0);
	if (!b || !batch_at(q, b)->announced) {
		if (q->batches_announced == q->flows_max)
			return -ENOSPC;
		b = early_batch(q, key);
		q->batches_announced++;
	}
	now(q, now_ns);
	early_announce(q, b, context);
	for (uint32_t r = batch_at(q, b)->members; r; r = request_at(q, r)->member_next)
		if (request_at(q, r)->kind == REQUEST_LAST) {
			last_evaluate(q, r);
			last_place(q, r);
		}
	return 0;
}

int mfs_rmlq_batch_end(struct mfs_rmlq *q, uint64_t key)
{
	uint32_t b = key ? mfs_slab_find(&q->batch, key, 0) : 0;

	if (!b || !batch_at(q, b)->announced)
		return -ENOENT;
	early_end(q, b);
	q->batches_announced--;
	for (uint32_t r = batch_at(q, b)->members; r; r = request_at(q, r)->member_next)
		if (request_at(q, r)->kind == REQUEST_LAST) {
			last_evaluate(q, r);
			last_place(q, r);
		}
	early_batch_release(q, b);
	return 0;
}

/* Finds or makes the record of a request that is announced or pruned. Such a record stays without flows,
 * so these are counted. */
static int request_keep(struct mfs_rmlq *q, uint64_t key, uint32_t *r)
{
	if (!key)
		return -EINVAL;
	*r = mfs_slab_find(&q->request, key, 0);
	if (*r && (request_at(q, *r)->announced || request_at(q, *r)->pruned))
		return 0;
	if (q->requests_announced == q->flows_max)
		return -ENOSPC;
	q->requests_announced++;
	*r = last_request(q, key);
	return 0;
}

int mfs_rmlq_request(struct mfs_rmlq *q, uint64_t key, const struct mfs_request_context *context,
		     uint64_t now_ns)
{
	struct request *request;
	uint32_t r;
	int rc = context->bytes_ahead > MFS_FLOW_BYTES_MAX ? -EINVAL : request_keep(q, key, &r);

	if (rc)
		return rc;
	now(q, now_ns);
	request = request_at(q, r);
	request->announced = true;
	if (context->deadline_ns) {
		request->deadline_ns =
			context->deadline_ns < MFS_TIME_MAX ? context->deadline_ns : MFS_TIME_MAX - 1;
		if (!context->budget_ns && !request->budget_ns && request->deadline_ns > q->now_ns)
			request->budget_ns = request->deadline_ns - q->now_ns;
	}
	if (context->budget_ns)
		request->budget_ns = context->budget_ns < MFS_TIME_MAX ? context->budget_ns : MFS_TIME_MAX;
	request->bytes_left += context->bytes_ahead - request->bytes_ahead;
	request->bytes_ahead = context->bytes_ahead;
	request->bytes_tail = context->bytes_tail;
	if (request_waits(request)) {
		last_evaluate(q, r);
		last_place(q, r);
	}
	return 0;
}

static void unprune(struct mfs_rmlq *q, uint32_t r)
{
	if (!request_at(q, r)->pruned)
		return;
	request_at(q, r)->pruned = false;
	q->pruned_requests--;
	early_return(q, r);
	last_place(q, r);
}

int mfs_rmlq_request_end(struct mfs_rmlq *q, uint64_t key)
{
	uint32_t r = key ? mfs_slab_find(&q->request, key, 0) : 0;

	if (!r || !(request_at(q, r)->announced || request_at(q, r)->pruned))
		return -ENOENT;
	unprune(q, r);
	request_at(q, r)->announced = false;
	last_shrink(q, r, request_at(q, r)->bytes_ahead);
	request_at(q, r)->bytes_ahead = 0;
	q->requests_announced--;
	last_request_release(q, r);
	return 0;
}

int mfs_rmlq_prune(struct mfs_rmlq *q, uint64_t key)
{
	uint32_t r;
	int rc = request_keep(q, key, &r);

	if (rc)
		return rc;
	if (!request_at(q, r)->pruned) {
		request_at(q, r)->pruned = true;
		q->pruned_requests++;
		last_place(q, r);
	}
	return 0;
}

int mfs_rmlq_unprune(struct mfs_rmlq *q, uint64_t key)
{
	uint32_t r = key ? mfs_slab_find(&q->request, key, 0) : 0;

	if (!r || !request_at(q, r)->pruned)
		return -ENOENT;
	unprune(q, r);
	if (!request_at(q, r)->announced) {
		q->requests_announced--;
		last_request_release(q, r);
	}
	return 0;
}

int mfs_rmlq_set_load(struct mfs_rmlq *q, double rho)
{
	if (isnan(rho))
		return -EINVAL;
	if (q->rules->levels)
		q->rho = rho;
	return 0;
}

int mfs_rmlq_set_rate(struct mfs_rmlq *q, uint64_t rate_bytes_per_s)
{
	if (!rate_bytes_per_s || rate_bytes_per_s > MFS_TIME_MAX)
		return -EINVAL;
	q->rate_bytes_per_s = rate_bytes_per_s;
	early_rate(q);
	return 0;
}

uint64_t mfs_rmlq_advance(struct mfs_rmlq *q, uint64_t now_ns)
{
	now(q, now_ns);
	last_advance(q);
	return q->timer.n ? q->timer.entry[0].high : MFS_TIME_NEVER;
}

uint32_t mfs_rmlq_waiting(const struct mfs_rmlq *q)
{
	return q->waiting;
}

void mfs_rmlq_stats_begin(const struct mfs_rmlq *q, struct mfs_rmlq_stats *stats)
{
	*stats = (struct mfs_rmlq_stats){
		.in_flight_bytes = q->in_flight_bytes,
		.in_flight_tasks = q->in_flight_tasks,
		.promotions = q->promotions,
		.evaluations = q->evaluations,
		.requests = q->request.live - q->request_strands,
		.batches = q->batch.live - 1 - q->batch_strands,
	};
}

uint32_t mfs_rmlq_stats_add(struct mfs_rmlq *q, uint32_t first, uint32_t n, struct mfs_rmlq_stats *stats)
{
	uint32_t end = n < q->flow.used - first ? first + n : q->flow.used;

	if (first >= q->flow.used)
		return 0;
	for (uint32_t i = first + 1; i <= end; i++) { /* record 0 is never used */
		struct mfs_pick pick;

		if (flow_at(q, i)->state == MFS_FLOW_FREE || flow_at(q, i)->state == MFS_FLOW_FLIGHT)
			continue;
		describe(q, i, &pick);
		stats->waiting_bytes[pick.wire_class] += pick.bytes;
		stats->waiting_tasks[pick.wire_class]++;
	}
	return end < q->flow.used ? end : 0;
}

void mfs_rmlq_stats(struct mfs_rmlq *q, struct mfs_rmlq_stats *stats)
{
	mfs_rmlq_stats_begin(q, stats);
	mfs_rmlq_stats_add(q, 0, UINT32_MAX, stats);
}
