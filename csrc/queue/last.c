/* The last stage: requests, their place, and the times at which to evaluate them again. The policy decides
 * about each request. */
#include "parked.h"
#include "strand.h"

/* Least laxity of the batches whose early stages would have to wait; INT64_MAX: no batch is busy. For each
 * batch that is deadline - max(compute end, now). The least of all is thus the lesser of two minima,
 * neither of which changes with time. */
int64_t last_unit_slack_ns(const struct mfs_rmlq *q)
{
	int64_t slack, due;

	if (!q->slack.n)
		return INT64_MAX;
	slack = (int64_t)(q->slack.entry[0].high - (1ULL << 63));
	due = (int64_t)q->deadline.entry[0].high - (int64_t)q->now_ns;
	return slack < due ? slack : due;
}

static void timer_set(struct mfs_rmlq *q, uint32_t r, uint64_t at_ns)
{
	request_at(q, r)->timer_ns = at_ns;
	if (at_ns == MFS_TIME_NEVER)
		mfs_heap_remove(&q->timer, r);
	else
		mfs_heap_set(&q->timer, r, at_ns, r, 0);
}

/* Returns the request's waiting flow that arrived first, 0 if none waits. */
static uint32_t request_head(const struct mfs_rmlq *q, const struct request *request)
{
	uint32_t head = request->fifo.head;

	for (uint32_t s = request->strands; s; s = request_at(q, s)->strand_next) {
		uint32_t i = request_at(q, s)->fifo.head;

		if (!head || flow_at(q, i)->arrival < flow_at(q, head)->arrival)
			head = i;
	}
	return head;
}

void last_promoted(struct mfs_rmlq *q, const struct request *request)
{
	q->promotions++;
	if (q->promoted && request_waits(request))
		q->promoted(q->promoted_context, flow_at(q, request_head(q, request))->cookie, request->level,
			    request->critical);
}

/* All facts but the unit's slack, which only an evaluation needs. */
static inline struct mfs_last_facts request_facts(const struct mfs_rmlq *q, const struct request *request)
{
	return (struct mfs_last_facts){
		.now_ns = q->now_ns,
		.rate_bytes_per_s = q->rate_bytes_per_s,
		.deadline_ns = request->deadline_ns,
		.budget_ns = request->budget_ns,
		.bytes = request->bytes_left,
		.bytes_tail = request->bytes_tail,
		.compute_end_ns = request->batch ? batch_at(q, request->batch)->compute_end_ns : 0,
		.rho = q->rho,
		.decision = {.level = request->level, .critical = request->critical, .lost = request->lost},
	};
}

/* Evaluates the request now. Returns when to evaluate it again. */
static uint64_t evaluate(struct mfs_rmlq *q, struct request *request)
{
	const uint8_t level_before = request->level;
	const bool critical_before = request->critical;
	struct mfs_last_facts facts;
	uint64_t next;

	if (request->deadline_ns == MFS_TIME_MAX)
		return MFS_TIME_NEVER;
	facts = request_facts(q, request);
	facts.unit_slack_ns = last_unit_slack_ns(q);
	next = q->rules->evaluate(&q->policy, &facts);
	request->level = facts.decision.level;
	request->critical = facts.decision.critical;
	request->lost = facts.decision.lost;
	if (request->evaluated && (request->level < level_before || request->critical != critical_before))
		last_promoted(q, request);
	request->evaluated = true;
	return next;
}

uint8_t last_class(const struct mfs_rmlq *q, uint32_t r)
{
	const struct mfs_last_facts facts = request_facts(q, request_at(q, r));

	return q->rules->class_last(&q->policy, &facts);
}

void last_evaluate(struct mfs_rmlq *q, uint32_t r)
{
	struct request *request = request_at(q, r);
	uint64_t next = evaluate(q, request);

	/* a timer that fires too early is harmless: it evaluates and is set anew. So it need not be moved
	 * at every submit */
	if (next < request->timer_ns)
		timer_set(q, r, next);
}

/* The first half of the key in the request's tier. */
static uint64_t request_high(const struct mfs_rmlq *q, const struct request *request)
{
	const struct mfs_last_facts facts = request_facts(q, request);

	return q->rules->key_last(&q->policy, &facts, request->tier);
}

/* Sets the key of what waits for one destination; `s` is the request or one of its strands. */
static void strand_place(struct mfs_rmlq *q, const struct request *request, uint32_t s, uint64_t high)
{
	const struct request *strand = request_at(q, s);
	uint32_t head = strand->fifo.head;

	if (head)
		node_set(q, request->tier, s, strand->destination, high, flow_at(q, head)->arrival, head);
}

void last_place(struct mfs_rmlq *q, uint32_t r)
{
	struct request *request = request_at(q, r);
	const struct mfs_decision decision = {.level = request->level,
					      .critical = request->critical,
					      .lost = request->lost};
	const bool pruned = request->pruned || (request->batch && batch_at(q, request->batch)->pruned);
	const uint8_t tier = pruned ? MFS_TIER_SCAVENGER : (uint8_t)q->rules->tier_last(&decision);
	uint64_t high;

	if (tier != request->tier) {
		for (uint32_t s = r; s; s = request_strand_next(q, r, s))
			node_remove(q, request->tier, s, request_at(q, s)->destination);
		request->tier = tier;
	}
	if (!request_waits(request))
		return;
	high = request_high(q, request);
	for (uint32_t s = r; s; s = request_strand_next(q, r, s))
		strand_place(q, request, s, high);
}

void last_advance(struct mfs_rmlq *q)
{
	while (q->timer.n && q->timer.entry[0].high <= q->now_ns) {
		uint32_t r = q->timer.entry[0].node;
		struct request *request = request_at(q, r);
		uint64_t next = MFS_TIME_NEVER;

		if (request_waits(request)) {
			q->evaluations++;
			next = evaluate(q, request);
			last_place(q, r);
		}
		timer_set(q, r, next);
	}
}

uint32_t last_request(struct mfs_rmlq *q, uint64_t key)
{
	uint32_t r = key ? mfs_slab_find(&q->request, key, 0) : 0;

	return r ? r : request_take(q, key, REQUEST_LAST, MFS_TIER_LAST);
}

void last_request_release(struct mfs_rmlq *q, uint32_t r)
{
	struct request *request = request_at(q, r);

	if (request->flows)
		return;
	early_member_remove(q, r);
	if (request->announced || request->pruned)
		return;
	timer_set(q, r, MFS_TIME_NEVER);
	mfs_slab_give(&q->request, r);
}

/* The flow's bytes are not ahead any more, but what its sender has behind it is. */
static void ahead_count(struct request *request, const struct mfs_flow *info)
{
	const uint64_t before = request->bytes_ahead;
	const uint64_t behind = info->bytes_left > info->bytes ? info->bytes_left - info->bytes : 0;

	request->bytes_ahead -= info->bytes < before ? info->bytes : before;
	if (request->bytes_ahead < behind)
		request->bytes_ahead = behind;
	request->bytes_left += request->bytes_ahead - before;
}

void last_submit(struct mfs_rmlq *q, uint32_t i, const struct mfs_flow *info)
{
	struct flow *flow = flow_at(q, i);
	uint32_t r = last_request(q, info->request);
	struct request *request = request_at(q, r);
	const uint32_t s = request_strand_make(q, r, flow_destination(flow));
	struct mfs_fifo *fifo = &request_at(q, s)->fifo;
	const uint64_t deadline_before = request->deadline_ns;
	const uint8_t level_before = request->level;
	const bool waited = fifo->head, critical_before = request->critical, lost_before = request->lost;
	const uint32_t batch_before = request->batch;

	flow->state = MFS_FLOW_LAST;
	flow->owner = r;
	fifo_append(q, fifo, i, flow);
	request->flows++;
	request->bytes_left += flow->bytes;
	ahead_count(request, info);
	if (info->batch && !(request->batch && batch_at(q, request->batch)->record.key == info->batch)) {
		uint32_t b = early_batch(q, info->batch);

		early_member_remove(q, r);
		early_member_add(q, b, r);
	}
	if (info->deadline_ns && info->deadline_ns != deadline_before) {
		request->deadline_ns =
			info->deadline_ns < MFS_TIME_MAX ? info->deadline_ns : MFS_TIME_MAX - 1;
		if (!request->budget_ns && request->deadline_ns > q->now_ns)
			request->budget_ns = request->deadline_ns - q->now_ns;
	}
	last_evaluate(q, r);
	if (request->critical || request->level != level_before || request->critical != critical_before ||
	    request->lost != lost_before || request->deadline_ns != deadline_before ||
	    request->batch != batch_before || (!waited && !request->split))
		last_place(q, r);
	else if (!waited)
		strand_place(q, request, s, request_high(q, request));
}

void last_remove(struct mfs_rmlq *q, uint32_t i)
{
	struct flow *flow = flow_at(q, i);
	uint32_t r = flow->owner;
	const unsigned tier = request_at(q, r)->tier;
	uint32_t s = request_strand_find(q, r, flow_destination(flow));
	struct request *strand = request_at(q, s);
	bool head = strand->fifo.head == i;

	fifo_remove(q, &strand->fifo, flow);
	if (strand->fifo.head) {
		if (head) /* only the arrival in the key changes */
			node_set(q, tier, s, flow_destination(flow), node_high(q, tier, s),
				 flow->next_arrival, strand->fifo.head);
		return;
	}
	node_remove(q, tier, s, flow_destination(flow));
	if (s != r)
		request_strand_release(q, r, s);
}

void last_shrink(struct mfs_rmlq *q, uint32_t r, uint64_t bytes)
{
	request_at(q, r)->bytes_left -= bytes;
	if (request_at(q, r)->critical)
		last_place(q, r);
}

void last_forget(struct mfs_rmlq *q, uint32_t i)
{
	struct flow *flow = flow_at(q, i);
	uint32_t r = flow->owner;
	struct request *request = request_at(q, r);

	request->bytes_left -= flow->bytes;
	if (--request->flows == 0)
		last_request_release(q, r);
	else if (request->critical)
		last_place(q, r);
}
