/* One event of Algorithm 1: which requests are infeasible, which pruned ones return, and which are pruned,
 * by the rules of mfsd/policy/pruning.py. docs/internals/plan.md explains M_i, H_i and G_i, and why
 * readmission needs few comparisons. */
#include "state.h"

/* H_i: how long the longest port may be busy while the margin is kept. */
static int64_t room(const struct mfs_plan *plan, const struct plan_slot *slot)
{
	__int128 time = (__int128)(plan->config.paper ? slot->latest : slot->loose) - plan->now;

	if (slot->loose > plan->now)
		time -= (uint64_t)((double)((uint64_t)slot->loose - (uint64_t)plan->now) *
				   plan->config.readmission_margin);
	return time < 0 ? 0 : time > INT64_MAX ? INT64_MAX : (int64_t)time;
}

/* True if the batch is late and pruning may help it. In variant mfs it does not help a batch that is late
 * with nothing ahead of it. */
static bool is_late(const struct mfs_plan *plan, const struct plan_slot *slot, int64_t longest)
{
	int64_t due = plan->config.paper ? slot->latest : slot->loose;

	return longest + plan->now > due && (plan->config.paper || plan->now <= slot->latest);
}

/* -- the list of pruned requests */

/* By urgency: place of the batch, then deadline, then number. */
static int compare_urgency(const void *x, const void *y)
{
	const struct plan_request *a = ((const struct plan_out *)x)->request,
				  *b = ((const struct plan_out *)y)->request;

	if (a->batch != b->batch)
		return plan_batch_before(a->batch, b->batch) ? -1 : 1;
	if (a->deadline != b->deadline)
		return a->deadline < b->deadline ? -1 : 1;
	return a->why.request < b->why.request ? -1 : 1;
}

/* Drops requests that are no longer pruned, and moves new ones to their places. */
void plan_tidy(struct mfs_plan *plan)
{
	struct plan_out *out = plan->pruned.at, *add = plan->merging.at;
	uint32_t old = 0, new = 0, to;

	for (uint32_t i = 0; i < plan->pruned.n; i++) {
		if (!(out[i].request->flags & PLAN_PRUNED))
			continue;
		if (i < plan->sorted)
			out[old++] = out[i];
		else
			add[new++] = out[i];
	}
	plan->pruned.n = plan->sorted = to = old + new;
	qsort(add, new, sizeof(*add), compare_urgency);
	while (new)
		out[--to] =
			old && compare_urgency(&out[old - 1], &add[new - 1]) > 0 ? out[--old] : add[--new];
}

static void give_back(struct mfs_plan *plan, struct plan_request *request)
{
	request->flags &= (uint8_t)~PLAN_PRUNED;
	plan_request_count(plan, request, 1);
	plan_mark(plan, request);
}

/* -- infeasible requests: late even with every port to themselves. Only the clock changes which these are */

static void set_infeasible(struct mfs_plan *plan, struct plan_request *request, bool infeasible)
{
	bool counted = plan_counts(plan, request);

	request->flags ^= PLAN_INFEASIBLE;
	plan->infeasible += infeasible ? 1 : UINT32_MAX;
	plan_mark(plan, request);
	if (plan->config.paper)
		return;
	request->flags &= (uint8_t)~PLAN_PRUNED; /* it is no longer pruned, but infeasible */
	if (counted != plan_counts(plan, request))
		plan_request_count(plan, request, counted ? -1 : 1);
}

static void check_feasible(struct mfs_plan *plan, struct plan_slot *slot)
{
	struct plan_batch *batch = slot->batch;

	slot->feasible_until = INT64_MAX;
	slot->infeasible_from = INT64_MIN;
	for (uint32_t r = 0; r < batch->requests; r++) {
		struct plan_request *request = &batch->request[r];
		bool infeasible = request->latest < plan->now;

		if (infeasible != !!(request->flags & PLAN_INFEASIBLE))
			set_infeasible(plan, request, infeasible);
		if (infeasible)
			slot->infeasible_from = plan_max(slot->infeasible_from, request->latest);
		else
			slot->feasible_until = plan_min(slot->feasible_until, request->latest);
	}
}

static void check_all_feasible(struct mfs_plan *plan)
{
	for (uint32_t c = 0; c < plan->chunk.n; c++) {
		struct plan_chunk *chunk = plan->chunk.at[c];

		for (struct plan_slot *slot = chunk->slot; slot < chunk->slot + chunk->n; slot++)
			if (plan->now > slot->feasible_until || plan->now <= slot->infeasible_from)
				check_feasible(plan, slot);
	}
}

/* -- readmission */

/* Finds what each chunk bears, from the last to the first. */
static void find_bounds(struct mfs_plan *plan)
{
	int64_t next = INT64_MAX; /* some batch of the next chunk bears no more than this */

	for (uint32_t c = plan->chunk.n; c--;) {
		struct plan_chunk *chunk = plan->chunk.at[c];
		int64_t front = plan_front(plan, chunk)->top, least = INT64_MAX, most = INT64_MAX, left = 0;

		for (const struct plan_slot *slot = chunk->slot; slot < chunk->slot + chunk->n; slot++) {
			left = room(plan, slot);
			least = plan_min(least, plan_max(left, chunk->known ? slot->longest : front));
			most = plan_min(most, plan_max(left, chunk->known ? slot->longest : chunk->top));
		}
		chunk->least = least;
		chunk->end = plan_min(plan_max(left, chunk->top), next);
		next = most;
	}
}

/* Returns the load that the batch has on the port now. */
static int64_t load_on(const struct plan_batch *batch, uint32_t port)
{
	uint32_t low = 0, high = batch->ports, run = high ? port - batch->row[0].port : 0;

	if (run < high && batch->row[run].port == port) /* the ports are consecutive, as in an all-to-all */
		return batch->row[run].busy_ns;
	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (batch->row[middle].port < port)
			low = middle + 1;
		else
			high = middle;
	}
	return low < batch->ports && batch->row[low].port == port ? batch->row[low].busy_ns : 0;
}

/* True if some batch of the chunk, from the request's own batch on, does not bear the load on the port. */
static bool refused_by_batches(struct mfs_plan *plan, struct plan_out *out, const struct mfs_plan_load *load,
			       struct plan_chunk *chunk)
{
	const struct plan_batch *own = out->request->batch;
	int64_t sum = plan_front(plan, chunk)->behind[load->port] + load->busy_ns;
	uint32_t from = 0;

	if (!chunk->known)
		plan_order_learn(plan, chunk);
	while (chunk == own->chunk && chunk->slot[from].batch != own)
		from++;
	for (uint32_t i = from; i < chunk->n; i++)
		if (sum > chunk->slot[i].longest && sum > room(plan, &chunk->slot[i]))
			goto refused;
	for (uint32_t i = 0; i < chunk->n; i++) {
		sum += load_on(chunk->slot[i].batch, load->port);
		if (i >= from && sum > chunk->slot[i].longest && sum > room(plan, &chunk->slot[i]))
			goto refused;
	}
	return false;
refused:
	*out = (struct plan_out){out->request, load->busy_ns, load->port, chunk->at};
	return true;
}

/* True if the request cannot return, counting those that have returned before it in this event. */
static bool refused(struct mfs_plan *plan, struct plan_out *out)
{
	const struct mfs_plan_load last = {out->port, out->busy};
	uint32_t own, loads;
	int64_t most = 0;

	if (out->chunk < plan->chunk.n) {
		struct plan_chunk *chunk = plan->chunk.at[out->chunk];

		if (chunk->behind[last.port] + last.busy_ns > chunk->end ||
		    refused_by_batches(plan, out, &last, chunk))
			return true;
	}
	own = out->request->batch->chunk->at;
	loads = plan_request_loads(plan, out->request);
	for (uint32_t i = 0; i < loads; i++) {
		const struct mfs_plan_load *load = &plan->part[i];

		for (uint32_t c = own; c < plan->chunk.n; c++) {
			const struct plan_chunk *chunk = plan->chunk.at[c];
			int64_t beyond = chunk->behind[load->port] + load->busy_ns - chunk->end;

			if (beyond > most) {
				most = beyond;
				*out = (struct plan_out){out->request, load->busy_ns, load->port, c};
			}
		}
	}
	if (most)
		return true;
	for (uint32_t c = own; c < plan->chunk.n; c++)
		for (uint32_t i = 0; i < loads; i++) {
			const struct mfs_plan_load *load = &plan->part[i];
			struct plan_chunk *chunk = plan->chunk.at[c];

			if (chunk->behind[load->port] + load->busy_ns > chunk->least &&
			    refused_by_batches(plan, out, load, chunk))
				return true;
		}
	return false;
}

/* Brings back the requests that fit, most urgent first. */
static void readmit(struct mfs_plan *plan)
{
	find_bounds(plan);
	for (uint32_t i = 0; i < plan->pruned.n; i++)
		if (!refused(plan, &plan->pruned.at[i]))
			give_back(plan, plan->pruned.at[i].request);
	plan_tidy(plan);
}

/* -- pruning */

/* How long the longest port would be busy with fixed loads alone. They are added up in plan->fixed, chunk by chunk. */
struct fixed_walk {
	uint32_t chunks;    /* number of chunks added up in plan->fixed */
	int64_t front, end; /* longest port in front of the last of them, and behind it */
	int64_t of_all;
};

/* The longest port behind this batch. The later batches of its chunk are taken out temporarily. */
static int64_t fixed_longest(struct mfs_plan *plan, const struct plan_chunk *chunk,
			     const struct plan_slot *slot)
{
	int64_t longest = 0;

	for (int sign = -1; sign <= 1; sign += 2) {
		for (const struct plan_slot *at = slot + 1; at < chunk->slot + chunk->n; at++)
			for (uint32_t i = 0; i < at->batch->fixed_loads; i++)
				plan->fixed[at->batch->fixed[i].port] += sign * at->batch->fixed[i].busy_ns;
		if (sign < 0)
			longest = plan_greatest(plan->fixed, plan->config.ports);
	}
	return longest;
}

/* Variant mfs: true if the batch is late even with every request of all batches pruned. */
static bool is_hopeless(struct mfs_plan *plan, struct fixed_walk *walk, const struct plan_chunk *chunk,
			const struct plan_slot *slot)
{
	int64_t left = slot->loose - plan->now;

	if (plan->config.paper || walk->of_all <= left)
		return false;
	for (; walk->chunks <= chunk->at; walk->chunks++) {
		const int64_t *here = plan->chunk.at[walk->chunks]->fixed;

		for (uint32_t u = 0; u < plan->config.ports; u++)
			plan->fixed[u] += here[u];
		walk->front = walk->end;
		walk->end = plan_greatest(plan->fixed, plan->config.ports);
	}
	return walk->front > left || (walk->end > left && fixed_longest(plan, chunk, slot) > left);
}

/* Returns the first cell of the column whose request counts, or the end of the column. */
static uint32_t first_that_counts(const struct mfs_plan *plan, struct plan_batch *batch, uint32_t k)
{
	uint32_t c = batch->column[k].first, end = batch->column[k + 1].begin;

	while (c < end && !plan_counts(plan, &batch->request[batch->cell[c].request]))
		c++;
	batch->column[k].first = c;
	return c;
}

/* Returns the request with the most load on the port, among batches up to `last`. Among equal ones it is
 * that of the least urgent batch, then the one with the greater number. NULL: none has any load there. */
static struct plan_request *find_victim(struct mfs_plan *plan, uint32_t port, const struct plan_batch *last)
{
	struct plan_candidates_list *list = &plan->candidates[port];
	struct plan_request *best = NULL;
	int64_t most = 0, next_red = INT64_MAX;

	for (struct plan_candidates *at = list->at; at < list->at + list->n; at++) {
		uint32_t c;

		if (at->top < most || !at->top)
			continue;
		if (at->red > last->red || (at->red == last->red && plan_batch_before(last, at->batch))) {
			next_red = plan_min(next_red, at->red);
			continue;
		}
		c = first_that_counts(plan, at->batch, at->k);
		at->top = c < at->batch->column[at->k + 1].begin ? at->batch->cell[c].busy : 0;
		if (at->top > most ||
		    (best && at->top == most && plan_batch_before(best->batch, at->batch))) {
			most = at->top;
			best = &at->batch->request[at->batch->cell[c].request];
		}
	}
	if (!best)
		plan->no_victim_before[port] = next_red;
	return best;
}

static bool may_have_victim(const struct mfs_plan *plan, const struct plan_walk *walk,
			    const struct plan_batch *batch)
{
	return walk->slowest != MFS_PLAN_NO_PORT && batch->red >= plan->no_victim_before[walk->slowest];
}

/* Prunes one request for the batch. Returns false if that cannot help. */
static bool prune_one(struct mfs_plan *plan, struct plan_walk *walk, const struct plan_batch *batch)
{
	uint32_t port = walk->slowest, loads;
	struct plan_request *victim =
		may_have_victim(plan, walk, batch) ? find_victim(plan, port, batch) : NULL;

	if (!victim)
		return false;
	victim->flags |= PLAN_PRUNED;
	victim->why.for_batch = batch->id;
	victim->why.port = port;
	loads = plan_request_count(plan, victim, -1);
	for (uint32_t i = 0; i < loads; i++) {
		plan->load[plan->part[i].port] -= plan->part[i].busy_ns;
		if (plan->part[i].port == port)
			victim->why.busy_ns = plan->part[i].busy_ns;
	}
	plan->pruned.at[plan->pruned.n++] =
		(struct plan_out){victim, victim->why.busy_ns, port, batch->chunk->at};
	plan_mark(plan, victim);
	plan_walk_longest(plan, walk, plan_greatest(plan->load, plan->config.ports));
	return true;
}

/* Walks through the chunk, and prunes while one of its batches is late. */
static void prune_chunk(struct mfs_plan *plan, struct fixed_walk *fixed, struct plan_chunk *chunk)
{
	struct plan_walk walk;

	plan_walk_begin(plan, &walk, chunk);
	chunk->known = true; /* cleared if pruning a request changes what was already found */
	for (struct plan_slot *slot = chunk->slot; slot < chunk->slot + chunk->n; slot++) {
		plan_walk_on(plan, &walk, chunk, (uint32_t)(slot - chunk->slot));
		if (is_late(plan, slot, walk.longest) && may_have_victim(plan, &walk, slot->batch) &&
		    !is_hopeless(plan, fixed, chunk, slot))
			while (plan->pruned.n < plan->budget && is_late(plan, slot, walk.longest))
				if (!prune_one(plan, &walk, slot->batch))
					break;
		slot->longest = walk.longest;
	}
}

static bool may_be_late(const struct mfs_plan *plan, const struct plan_chunk *chunk)
{
	for (const struct plan_slot *slot = chunk->slot; slot < chunk->slot + chunk->n; slot++)
		if (is_late(plan, slot, chunk->known ? slot->longest : chunk->top))
			return true;
	return false;
}

static void prune(struct mfs_plan *plan)
{
	struct fixed_walk fixed = {.of_all = plan_greatest(plan->fixed_total, plan->config.ports)};

	memset(plan->fixed, 0, plan->config.ports * sizeof(*plan->fixed));
	for (uint32_t u = 0; u < plan->config.ports; u++)
		plan->no_victim_before[u] = INT64_MIN;
	for (uint32_t c = 0; c < plan->chunk.n && plan->pruned.n < plan->budget; c++)
		if (may_be_late(plan, plan->chunk.at[c]))
			prune_chunk(plan, &fixed, plan->chunk.at[c]);
	plan_tidy(plan);
}

int mfs_plan_evaluate(struct mfs_plan *plan, int64_t now_ns)
{
	if (now_ns < -MFS_PLAN_TIME_MAX || now_ns > MFS_PLAN_TIME_MAX)
		return -ERANGE;
	plan->now = now_ns;
	check_all_feasible(plan);
	plan_tidy(plan);
	plan->budget =
		(uint32_t)(((uint64_t)plan->requests * plan->config.drop_budget_ppm + 999999) / 1000000);
	plan->budget -= plan->spent < plan->budget ? plan->spent : plan->budget;
	if (plan->pruned.n > plan->budget) { /* the most urgent ones return */
		for (uint32_t i = 0; i < plan->pruned.n - plan->budget; i++)
			give_back(plan, plan->pruned.at[i].request);
		plan_tidy(plan);
	}
	if (plan->pruned.n)
		readmit(plan);
	if (plan->pruned.n < plan->budget)
		prune(plan);
	return 0;
}
