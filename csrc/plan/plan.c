/* The tables of plan.h: batches come and go; plan_event() judges them. */
#include <string.h>

#include "state.h"

static void *table(size_t n, size_t size, bool *failed)
{
	void *at = calloc(n + 1, size);

	*failed |= !at;
	return at;
}

int mfs_plan_create(struct mfs_plan **out, const struct mfs_plan_config *config)
{
	struct mfs_plan *plan;
	uint32_t n = config->ports;
	bool failed = false;
	int rc;

	if (config->drop_budget_ppm > 1000000 || !(config->readmission_margin >= 0 && config->readmission_margin <= 1))
		return -EINVAL;
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return -ENOMEM;
	plan->paper = config->paper;
	plan->ppm = config->drop_budget_ppm;
	plan->margin = config->readmission_margin;
	plan->ports = n;
	plan->walk.load = table(n, sizeof(*plan->walk.load), &failed);
	plan->walk.within = table(n, sizeof(*plan->walk.within), &failed);
	plan->fixed.load = table(n, sizeof(*plan->fixed.load), &failed);
	plan->fixed.within = table(n, sizeof(*plan->fixed.within), &failed);
	plan->spare = table(n, sizeof(*plan->spare), &failed);
	plan->class = table(n, sizeof(*plan->class), &failed);
	plan->capacity = table(n, sizeof(*plan->capacity), &failed);
	plan->ns_per_unit = table(n, sizeof(*plan->ns_per_unit), &failed);
	plan->units_per_ns = table(n, sizeof(*plan->units_per_ns), &failed);
	plan->limit = table(n, sizeof(*plan->limit), &failed);
	plan->total = table(n, sizeof(*plan->total), &failed);
	plan->taken = table(n, sizeof(*plan->taken), &failed);
	plan->shed = table(n, sizeof(*plan->shed), &failed);
	plan->spare_at = table(n, sizeof(*plan->spare_at), &failed);
	plan->load_before_unfit = table(n, sizeof(*plan->load_before_unfit), &failed);
	plan->barren = table(n, sizeof(*plan->barren), &failed);
	plan->touch = table(n, sizeof(*plan->touch), &failed);
	plan->stamp = table(n, sizeof(*plan->stamp), &failed);
	plan->k_of = table(n, sizeof(*plan->k_of), &failed);
	plan->class_port = table(n, sizeof(*plan->class_port), &failed);
	plan->class_within = table(n, sizeof(*plan->class_within), &failed);
	plan->class_time = table(n, sizeof(*plan->class_time), &failed);
	plan->all.load = table(n, sizeof(*plan->all.load), &failed);
	plan->all_fixed.load = table(n, sizeof(*plan->all_fixed.load), &failed);
	rc = failed ? -ENOMEM : plan_time_init(plan, config->capacity_per_s);
	if (rc) {
		mfs_plan_destroy(plan);
		return rc;
	}
	plan->runs = plan_runs();
	*out = plan;
	return 0;
}

void mfs_plan_destroy(struct mfs_plan *plan)
{
	if (!plan)
		return;
	for (uint32_t i = 0; i < plan->order.n; i++)
		free(plan->order.at[i]);
	for (uint32_t u = 0; plan->touch && u < plan->ports; u++)
		free(plan->touch[u].at);
	for (uint32_t c = 0; c < plan->chunk.n; c++)
		plan_chunk_free(plan->chunk.at[c]);
	free(plan->chunk.at);
	plan_chunk_free(plan->spare_chunk[0]);
	plan_chunk_free(plan->spare_chunk[1]);
	free(plan->all.load);
	free(plan->all_fixed.load);
	free(plan->bound.at);
	free(plan->staging);
	free(plan->row_at.at);
	free(plan->walk.load);
	free(plan->walk.within);
	free(plan->fixed.load);
	free(plan->fixed.within);
	free(plan->spare);
	free(plan->class);
	free(plan->capacity);
	free(plan->ns_per_unit);
	free(plan->units_per_ns);
	free(plan->limit);
	free(plan->total);
	free(plan->taken);
	free(plan->shed);
	free(plan->spare_at);
	free(plan->load_before_unfit);
	free(plan->barren);
	free(plan->touch);
	free(plan->stamp);
	free(plan->k_of);
	free(plan->class_port);
	free(plan->class_within);
	free(plan->class_time);
	free(plan->order.at);
	free(plan->longest_at.at);
	free(plan->pruned.at);
	free(plan->fresh.at);
	free(plan->hopeful.at);
	free(plan->lost.at);
	free(plan->batch_of.slot);
	free(plan->request_of.slot);
	free(plan->moved.at);
	free(plan->departed.at);
	free(plan->dirty.at);
	free(plan->gone.at);
	free(plan);
}

/* -- promised totals: what keeps every time within MFS_PLAN_TIME_MAX */

static void totals_add(struct mfs_plan *plan, const struct plan_batch *batch, int sign)
{
	for (uint32_t c = 0; c < batch->column[batch->row->n]; c++)
		plan->total[plan_port(batch->row, batch->cell[c].k)] += sign * batch->cell[c].amount;
	for (uint32_t k = 0; batch->fixed && k < batch->row->n; k++)
		plan->total[plan_port(batch->row, k)] += sign * batch->fixed[k];
}

/* Puts the new batch's loads in the place of the old one's. -ERANGE. */
static int totals_replace(struct mfs_plan *plan, const struct plan_batch *old, const struct plan_batch *batch)
{
	bool over = false;

	if (old)
		totals_add(plan, old, -1);
	/* sums of up to 2^32 cells of 2^61 each overflow: check each on its way */
	for (uint32_t k = 0; k < batch->row->n; k++) {
		uint32_t u = plan_port(batch->row, k);
		int64_t left = plan->limit[u] - plan->total[u] - (batch->fixed ? batch->fixed[k] : 0);

		for (uint32_t c = batch->column[k]; left >= 0 && c < batch->column[k + 1]; c++)
			left -= batch->cell[c].amount;
		over |= left < 0;
	}
	if (over) {
		if (old)
			totals_add(plan, old, 1);
		return -ERANGE;
	}
	totals_add(plan, batch, 1);
	return 0;
}

/* -- candidates for pruning, by port */

static void touches_add(struct mfs_plan *plan, struct plan_batch *batch)
{
	for (uint32_t k = 0; k < batch->row->n; k++) {
		struct plan_touches *touches = &plan->touch[plan_port(batch->row, k)];

		if (batch->column[k] == batch->column[k + 1])
			continue;
		batch->touch_at[k] = touches->n;
		touches->at[touches->n++] =
			(struct plan_touch){ batch, batch->red, batch->cell[batch->column[k]].amount, k };
	}
}

static void touches_remove(struct mfs_plan *plan, struct plan_batch *batch)
{
	for (uint32_t k = 0; k < batch->row->n; k++) {
		struct plan_touches *touches = &plan->touch[plan_port(batch->row, k)];
		struct plan_touch last;

		if (batch->touch_at[k] == PLAN_NONE)
			continue;
		last = touches->at[--touches->n];
		touches->at[batch->touch_at[k]] = last;
		last.batch->touch_at[last.k] = batch->touch_at[k];
	}
}

/* -- coming and going */

/* The first position whose batch does not go before this one. */
static uint32_t position(const struct mfs_plan *plan, const struct plan_batch *batch)
{
	uint32_t low = 0, high = plan->order.n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (plan_batch_before(plan->order.at[middle], batch))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void detach(struct mfs_plan *plan, struct plan_batch *batch)
{
	uint32_t at = position(plan, batch), kept = 0;
	bool pruned = false;

	memmove(plan->order.at + at, plan->order.at + at + 1, (--plan->order.n - at) * sizeof(*plan->order.at));
	for (uint32_t r = 0; r < batch->requests; r++) {
		struct plan_request *request = &batch->request[r];

		pruned |= request->flags & PLAN_PRUNED;
		plan_lost_remove(plan, request);
		plan_unmark(plan, request);
		plan_map_remove(&plan->request_of, request->id);
	}
	for (uint32_t i = 0; i < plan->pruned.n; i++) {
		if (plan->pruned.at[i]->witness == batch)
			plan->pruned.at[i]->witness = NULL;
		if (!pruned || plan->pruned.at[i]->batch != batch)
			plan->pruned.at[kept++] = plan->pruned.at[i];
	}
	plan->pruned.n = kept;
	plan_unmark_batch(plan, batch);
	plan_map_remove(&plan->batch_of, batch->id);
	touches_remove(plan, batch);
	plan->requests -= batch->requests;
	plan->batches_with_fixed -= !!batch->fixed;
	plan_sums_fixed(plan, batch, -1);
	plan_chunk_remove(plan, batch);
	free(batch);
}

static void insert_pruned(struct mfs_plan *plan, struct plan_request *request)
{
	uint32_t at = plan->pruned.n++;

	for (; at && plan_request_before(request, plan->pruned.at[at - 1]); at--)
		plan->pruned.at[at] = plan->pruned.at[at - 1];
	plan->pruned.at[at] = request;
}

static void attach(struct mfs_plan *plan, struct plan_batch *batch, bool keeps_rank)
{
	uint32_t at = position(plan, batch);

	plan_chunk_insert(plan, batch, at);
	memmove(plan->order.at + at + 1, plan->order.at + at, (plan->order.n++ - at) * sizeof(*plan->order.at));
	plan->order.at[at] = batch;
	plan_rank_assign(plan, at, keeps_rank);
	plan_map_add(&plan->batch_of, batch->id, batch);
	touches_add(plan, batch);
	for (uint32_t r = 0; r < batch->requests; r++) {
		struct plan_request *request = &batch->request[r];

		plan_map_add(&plan->request_of, request->id, request);
		plan_lost_add(plan, request);
		if (request->flags & (PLAN_PRUNED | PLAN_LOST | PLAN_TOLD))
			plan_mark(plan, request);
		if ((request->flags & PLAN_LOST) && !plan->paper)
			request->flags &= (uint8_t)~PLAN_PRUNED;
		if (request->flags & PLAN_PRUNED)
			insert_pruned(plan, request);
		if (plan_counts(plan, request))
			plan_load_in(plan, request);
	}
	plan->requests += batch->requests;
	plan->batches_with_fixed += !!batch->fixed;
	plan_sums_fixed(plan, batch, 1);
}

/* Everything that attach() may fill, so that it cannot fail. The lists of requests hold all of them at most;
 * `gone` and `departed` what the last delta told, which was active then. */
static int reserve(struct mfs_plan *plan, const struct plan_batch *batch)
{
	uint64_t batches = (uint64_t)plan->order.n + 1, requests = (uint64_t)plan->requests + batch->requests;
	int rc = PLAN_RESERVE(plan->order, batches);

	rc = rc ? rc : plan_chunk_reserve(plan, batch->row->bytes);
	rc = rc ? rc : PLAN_RESERVE(plan->row_at, batches);
	rc = rc ? rc : PLAN_RESERVE(plan->longest_at, batches);
	rc = rc ? rc : PLAN_RESERVE(plan->moved, batches);
	rc = rc ? rc : PLAN_RESERVE(plan->departed, batches);
	rc = rc ? rc : PLAN_RESERVE(plan->pruned, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->fresh, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->dirty, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->gone, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->hopeful, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->lost, requests);
	rc = rc ? rc : plan_map_reserve(&plan->batch_of, batches);
	rc = rc ? rc : plan_map_reserve(&plan->request_of, requests);
	for (uint32_t k = 0; !rc && k < batch->row->n; k++)
		if (batch->column[k] < batch->column[k + 1]) {
			struct plan_touches *touches = &plan->touch[plan_port(batch->row, k)];

			rc = PLAN_RESERVE(*touches, (uint64_t)touches->n + 1);
		}
	return rc;
}

/* A request of a batch that is replaced stays pruned, for the reason it had. */
static void carry(struct plan_request *request, struct plan_request *old)
{
	request->flags = old->flags & (PLAN_PRUNED | PLAN_TOLD);
	request->port = old->port;
	request->for_batch = old->for_batch;
	request->amount = old->amount;
	old->flags &= (uint8_t)~PLAN_TOLD;
}

static bool possible(int64_t now)
{
	return now >= -MFS_PLAN_TIME_MAX && now <= MFS_PLAN_TIME_MAX;
}

int mfs_plan_put(struct mfs_plan *plan, const struct mfs_plan_batch *from, int64_t now_ns)
{
	struct plan_batch *old = plan_map_find(&plan->batch_of, from->id), *batch = NULL;
	bool keeps_rank = false;
	int rc = possible(now_ns) ? plan_batch_build(plan, from, &batch) : -ERANGE;

	for (uint32_t r = 0; !rc && r < batch->requests; r++) {
		struct plan_request *owner = plan_map_find(&plan->request_of, batch->request[r].id);

		if (owner && owner->batch != old)
			rc = -EEXIST;
	}
	rc = rc ? rc : reserve(plan, batch);
	rc = rc ? rc : totals_replace(plan, old, batch);
	if (rc) {
		free(batch);
		return rc;
	}
	plan->now = now_ns;
	if (old) {
		for (uint32_t r = 0; r < batch->requests; r++) {
			struct plan_request *owner = plan_map_find(&plan->request_of, batch->request[r].id);

			if (owner)
				carry(&batch->request[r], owner);
		}
		batch->flags = old->flags & PLAN_TOLD;
		batch->rank = old->rank;
		keeps_rank = (old->flags & (PLAN_TOLD | PLAN_DIRTY)) == PLAN_TOLD;
		old->flags &= (uint8_t)~PLAN_TOLD;
		detach(plan, old);
	}
	attach(plan, batch, keeps_rank);
	if (!plan->held)
		plan_event(plan);
	return 0;
}

int mfs_plan_remove(struct mfs_plan *plan, uint64_t batch_id, int64_t now_ns)
{
	struct plan_batch *batch = plan_map_find(&plan->batch_of, batch_id);

	if (!batch)
		return -ENOENT;
	if (!possible(now_ns))
		return -ERANGE;
	plan->now = now_ns;
	totals_add(plan, batch, -1);
	detach(plan, batch);
	if (!plan->held)
		plan_event(plan);
	return 0;
}

void mfs_plan_hold(struct mfs_plan *plan)
{
	plan->held = true;
}

int mfs_plan_release(struct mfs_plan *plan, int64_t now_ns)
{
	if (!possible(now_ns))
		return -ERANGE;
	plan->held = false;
	plan->now = now_ns;
	plan_event(plan);
	return 0;
}

/* -- reading */

bool mfs_plan_active(const struct mfs_plan *plan, uint64_t batch)
{
	return plan_map_find(&plan->batch_of, batch);
}

bool mfs_plan_owner(const struct mfs_plan *plan, uint64_t request_id, uint64_t *batch)
{
	const struct plan_request *request = plan_map_find(&plan->request_of, request_id);

	if (request)
		*batch = request->batch->id;
	return request;
}

struct mfs_plan_counts mfs_plan_counts(const struct mfs_plan *plan)
{
	return (struct mfs_plan_counts){ plan->order.n, plan->requests, plan->pruned.n, plan->lost.n, plan->budget };
}

void mfs_plan_places(struct mfs_plan *plan, struct mfs_plan_place *out)
{
	plan_walk_reset(plan, &plan->walk);
	for (uint32_t i = 0; i < plan->order.n; i++) {
		const struct plan_batch *batch = plan->order.at[i];
		int64_t passed;

		plan_walk_add(plan, &plan->walk, batch->row, batch->row->amounts, batch->row->wide);
		passed = plan->walk.longest + (plan->paper ? batch->compute : 0);
		out[i] = (struct mfs_plan_place){ batch->id,
						  batch->red,
						  batch->loose,
						  plan->now + (passed > batch->compute ? passed : batch->compute),
						  plan->walk.slowest,
						  batch->rank };
	}
}

void mfs_plan_pruned(const struct mfs_plan *plan, struct mfs_plan_pruned *out)
{
	for (uint32_t i = 0; i < plan->pruned.n; i++) {
		const struct plan_request *r = plan->pruned.at[i];

		out[i] = (struct mfs_plan_pruned){ r->id, r->batch->id, r->for_batch, r->amount, r->port };
	}
}

void mfs_plan_infeasible(const struct mfs_plan *plan, uint64_t *out)
{
	for (uint32_t i = 0; i < plan->lost.n; i++)
		out[i] = plan->lost.at[i].request->id;
}
