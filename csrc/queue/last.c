/* The last stage: requests, their urgency (MLU, laxity) and the times at which to look at it again.
 *
 * The arithmetic is that of mfsd.policy (urgency.py, estimate.py, flow.py), operation by operation, so that
 * both decide alike to the nanosecond: times are integers, and a real number enters by single IEEE operations
 * that no compiler may fuse (a product is only ever divided or truncated). */
#include "parked.h"
#include "strand.h"

void last_rates(struct mfs_rmlq *q)
{
	double left = (double)q->rate_bytes_per_s * (1.0 - q->rho);
	uint64_t effective = left < 1.0 ? 1 : (uint64_t)left;

	for (uint32_t i = 0; i + 1 < q->policy.levels; i++)
		q->crossing_rate[i] = (double)effective * q->policy.threshold[i];
}

/* The first time at which MLU reaches Q_(i+1); may be negative. */
static int64_t crossing_ns(const struct mfs_rmlq *q, uint64_t bytes, uint64_t deadline_ns, uint32_t i)
{
	double lead = (double)(int64_t)bytes * 1e9 / q->crossing_rate[i];

	return (int64_t)deadline_ns - (lead < (double)MFS_TIME_MAX ? (int64_t)lead : (int64_t)MFS_TIME_MAX);
}

/* Least laxity of the batches whose early stages would wait; INT64_MAX: none is busy. Of each it is deadline
 * - max(compute end, now), so the least is the lesser of two least values that time does not change. */
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

/* The waiting flow of the request that arrived first, 0 if none waits. */
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

/* Time to spare at the port's full rate (mfsd.policy laxity_ns). */
static int64_t laxity_ns(const struct mfs_rmlq *q, const struct request *request)
{
	const int64_t now = (int64_t)q->now_ns;
	const uint64_t bytes = request->bytes_left;
	int64_t finish = now + (int64_t)transfer_ns(q, bytes);

	if (q->policy.variant == MFS_VARIANT_MFS) {
		const struct batch *batch = request->batch ? batch_at(q, request->batch) : NULL;
		uint64_t tail = request->bytes_tail < bytes ? request->bytes_tail : bytes;
		int64_t computed = batch && batch->compute_end_ns > q->now_ns ? (int64_t)batch->compute_end_ns : now;
		int64_t after = computed + (tail ? (int64_t)transfer_ns(q, tail) : 0);

		if (after > finish)
			finish = after;
	}
	return (int64_t)request->deadline_ns - finish;
}

static int64_t guard_ns(const struct mfs_rmlq *q, const struct request *request)
{
	return (int64_t)((double)(int64_t)request->budget_ns * q->policy.critical_laxity_share);
}

/* A lost request of variant mfs is due again this much after its deadline (mfsd.policy.order). */
static uint64_t renewed_ns(const struct request *request)
{
	if (!request->budget_ns || request->budget_ns > (MFS_TIME_MAX - request->deadline_ns) / MFS_RENEWAL_BUDGETS)
		return MFS_TIME_MAX;
	return request->deadline_ns + MFS_RENEWAL_BUDGETS * request->budget_ns;
}

/* What orders last stages of variant mfs. */
static uint64_t due_ns(const struct request *request)
{
	return request->lost ? renewed_ns(request) : request->deadline_ns;
}

bool last_near(const struct mfs_rmlq *q, uint32_t r)
{
	const struct request *request = request_at(q, r);

	if (q->policy.variant != MFS_VARIANT_MFS || request->tier != MFS_TIER_LAST || request->deadline_ns == MFS_TIME_MAX)
		return false;
	if (q->policy.soon_ns && due_ns(request) < q->now_ns + q->policy.soon_ns)
		return true;
	return !request->lost && laxity_ns(q, request) < MFS_NEAR_GUARDS * guard_ns(q, request);
}

/* Looks at the request's urgency now. Answers when to look again: not before an interval has passed, at most
 * half way to the next level since the load may rise until then. While its batch computes: when that ends. */
static uint64_t look(struct mfs_rmlq *q, struct request *request)
{
	const struct mfs_policy *policy = &q->policy;
	const struct batch *batch = request->batch ? batch_at(q, request->batch) : NULL;
	const bool mfs = policy->variant == MFS_VARIANT_MFS;
	const int64_t now = (int64_t)q->now_ns, deadline = (int64_t)request->deadline_ns;
	const uint64_t bytes = request->bytes_left;
	const uint64_t compute_end = batch && batch->compute_end_ns > q->now_ns ? batch->compute_end_ns : 0;
	const uint8_t level_before = request->level;
	const bool critical_before = request->critical;
	int64_t alone, laxity, guard, next, soonest, crossing = now;

	if (request->deadline_ns == MFS_TIME_MAX)
		return MFS_TIME_NEVER;
	alone = (int64_t)transfer_ns(q, bytes);
	laxity = laxity_ns(q, request);
	if (!request->lost)
		request->lost = laxity < 0;
	else
		request->lost =
			laxity < (int64_t)((double)(int64_t)request->budget_ns * policy->readmission_share);
	while (request->level > 1) {
		crossing = crossing_ns(q, bytes, request->deadline_ns, request->level - 2u);
		if (now < crossing)
			break;
		request->level--;
	}
	guard = guard_ns(q, request);
	if (!mfs) {
		if (request->level == 1)
			request->critical = true;
	} else if (!request->critical && !request->lost && laxity >= 0 && laxity < guard) {
		int64_t slack = last_unit_slack_ns(q);

		if (slack == INT64_MAX || slack - alone >= laxity)
			request->critical = true;
	}
	if (request->looked && (request->level < level_before || request->critical != critical_before))
		last_promoted(q, request);
	request->looked = true;

	if (request->lost)
		return MFS_TIME_NEVER;
	soonest = now + (int64_t)policy->promotion_interval_ns;
	if (compute_end)
		return soonest > (int64_t)compute_end ? (uint64_t)soonest : compute_end;
	next = deadline - alone + 1; /* lost from here */
	if (request->level > 1) {
		int64_t half = now + (crossing - now) / 2;

		next = half < next ? half : next;
	}
	if (mfs && !request->critical && guard > 0 && deadline - alone - guard + 1 < next)
		next = deadline - alone - guard + 1;
	return (uint64_t)(next > soonest ? next : soonest);
}

void last_look(struct mfs_rmlq *q, uint32_t r)
{
	struct request *request = request_at(q, r);
	uint64_t next = look(q, request);

	/* a timer that is early is harmless: it looks again and is set anew, which spares moving it at every
	 * submit */
	if (next < request->timer_ns)
		timer_set(q, r, next);
}

/* The first half of the key in the request's tier. */
static uint64_t request_high(const struct mfs_rmlq *q, const struct request *request)
{
	const bool mfs = q->policy.variant == MFS_VARIANT_MFS;

	if (request->tier == MFS_TIER_CRITICAL && mfs && q->policy.early_order == MFS_EARLY_SHORTEST)
		/* a key of the early tier: before the batches of its size */
		return early_key(0, size_second(request->bytes_left, 0), 3);
	if (request->tier == MFS_TIER_LAST && !mfs)
		return request->deadline_ns | (uint64_t)request->level << 60;
	return request->tier == MFS_TIER_LAST ? due_ns(request) : request->deadline_ns;
}

/* Gives what waits for one destination its key; `s` is the request or a strand of it. */
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
	const bool mfs = q->policy.variant == MFS_VARIANT_MFS;
	uint64_t high;
	uint8_t tier;

	if (request->pruned || (request->lost && !mfs) ||
	    (request->batch && batch_at(q, request->batch)->pruned))
		tier = MFS_TIER_SCAVENGER;
	else if (request->lost)
		tier = MFS_TIER_LAST;
	else
		tier = request->critical ? MFS_TIER_CRITICAL : MFS_TIER_LAST;
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
			q->looks++;
			next = look(q, request);
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
	if (request->told || request->pruned)
		return;
	timer_set(q, r, MFS_TIME_NEVER);
	mfs_slab_give(&q->request, r);
}

void last_submit(struct mfs_rmlq *q, uint32_t i, const struct mfs_flow *told)
{
	struct flow *flow = flow_at(q, i);
	uint32_t r = last_request(q, told->request);
	struct request *request = request_at(q, r);
	const uint32_t s = request_strand_make(q, r, flow_destination(flow));
	struct mfs_fifo *fifo = &request_at(q, s)->fifo;
	const uint64_t deadline_before = request->deadline_ns;
	const uint8_t level_before = request->level;
	const bool waited = fifo->head, critical_before = request->critical,
		   lost_before = request->lost;
	const uint32_t batch_before = request->batch;

	flow->state = MFS_FLOW_LAST;
	flow->owner = r;
	fifo_append(q, fifo, i, flow);
	request->flows++;
	request->bytes_left += flow->bytes;
	if (request->told && request->bytes_ahead) {
		uint64_t ahead = flow->bytes < request->bytes_ahead ? flow->bytes : request->bytes_ahead;

		request->bytes_ahead -= ahead;
		request->bytes_left -= ahead;
	}
	if (told->batch && !(request->batch && batch_at(q, request->batch)->record.key == told->batch)) {
		uint32_t b = early_batch(q, told->batch);

		early_member_remove(q, r);
		early_member_add(q, b, r);
	}
	if (told->deadline_ns && told->deadline_ns != deadline_before) {
		request->deadline_ns =
			told->deadline_ns < MFS_TIME_MAX ? told->deadline_ns : MFS_TIME_MAX - 1;
		if (!request->budget_ns && request->deadline_ns > q->now_ns)
			request->budget_ns = request->deadline_ns - q->now_ns;
	}
	last_look(q, r);
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
			node_set(q, tier, s, flow_destination(flow), node_high(q, tier, s), flow->next_arrival,
				 strand->fifo.head);
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
