/* The tables of plan.h: batches come and go; plan_evaluate() decides what follows. */
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

	if (config->drop_budget_ppm > 1000000 || !(config->readmission_margin >= 0 && config->readmission_margin <= 1))
		return -EINVAL;
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return -ENOMEM;
	plan->paper = config->paper;
	plan->ppm = config->drop_budget_ppm;
	plan->margin = config->readmission_margin;
	plan->ports = n;
	plan->none = table(n, sizeof(*plan->none), &failed);
	plan->total = table(n, sizeof(*plan->total), &failed);
	plan->load = table(n, sizeof(*plan->load), &failed);
	plan->fixed_total = table(n, sizeof(*plan->fixed_total), &failed);
	plan->fixed = table(n, sizeof(*plan->fixed), &failed);
	plan->nobody_till = table(n, sizeof(*plan->nobody_till), &failed);
	plan->candidates = table(n, sizeof(*plan->candidates), &failed);
	plan->stamp = table(n, sizeof(*plan->stamp), &failed);
	plan->k_of = table(n, sizeof(*plan->k_of), &failed);
	plan->port = table(n, sizeof(*plan->port), &failed);
	plan->part = table(n, sizeof(*plan->part), &failed);
	if (failed) {
		mfs_plan_destroy(plan);
		return -ENOMEM;
	}
	*out = plan;
	return 0;
}

void mfs_plan_destroy(struct mfs_plan *plan)
{
	if (!plan)
		return;
	for (uint32_t c = 0; c < plan->chunk.n; c++) {
		for (uint32_t i = 0; i < plan->chunk.at[c]->n; i++)
			free(plan->chunk.at[c]->slot[i].batch);
		free(plan->chunk.at[c]);
	}
	for (uint32_t u = 0; plan->candidates && u < plan->ports; u++)
		free(plan->candidates[u].at);
	free(plan->none);
	free(plan->total);
	free(plan->load);
	free(plan->fixed_total);
	free(plan->fixed);
	free(plan->nobody_till);
	free(plan->candidates);
	free(plan->stamp);
	free(plan->k_of);
	free(plan->port);
	free(plan->part);
	free(plan->chunk.at);
	free(plan->spare);
	free(plan->bound.at);
	free(plan->pruned.at);
	free(plan->merging.at);
	free(plan->batch_of.slot);
	free(plan->request_of.slot);
	free(plan->changed.at);
	free(plan->gone.at);
	free(plan);
}

/* -- promised totals: what keeps every sum within MFS_PLAN_TIME_MAX */

static void totals_add(struct mfs_plan *plan, const struct plan_batch *batch, int sign)
{
	for (uint32_t c = 0; c < batch->column[batch->ports].begin; c++)
		plan->total[batch->cell[c].port] += sign * batch->cell[c].busy;
	for (uint32_t i = 0; i < batch->fixed_loads; i++)
		plan->total[batch->fixed[i].port] += sign * batch->fixed[i].busy;
}

/* Puts the new batch's loads, of which only the fixed ones are in its row yet, in the place of the old one's. -ERANGE. */
static int totals_replace(struct mfs_plan *plan, const struct plan_batch *old, const struct plan_batch *batch)
{
	bool over = false;

	if (old)
		totals_add(plan, old, -1);
	for (uint32_t k = 0; k < batch->ports; k++) {
		/* the sum of all cells may overflow: check each on its way */
		int64_t left = MFS_PLAN_TIME_MAX - plan->total[batch->row[k].port] - batch->row[k].busy;

		for (uint32_t c = batch->column[k].begin; left >= 0 && c < batch->column[k + 1].begin; c++)
			left -= batch->cell[c].busy;
		over |= left < 0;
	}
	if (!over)
		totals_add(plan, batch, 1);
	else if (old)
		totals_add(plan, old, 1);
	return over ? -ERANGE : 0;
}

/* -- coming and going */

static void count_batch(struct mfs_plan *plan, const struct plan_batch *batch, int sign)
{
	plan->batches += (uint32_t)sign;
	plan->requests += (uint32_t)sign * batch->requests;
	for (uint32_t i = 0; i < batch->fixed_loads; i++)
		plan->fixed_total[batch->fixed[i].port] += sign * batch->fixed[i].busy;
}

static void detach(struct mfs_plan *plan, struct plan_batch *batch)
{
	uint32_t kept = 0, sorted = 0;
	bool pruned = false;

	for (uint32_t r = 0; r < batch->requests; r++) {
		struct plan_request *request = &batch->request[r];

		pruned |= request->flags & PLAN_PRUNED;
		plan->infeasible -= !!(request->flags & PLAN_INFEASIBLE);
		plan_unmark(plan, request);
		mfs_map_remove(&plan->request_of, request->id);
	}
	for (uint32_t i = 0; pruned && i < plan->pruned.n; i++)
		if (plan->pruned.at[i].request->batch != batch) {
			sorted += i < plan->sorted;
			plan->pruned.at[kept++] = plan->pruned.at[i];
		}
	if (pruned) {
		plan->pruned.n = kept;
		plan->sorted = sorted;
	}
	mfs_map_remove(&plan->batch_of, batch->id);
	plan_candidates_remove(plan, batch);
	plan_order_remove(plan, batch);
	count_batch(plan, batch, -1);
	free(batch);
}

static void attach(struct mfs_plan *plan, struct plan_batch *batch)
{
	mfs_map_add(&plan->batch_of, batch->id, batch);
	for (uint32_t r = 0; r < batch->requests; r++) {
		struct plan_request *request = &batch->request[r];

		mfs_map_add(&plan->request_of, request->id, request);
		if (request->latest < plan->now) {
			request->flags |= PLAN_INFEASIBLE;
			plan->infeasible++;
		}
		if (request->flags)
			plan_mark(plan, request);
		if (request->flags & PLAN_INFEASIBLE && !plan->paper)
			request->flags &= (uint8_t)~PLAN_PRUNED;
		if (request->flags & PLAN_PRUNED)
			plan->pruned.at[plan->pruned.n++] = (struct plan_out){ request, 0, 0, PLAN_NONE };
	}
	for (uint32_t c = 0; c < batch->column[batch->ports].begin; c++)
		if (plan_counts(plan, &batch->request[batch->cell[c].request]))
			batch->row[batch->cell[c].k].busy += batch->cell[c].busy;
	plan_candidates_add(plan, batch);
	plan_order_insert(plan, batch);
	count_batch(plan, batch, 1);
}

/* Everything that attach() and the evaluation may fill, so that they cannot fail. The lists of requests hold all of them
 * at most; `gone` what the last delta reported, which was active then. */
static int reserve(struct mfs_plan *plan, const struct plan_batch *batch)
{
	uint64_t requests = (uint64_t)plan->requests + batch->requests;
	int rc = plan_order_reserve(plan);

	rc = rc ? rc : PLAN_RESERVE(plan->pruned, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->merging, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->changed, requests);
	rc = rc ? rc : PLAN_RESERVE(plan->gone, requests);
	rc = rc ? rc : mfs_map_reserve(&plan->batch_of, (uint64_t)plan->batches + 1);
	rc = rc ? rc : mfs_map_reserve(&plan->request_of, requests);
	for (uint32_t k = 0; !rc && k < batch->ports; k++) {
		struct plan_candidates_list *list = &plan->candidates[batch->row[k].port];

		rc = PLAN_RESERVE(*list, (uint64_t)list->n + 1);
	}
	return rc;
}

/* A request of a batch that is replaced stays pruned, for the reason it had. */
static void carry(struct plan_request *request, struct plan_request *old)
{
	request->flags = old->flags & (PLAN_PRUNED | PLAN_REPORTED);
	request->port = old->port;
	request->for_batch = old->for_batch;
	request->busy = old->busy;
	old->flags &= (uint8_t)~PLAN_REPORTED;
}

static bool possible(int64_t now)
{
	return now >= -MFS_PLAN_TIME_MAX && now <= MFS_PLAN_TIME_MAX;
}

int mfs_plan_put(struct mfs_plan *plan, const struct mfs_plan_batch *from, int64_t now_ns)
{
	struct plan_batch *old = mfs_map_find(&plan->batch_of, from->id), *batch = NULL;
	int rc = possible(now_ns) ? plan_batch_build(plan, from, &batch) : -ERANGE;

	for (uint32_t r = 0; !rc && r < batch->requests; r++) {
		const struct plan_request *owner = mfs_map_find(&plan->request_of, batch->request[r].id);

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
	for (uint32_t r = 0; old && r < batch->requests; r++) {
		struct plan_request *owner = mfs_map_find(&plan->request_of, batch->request[r].id);

		if (owner)
			carry(&batch->request[r], owner);
	}
	if (old)
		detach(plan, old);
	attach(plan, batch);
	if (!plan->held)
		plan_evaluate(plan);
	return 0;
}

int mfs_plan_remove(struct mfs_plan *plan, uint64_t batch_id, int64_t now_ns)
{
	struct plan_batch *batch = mfs_map_find(&plan->batch_of, batch_id);

	if (!batch)
		return -ENOENT;
	if (!possible(now_ns))
		return -ERANGE;
	plan->now = now_ns;
	totals_add(plan, batch, -1);
	detach(plan, batch);
	if (!plan->held)
		plan_evaluate(plan);
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
	plan_evaluate(plan);
	return 0;
}

/* -- reading */

bool mfs_plan_active(const struct mfs_plan *plan, uint64_t batch)
{
	return mfs_map_find(&plan->batch_of, batch);
}

bool mfs_plan_owner(const struct mfs_plan *plan, uint64_t request_id, uint64_t *batch)
{
	const struct plan_request *request = mfs_map_find(&plan->request_of, request_id);

	if (request)
		*batch = request->batch->id;
	return request;
}

struct mfs_plan_counts mfs_plan_counts(const struct mfs_plan *plan)
{
	return (struct mfs_plan_counts){ plan->batches, plan->requests, plan->pruned.n, plan->infeasible, plan->budget };
}

void mfs_plan_places(struct mfs_plan *plan, struct mfs_plan_place *out)
{
	struct plan_walk walk;

	plan_walk_begin(plan, &walk, NULL);
	for (uint32_t c = 0; c < plan->chunk.n; c++)
		for (uint32_t i = 0; i < plan->chunk.at[c]->n; i++) {
			const struct plan_batch *batch = plan->chunk.at[c]->slot[i].batch;
			int64_t passed;

			plan_walk_on(plan, &walk, plan->chunk.at[c], i);
			passed = walk.longest + (plan->paper ? batch->compute : 0);
			*out++ = (struct mfs_plan_place){ batch->id, batch->red, batch->loose,
							  plan->now + plan_max(passed, batch->compute), walk.slowest };
		}
}

void mfs_plan_pruned(const struct mfs_plan *plan, struct mfs_plan_pruned *out)
{
	for (uint32_t i = 0; i < plan->pruned.n; i++) {
		const struct plan_request *r = plan->pruned.at[i].request;

		out[i] = (struct mfs_plan_pruned){ r->id, r->batch->id, r->for_batch, r->busy, r->port };
	}
}

void mfs_plan_infeasible(const struct mfs_plan *plan, uint64_t *out)
{
	for (uint32_t c = 0; c < plan->chunk.n; c++)
		for (uint32_t i = 0; i < plan->chunk.at[c]->n; i++) {
			const struct plan_batch *batch = plan->chunk.at[c]->slot[i].batch;

			for (uint32_t r = 0; r < batch->requests; r++)
				if (batch->request[r].flags & PLAN_INFEASIBLE)
					*out++ = batch->request[r].id;
		}
}
