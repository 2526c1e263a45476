/* The calls of plan.h: batches come and go. mfs_plan_evaluate() decides what follows from that. */
#include "state.h"

/* Counts the memory that the plan needs, or cuts it from the arena. */
static struct mfs_plan *take_tables(struct mfs_plan *plan, struct mfs_arena *arena)
{
	size_t n = (size_t)plan->config.ports + 1;
	struct mfs_plan *place = mfs_arena_take(arena, sizeof(*plan));

	plan->start = mfs_arena_take(arena, sizeof(*plan->start) + n * sizeof(*plan->start->behind));
	plan->total = mfs_arena_take(arena, n * sizeof(*plan->total));
	plan->load = mfs_arena_take(arena, n * sizeof(*plan->load));
	plan->fixed_total = mfs_arena_take(arena, n * sizeof(*plan->fixed_total));
	plan->fixed = mfs_arena_take(arena, n * sizeof(*plan->fixed));
	plan->no_victim_before = mfs_arena_take(arena, n * sizeof(*plan->no_victim_before));
	plan->candidates = mfs_arena_take(arena, n * sizeof(*plan->candidates));
	plan->part = mfs_arena_take(arena, n * sizeof(*plan->part));
	plan->stamp = mfs_arena_take(arena, n * sizeof(*plan->stamp));
	plan->port = mfs_arena_take(arena, n * sizeof(*plan->port));
	plan->k_of = mfs_arena_take(arena, n * sizeof(*plan->k_of));
	return place;
}

int mfs_plan_create(struct mfs_plan **out, const struct mfs_plan_config *config)
{
	struct mfs_plan plan = {.config = *config};
	struct mfs_arena arena = {0};

	if (config->drop_budget_ppm > 1000000 ||
	    !(config->readmission_margin >= 0 && config->readmission_margin <= 1))
		return -EINVAL;
	take_tables(&plan, &arena);
	plan.bytes = arena.used;
	if (!mfs_arena_map(&arena))
		return -ENOMEM;
	*out = take_tables(&plan, &arena);
	plan.start->at = PLAN_NONE; /* so the index of the chunk behind it is 0 */
	plan.start->behind = (int64_t *)plan.start->slot;
	**out = plan;
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
	for (uint32_t u = 0; u < plan->config.ports; u++)
		free(plan->candidates[u].at);
	free(plan->chunk.at);
	free(plan->spare);
	free(plan->pruned.at);
	free(plan->merging.at);
	free(plan->batch_of.slot);
	free(plan->request_of.slot);
	free(plan->changed.at);
	free(plan->gone.at);
	mfs_arena_unmap(plan, plan->bytes);
}

/* -- coming and going */

static void count_batch(struct mfs_plan *plan, const struct plan_batch *batch, int sign)
{
	plan->batches += (uint32_t)sign;
	plan->requests += (uint32_t)sign * batch->requests;
	for (uint32_t c = 0; c < batch->column[batch->ports].begin; c++)
		plan->total[batch->cell[c].port] += sign * batch->cell[c].busy;
	for (uint32_t i = 0; i < batch->fixed_loads; i++) {
		plan->total[batch->fixed[i].port] += sign * batch->fixed[i].busy_ns;
		plan->fixed_total[batch->fixed[i].port] += sign * batch->fixed[i].busy_ns;
	}
}

/* True if the total promised stays within MFS_PLAN_TIME_MAX when the batch replaces `old`. The row of the
 * batch has only its fixed loads yet. */
static bool within_limit(struct mfs_plan *plan, const struct plan_batch *old, const struct plan_batch *batch)
{
	bool within = true;

	if (old)
		count_batch(plan, old, -1);
	for (uint32_t k = 0; within && k < batch->ports; k++) {
		int64_t left = MFS_PLAN_TIME_MAX - plan->total[batch->row[k].port] - batch->row[k].busy_ns;

		for (uint32_t c = batch->column[k].begin; left >= 0 && c < batch->column[k + 1].begin; c++)
			left -= batch->cell[c].busy;
		within = left >= 0;
	}
	if (old)
		count_batch(plan, old, 1);
	return within;
}

static void detach(struct mfs_plan *plan, struct plan_batch *batch)
{
	bool pruned = false;

	for (uint32_t r = 0; r < batch->requests; r++) {
		struct plan_request *request = &batch->request[r];

		pruned |= request->flags & PLAN_PRUNED;
		plan->infeasible -= !!(request->flags & PLAN_INFEASIBLE);
		plan_unmark(plan, request);
		request->flags = 0;
		mfs_map_remove(&plan->request_of, request->why.request);
	}
	if (pruned)
		plan_tidy(plan);
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

		mfs_map_add(&plan->request_of, request->why.request, request);
		if (request->flags)
			plan_mark(plan, request);
		if (request->flags & PLAN_PRUNED)
			plan->pruned.at[plan->pruned.n++] = (struct plan_out){request, 0, 0, PLAN_NONE};
	}
	for (uint32_t c = 0; c < batch->column[batch->ports].begin; c++)
		if (plan_counts(plan, &batch->request[batch->cell[c].request]))
			batch->row[batch->cell[c].k].busy_ns += batch->cell[c].busy;
	plan_candidates_add(plan, batch);
	plan_order_insert(plan, batch);
	count_batch(plan, batch, 1);
}

/* Reserves everything that attach() and the evaluation may fill, so that they cannot fail. The lists of requests
 * hold at most all requests. `gone` holds at most what the last delta reported, all of which was active then. */
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

/* A request of a batch that is replaced stays pruned, for the same reason. */
static void carry(struct plan_request *request, struct plan_request *old)
{
	request->flags = old->flags & (PLAN_PRUNED | PLAN_REPORTED);
	request->why = old->why;
	old->flags &= (uint8_t)~PLAN_REPORTED;
}

int mfs_plan_put(struct mfs_plan *plan, const struct mfs_plan_batch *from)
{
	struct plan_batch *old = mfs_map_find(&plan->batch_of, from->id), *batch = NULL;
	int rc = plan_batch_build(plan, from, &batch);

	for (uint32_t r = 0; !rc && r < batch->requests; r++) {
		const struct plan_request *owner =
			mfs_map_find(&plan->request_of, batch->request[r].why.request);

		if (owner && owner->batch != old)
			rc = -EEXIST;
	}
	rc = rc ? rc : reserve(plan, batch);
	if (!rc && !within_limit(plan, old, batch))
		rc = -ERANGE;
	if (rc) {
		free(batch);
		return rc;
	}
	for (uint32_t r = 0; old && r < batch->requests; r++) {
		struct plan_request *owner = mfs_map_find(&plan->request_of, batch->request[r].why.request);

		if (owner)
			carry(&batch->request[r], owner);
	}
	if (old)
		detach(plan, old);
	attach(plan, batch);
	return 0;
}

int mfs_plan_remove(struct mfs_plan *plan, uint64_t batch_id)
{
	struct plan_batch *batch = mfs_map_find(&plan->batch_of, batch_id);

	if (!batch)
		return -ENOENT;
	detach(plan, batch);
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

void mfs_plan_spend(struct mfs_plan *plan, uint32_t requests)
{
	plan->spent = requests;
}

static int64_t row_load(const struct plan_batch *batch, uint32_t port)
{
	for (uint32_t k = 0; k < batch->ports && batch->row[k].port <= port; k++)
		if (batch->row[k].port == port)
			return batch->row[k].busy_ns;
	return 0;
}

int64_t mfs_plan_promised(const struct mfs_plan *plan, uint32_t port, int64_t red_ns)
{
	uint32_t low = 0, high = plan->chunk.n;
	int64_t sum;

	if (port >= plan->config.ports || !plan->chunk.n)
		return 0;
	while (low < high) { /* find the first chunk that ends later */
		uint32_t middle = (low + high) / 2;
		const struct plan_chunk *chunk = plan->chunk.at[middle];

		if (!chunk->n || chunk->slot[chunk->n - 1].batch->red <= red_ns)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == plan->chunk.n)
		return plan->chunk.at[low - 1]->behind[port];
	sum = plan_front(plan, plan->chunk.at[low])->behind[port];
	for (uint32_t i = 0; i < plan->chunk.at[low]->n; i++)
		if (plan->chunk.at[low]->slot[i].batch->red <= red_ns)
			sum += row_load(plan->chunk.at[low]->slot[i].batch, port);
	return sum;
}

struct mfs_plan_counts mfs_plan_counts(const struct mfs_plan *plan)
{
	return (struct mfs_plan_counts){plan->batches, plan->requests, plan->pruned.n, plan->infeasible,
					plan->budget};
}

void mfs_plan_places(struct mfs_plan *plan, struct mfs_plan_place *out)
{
	struct plan_walk walk;

	for (uint32_t c = 0; c < plan->chunk.n; c++) {
		plan_walk_begin(plan, &walk, plan->chunk.at[c]);
		for (uint32_t i = 0; i < plan->chunk.at[c]->n; i++) {
			const struct plan_batch *batch = plan->chunk.at[c]->slot[i].batch;
			int64_t passed;

			plan_walk_on(plan, &walk, plan->chunk.at[c], i);
			passed = walk.longest + (plan->config.paper ? batch->compute : 0);
			*out++ = (struct mfs_plan_place){batch->id, batch->red, batch->loose,
							 plan->now + plan_max(passed, batch->compute),
							 walk.slowest};
		}
	}
}

void mfs_plan_pruned(const struct mfs_plan *plan, struct mfs_plan_pruned *out)
{
	for (uint32_t i = 0; i < plan->pruned.n; i++)
		out[i] = plan->pruned.at[i].request->why;
}

void mfs_plan_infeasible(const struct mfs_plan *plan, uint64_t *out)
{
	for (uint64_t i = 0; plan->requests && i <= plan->request_of.mask; i++) {
		const struct plan_request *request = plan->request_of.slot[i].value;

		if (request && request->flags & PLAN_INFEASIBLE)
			*out++ = request->why.request;
	}
}
