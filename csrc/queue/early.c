/* Early stages: batches and, in them, control, collective and reuse flows.
 *
 * When L_curr grows, all reuse flows of a batch come one layer nearer. Their order inside the batch does not
 * change; only the batch moves among the others. Within a batch and destination the groups (one for each layer)
 * form two heaps: `ahead` (RLI > 0, or the batch is not announced), by layer, and `due` (RLI 0), by arrival. */
#include "group.h"
#include "lone.h"
#include "parked.h"
#include "strand.h"

static void fifo_insert_in_order(struct mfs_rmlq *q, struct mfs_fifo *fifo, uint32_t i)
{
	struct flow *flow = flow_at(q, i);
	uint32_t next = fifo->head, prev = 0;

	while (next && flow_at(q, next)->arrival < flow->arrival) {
		prev = next;
		next = flow_at(q, next)->next;
	}
	flow->prev = prev;
	flow->next = next;
	if (prev) {
		flow_at(q, prev)->next = i;
		next_arrival_set(flow_at(q, prev), flow->arrival);
	} else {
		fifo->head = i;
	}
	if (next) {
		flow_at(q, next)->prev = i;
		next_arrival_set(flow, flow_at(q, next)->arrival);
	} else {
		fifo->tail = i;
	}
}

static uint32_t group_rli(const struct batch *batch, const struct group *group)
{
	if (!batch->announced)
		return MFS_RLI_UNKNOWN + group->layer;
	return group->layer > batch->layer_current ? group->layer - batch->layer_current : 0;
}

/* Returns the first flow of a strand, 0 if it has none. */
static uint32_t strand_head(const struct mfs_rmlq *q, const struct batch *strand)
{
	uint32_t group;

	if (strand->urgent[0].head)
		return strand->urgent[0].head;
	if (strand->urgent[1].head)
		return strand->urgent[1].head;
	group = strand->due ? strand->due : strand->ahead;
	return group ? group_at(q, group)->fifo.head : 0;
}

/* The facts of everything that a batch has waiting. RLI and stage are those of a flow, and left out. */
static inline struct mfs_early_facts batch_facts(const struct mfs_rmlq *q, const struct batch *batch)
{
	static const uint8_t owner[] = {[0] = MFS_OWNER_UNKNOWN,
					[BATCH_OF_REQUEST] = MFS_OWNER_REQUEST,
					[BATCH_OF_FLOW] = MFS_OWNER_FLOW};

	return (struct mfs_early_facts){
		.now_ns = q->now_ns,
		.rate_bytes_per_s = q->rate_bytes_per_s,
		.bytes = batch->bytes_waiting + batch->bytes_behind,
		.needed_ns = batch->needed_ns,
		.rank = batch->rank,
		.owner = batch->announced ? MFS_OWNER_BATCH : owner[batch->record.part],
	};
}

/* The part of its keys that follows the RLI. */
static inline uint64_t batch_second(const struct mfs_rmlq *q, const struct batch *batch)
{
	const struct mfs_early_facts facts = batch_facts(q, batch);

	return q->rules->key_early(&q->policy, &facts);
}

/* Sets the strand's key to that of its first flow. */
static void strand_place(struct mfs_rmlq *q, const struct batch *batch, uint32_t s)
{
	const struct batch *strand = batch_at(q, s);
	uint32_t rli = 0, stage = strand->urgent[0].head ? 0 : 1, head = strand->urgent[stage].head;
	uint64_t arrival;

	if (head) {
		arrival = flow_at(q, head)->arrival;
	} else {
		uint32_t g = strand->due ? strand->due : strand->ahead;
		const struct group *group = group_at(q, g);

		if (!g) {
			node_remove(q, MFS_TIER_EARLY, q->node_batch + s, strand->destination);
			return;
		}
		head = group->fifo.head;
		arrival = group->head_arrival;
		rli = policy_reuse_rli(&q->policy, group_rli(batch, group));
		stage = 2;
	}
	node_set(q, MFS_TIER_EARLY, q->node_batch + s, strand->destination,
		 policy_early_key(rli, batch->second, stage), arrival, head);
}

/* Sets the place of everything that the batch has waiting. */
static void batch_place(struct mfs_rmlq *q, uint32_t b)
{
	struct batch *batch = batch_at(q, b);

	batch->second = batch_second(q, batch);
	strand_place(q, batch, b);
	for (uint32_t s = batch->strands; s; s = batch_at(q, s)->strand_next)
		strand_place(q, batch, s);
}

/* The bytes of the batch have changed, which may move all of it. `head`: the strand has another first flow. */
static inline void batch_place_at(struct mfs_rmlq *q, uint32_t b, uint32_t s, bool head)
{
	struct batch *batch = batch_at(q, b);
	uint64_t second = batch_second(q, batch);

	if (second == batch->second) {
		if (head)
			strand_place(q, batch, s);
	} else if (batch->strands) {
		batch_place(q, b);
	} else {
		batch->second = second;
		strand_place(q, batch, b);
	}
}

/* Adds to the bytes of a waiting flow; to subtract, pass the two's complement. */
static void bytes_count(struct mfs_rmlq *q, const struct flow *flow, uint64_t bytes)
{
	uint32_t b = flow->stage == MFS_STAGE_REUSE ? group_at(q, flow->owner)->batch : flow->owner;

	batch_at(q, b)->bytes_waiting += bytes;
}

/* True if the key of batch b changes with its bytes. */
static bool bytes_matter(const struct mfs_rmlq *q, uint32_t b)
{
	const struct batch *batch = batch_at(q, b);

	return policy_by_size(&q->policy) && (batch->announced || batch_is_lone(batch));
}

static uint32_t batch_take(struct mfs_rmlq *q, uint64_t key, uint32_t part)
{
	uint32_t b;

	if (!key)
		return MFS_BATCH_UNNAMED;
	b = mfs_slab_find(&q->batch, key, part);
	if (!b) {
		/* cannot fail: there is one for every flow and every announced batch */
		b = mfs_slab_take(&q->batch, key, part);
		record_clear(batch_at(q, b));
		batch_at(q, b)->rank = MFS_RANK_NONE;
	}
	return b;
}

uint32_t early_batch(struct mfs_rmlq *q, uint64_t key)
{
	return batch_take(q, key, 0);
}

void early_batch_release(struct mfs_rmlq *q, uint32_t b)
{
	const struct batch *batch = batch_at(q, b);

	if (batch->announced || !batch_strand_empty(batch) || batch->strands || batch->members ||
	    b == MFS_BATCH_UNNAMED)
		return;
	lone_keep(q, batch);
	mfs_slab_give(&q->batch, b);
}

void early_member_add(struct mfs_rmlq *q, uint32_t b, uint32_t r)
{
	struct request *request = request_at(q, r);
	struct batch *batch = batch_at(q, b);

	request->batch = b;
	request->member_prev = 0;
	request->member_next = batch->members;
	if (batch->members)
		request_at(q, batch->members)->member_prev = r;
	batch->members = r;
}

void early_member_remove(struct mfs_rmlq *q, uint32_t r)
{
	struct request *request = request_at(q, r);
	uint32_t b = request->batch;

	if (!b)
		return;
	if (request->member_next)
		request_at(q, request->member_next)->member_prev = request->member_prev;
	if (request->member_prev)
		request_at(q, request->member_prev)->member_next = request->member_next;
	else
		batch_at(q, b)->members = request->member_next;
	request->batch = 0;
	early_batch_release(q, b);
}

void early_submit(struct mfs_rmlq *q, uint32_t i, const struct mfs_flow *info)
{
	struct flow *flow = flow_at(q, i);
	uint64_t batch_key = info->batch;
	uint32_t b, g, s, part = 0;
	bool head;

	flow->state = MFS_FLOW_EARLY;
	if (flow->stage != MFS_STAGE_REUSE) {
		struct mfs_fifo *fifo;

		b = early_batch(q, batch_key);
		s = batch_strand_make(q, b, flow_destination(flow));
		fifo = &batch_at(q, s)->urgent[flow->stage == MFS_STAGE_COLLECTIVE];
		head = !fifo->head;
		flow->owner = b;
		fifo_append(q, fifo, i, flow);
		bytes_count(q, flow, flow->bytes);
		if (head || bytes_matter(q, b))
			batch_place_at(q, b, s, head);
		return;
	}
	if (!batch_key) {
		batch_key = flow->record.key ? flow->record.key : i;
		part = flow->record.key ? BATCH_OF_REQUEST : BATCH_OF_FLOW;
	}
	g = group_find(q, batch_key, part, flow->layer, flow_destination(flow));
	if (g) {
		flow->owner = g;
		fifo_append(q, &group_at(q, g)->fifo, i, flow);
		bytes_count(q, flow, flow->bytes);
		b = group_at(q, g)->batch;
		if (part)
			lone_submitted(q, b, info);
		if (bytes_matter(q, b))
			batch_place_at(q, b, group_at(q, g)->strand, false);
		return;
	}
	b = batch_take(q, batch_key, part);
	if (part)
		lone_submitted(q, b, info);
	s = batch_strand_make(q, b, flow_destination(flow));
	g = group_make(q, b, s, flow->layer);
	flow->owner = g;
	fifo_append(q, &group_at(q, g)->fifo, i, flow);
	group_at(q, g)->head_arrival = flow->arrival;
	bytes_count(q, flow, flow->bytes);
	group_insert(q, g);
	head = strand_head(q, batch_at(q, s)) == i;
	if (head || bytes_matter(q, b))
		batch_place_at(q, b, s, head);
}

/* Takes a waiting flow out of its batch. Unless `keep` is set, the batch may be forgotten with it. */
static void early_detach(struct mfs_rmlq *q, uint32_t i, bool keep)
{
	struct flow *flow = flow_at(q, i);
	uint32_t b = flow->owner, s;
	bool head;

	bytes_count(q, flow, -flow->bytes);
	if (flow->stage != MFS_STAGE_REUSE) {
		struct mfs_fifo *fifo;

		s = batch_strand_find(q, b, flow_destination(flow));
		fifo = &batch_at(q, s)->urgent[flow->stage == MFS_STAGE_COLLECTIVE];
		head = fifo->head == i;
		fifo_remove(q, fifo, flow);
	} else {
		uint32_t g = flow->owner;
		struct group *group = group_at(q, g);

		b = group->batch;
		s = group->strand;
		head = group->fifo.head == i;
		fifo_remove(q, &group->fifo, flow);
		if (!group->fifo.head) {
			group_remove(q, g);
			mfs_slab_give(&q->group, g);
		} else if (head) {
			group_head_set(q, g, flow->next_arrival);
		}
	}
	if (!head && !bytes_matter(q, b))
		return;
	batch_place_at(q, b, s, head);
	if (!batch_strand_empty(batch_at(q, s)))
		return;
	if (s != b)
		batch_strand_release(q, s);
	if (!keep)
		early_batch_release(q, b);
}

void early_remove(struct mfs_rmlq *q, uint32_t i)
{
	early_detach(q, i, false);
}

void early_shrink(struct mfs_rmlq *q, uint32_t i, uint64_t bytes)
{
	const struct flow *flow = flow_at(q, i);
	uint32_t b = flow->stage == MFS_STAGE_REUSE ? group_at(q, flow->owner)->batch : flow->owner;

	bytes_count(q, flow, -bytes);
	if (bytes_matter(q, b))
		batch_place_at(q, b, b, false);
}

void early_facts(const struct mfs_rmlq *q, const struct flow *flow, struct mfs_early_facts *facts)
{
	if (flow->stage == MFS_STAGE_REUSE) {
		const struct group *group = group_at(q, flow->owner);
		const struct batch *batch = batch_at(q, group->batch);

		*facts = batch_facts(q, batch);
		facts->rli = group_rli(batch, group);
		facts->bytes_class = q->incoming ? batch->bytes_whole : facts->bytes;
	} else {
		*facts = batch_facts(q, batch_at(q, flow->owner));
	}
	facts->stage = flow->stage;
}

/* ---- flows that stand alone in the scavenger
 * -------------------------------------------------------------------- */

static uint32_t alone(struct mfs_rmlq *q, uint32_t i, uint64_t deadline_ns, enum request_kind kind)
{
	struct flow *flow = flow_at(q, i);
	/* cannot fail: there is one for every flow */
	uint32_t r = request_take(q, 0, kind, MFS_TIER_SCAVENGER);
	struct request *request = request_at(q, r);

	request->fifo.head = request->fifo.tail = i;
	request->destination = flow_destination(flow);
	flow->state = MFS_FLOW_ALONE;
	flow->owner = r;
	node_set(q, MFS_TIER_SCAVENGER, r, flow_destination(flow), deadline_ns, flow->arrival, i);
	return r;
}

void early_alone(struct mfs_rmlq *q, uint32_t i, uint64_t deadline_ns)
{
	alone(q, i, deadline_ns, REQUEST_BACKGROUND);
}

/* Removes the flow's own record. If the flow was set aside, its batch is left for the caller to release. */
static uint32_t alone_detach(struct mfs_rmlq *q, uint32_t r)
{
	struct request *request = request_at(q, r);
	uint32_t b = request->batch;

	node_remove(q, MFS_TIER_SCAVENGER, r, request->destination);
	if (request->kind == REQUEST_ASIDE) {
		if (request->aside_next)
			request_at(q, request->aside_next)->aside_prev = request->aside_prev;
		if (request->aside_prev)
			request_at(q, request->aside_prev)->aside_next = request->aside_next;
		else
			request_at(q, request->aside_of)->aside = request->aside_next;
		if (request->member_next)
			request_at(q, request->member_next)->member_prev = request->member_prev;
		if (request->member_prev)
			request_at(q, request->member_prev)->member_next = request->member_next;
		else
			batch_at(q, b)->members = request->member_next;
	}
	mfs_slab_give(&q->request, r);
	return b;
}

void early_alone_remove(struct mfs_rmlq *q, uint32_t i)
{
	uint32_t b = alone_detach(q, flow_at(q, i)->owner);

	if (b)
		early_batch_release(q, b);
}

bool early_demoted(const struct mfs_rmlq *q, uint64_t request, uint32_t b)
{
	uint32_t r;

	if (!q->pruned_requests || !request)
		return false;
	if (!q->rules->demotes_running && batch_at(q, b)->announced)
		return false;
	r = mfs_slab_find(&q->request, request, 0);
	return r && request_at(q, r)->pruned;
}

/* Pruning is lazy for reuse flows: they wait in their groups among the others, and move when their turn
 * would come. Lateness, which time brings, is lazy as well: it only moves loads back, so a load that is
 * first and in time is rightly first. */
uint32_t early_head(struct mfs_rmlq *q)
{
	const struct mfs_heap_entry *entry;

	while ((entry = node_first(q, MFS_TIER_EARLY))) {
		const struct batch *strand = batch_at(q, entry->node - q->node_batch);
		uint32_t b = strand->strand_of ? strand->strand_of : entry->node - q->node_batch;
		const struct batch *batch = batch_at(q, b);
		uint32_t i, r, of;
		struct flow *flow;
		struct request *request;

		if (__builtin_expect(batch->needed_ns != 0, 0) && batch_second(q, batch) != batch->second) {
			batch_place(q, b);
			continue;
		}
		i = strand_head(q, strand);
		flow = flow_at(q, i);
		if (flow->stage != MFS_STAGE_REUSE || !early_demoted(q, flow->record.key, b))
			return i;
		early_detach(q, i, true);
		r = alone(q, i, MFS_TIME_MAX, REQUEST_ASIDE);
		early_member_add(q, b, r);
		of = mfs_slab_find(&q->request, flow->record.key, 0);
		request = request_at(q, r);
		request->aside_of = of;
		request->aside_next = request_at(q, of)->aside;
		if (request->aside_next)
			request_at(q, request->aside_next)->aside_prev = r;
		request_at(q, of)->aside = r;
	}
	return 0;
}

/* Returns a flow to its group, to its place by arrival. It left as the first flow, so few flows are before it. */
static void aside_return(struct mfs_rmlq *q, uint32_t r)
{
	uint32_t i = request_at(q, r)->fifo.head;
	uint32_t b = alone_detach(q, r);
	struct flow *flow = flow_at(q, i);
	const struct mfs_record *of = &batch_at(q, b)->record;
	uint32_t g = group_find(q, of->key, of->part, flow->layer, flow_destination(flow));
	bool made = !g;

	if (made)
		g = group_make(q, b, batch_strand_make(q, b, flow_destination(flow)), flow->layer);
	flow->state = MFS_FLOW_EARLY;
	flow->owner = g;
	fifo_insert_in_order(q, &group_at(q, g)->fifo, i);
	bytes_count(q, flow, flow->bytes);
	if (made) {
		group_at(q, g)->head_arrival = flow->arrival;
		group_insert(q, g);
	} else if (group_at(q, g)->fifo.head == i) {
		group_head_set(q, g, flow->arrival);
	}
	batch_place(q, b);
}

void early_return(struct mfs_rmlq *q, uint32_t r)
{
	while (request_at(q, r)->aside)
		aside_return(q, request_at(q, r)->aside);
}

void early_rate(struct mfs_rmlq *q)
{
	/* skips records that were given back */
	for (uint32_t b = 1; b <= q->batch.used; b++)
		if (batch_at(q, b)->record.key && batch_at(q, b)->needed_ns)
			batch_place(q, b);
}

/* ---- what is known of a batch
 * ----------------------------------------------------------------------------------- */

static void batch_slack_place(struct mfs_rmlq *q, uint32_t b)
{
	const struct batch *batch = batch_at(q, b);

	if (!batch->announced || batch->pruned || !batch->deadline_ns) {
		mfs_heap_remove(&q->slack, b);
		mfs_heap_remove(&q->deadline, b);
		return;
	}
	/* differences of times below 2^60, shifted so that they sort as unsigned */
	mfs_heap_set(&q->slack, b, (1ULL << 63) + batch->deadline_ns - batch->compute_end_ns, b, 0);
	mfs_heap_set(&q->deadline, b, batch->deadline_ns, b, 0);
}

/* Moves the groups whose layer has come from `ahead` to `due`. */
static void strand_come_due(struct mfs_rmlq *q, uint32_t s)
{
	const struct batch *strand = batch_at(q, s);
	const struct batch *batch = strand->strand_of ? batch_at(q, strand->strand_of) : strand;

	while (strand->ahead && group_at(q, strand->ahead)->layer <= batch->layer_current) {
		uint32_t g = strand->ahead;

		group_remove(q, g);
		group_insert(q, g);
	}
}

/* The batch no longer runs: moves its due groups back to `ahead`. */
static void strand_end_due(struct mfs_rmlq *q, uint32_t s)
{
	const struct batch *strand = batch_at(q, s);

	while (strand->due) {
		uint32_t g = strand->due;

		group_remove(q, g);
		group_insert(q, g);
	}
}

void early_announce(struct mfs_rmlq *q, uint32_t b, const struct mfs_batch_context *context)
{
	struct batch *batch = batch_at(q, b);
	uint32_t layer = context->layer_current < UINT16_MAX ? context->layer_current : UINT16_MAX;
	uint32_t r;

	if (!batch->announced || layer > batch->layer_current)
		batch->layer_current = (uint16_t)layer;
	batch->announced = true;
	batch->rank = context->rank;
	batch->pruned = context->pruned != 0;
	batch->deadline_ns = context->deadline_ns < MFS_TIME_MAX ? context->deadline_ns : MFS_TIME_MAX - 1;
	batch->compute_end_ns = 0;
	if (context->compute_left_ns)
		batch->compute_end_ns = context->compute_left_ns < MFS_TIME_MAX - q->now_ns
						? q->now_ns + context->compute_left_ns
						: MFS_TIME_MAX;
	batch_slack_place(q, b);
	strand_come_due(q, b);
	for (uint32_t s = batch->strands; s; s = batch_at(q, s)->strand_next)
		strand_come_due(q, s);
	/* it runs now: what was set aside while it did not run comes back */
	for (r = q->rules->demotes_running ? 0 : batch->members; r;) {
		uint32_t next = request_at(q, r)->member_next;

		if (request_at(q, r)->kind == REQUEST_ASIDE)
			aside_return(q, r);
		r = next;
	}
	batch_place(q, b);
}

void early_end(struct mfs_rmlq *q, uint32_t b)
{
	struct batch *batch = batch_at(q, b);

	batch->announced = batch->pruned = false;
	batch->rank = MFS_RANK_NONE;
	batch->deadline_ns = batch->compute_end_ns = 0;
	batch_slack_place(q, b);
	strand_end_due(q, b);
	for (uint32_t s = batch->strands; s; s = batch_at(q, s)->strand_next)
		strand_end_due(q, s);
	batch_place(q, b);
}
