/*
 * One event of Algorithm 1 (mfsd/policy/pruning.py): what was pruned stays so, readmission, pruning.
 *
 * Readmission. With what is pruned before it, batch i ends its longest port at M_i and may end it at H_i with
 * the margin kept; a candidate of position p with load l on ports u returns when for every i >= p and u
 * time_u(S_i(u) + l(u)) <= G_i = max(M_i, H_i). A return moves M_i only below H_i, so it changes no G_i: all
 * candidates are held against the same G. Since S only grows along the order, the least G from i on may
 * stand for G_i: where it belongs to a later position, that one is the stricter test. So one walk back gives
 * spare_u(p), what still fits on u from p on, and what returns before a candidate (at an earlier place) just
 * comes off it.
 */
#include <string.h>

#include "state.h"

/* Drops from the list what lost its flag. */
static void compact(struct mfs_plan *plan)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; plan->pruned_stale && i < plan->pruned.n; i++)
		if (plan->pruned.at[i]->flags & PLAN_PRUNED)
			plan->pruned.at[kept++] = plan->pruned.at[i];
	if (plan->pruned_stale)
		plan->pruned.n = kept;
	plan->pruned_stale = false;
}

/* The most urgent come back when the drop budget has shrunk. */
static void trim(struct mfs_plan *plan)
{
	uint32_t over = plan->pruned.n > plan->budget ? plan->pruned.n - plan->budget : 0;

	for (uint32_t i = 0; i < over; i++)
		plan_give_back(plan, plan->pruned.at[i]);
	compact(plan);
}

/* The batch of this position is the reason why the request cannot return. */
static void note_witness(struct mfs_plan *plan, struct plan_request *request, const struct plan_cell *cell, uint32_t at)
{
	struct plan_row *row = plan->row_at.at[at];
	int64_t longest = plan->longest_at.at[at], room = plan_room(plan, row->due, row->loose);
	int64_t bears = plan_within(plan, 0, room > longest ? room : longest);

	if (plan->classes == 1)
		plan_refuse(plan, request, row->batch, plan_port(request->batch->row, cell->k),
			    bears - cell->spare + cell->amount);
}

/* Notes what fits on the request's ports; whether it would return if no other did. */
static bool fits_alone(struct mfs_plan *plan, struct plan_request *request)
{
	struct plan_batch *batch = request->batch;

	for (uint32_t i = 0; i < request->parts; i++) {
		struct plan_cell *cell = &batch->cell[request->part[i]];
		uint32_t port = plan_port(batch->row, cell->k);

		cell->spare = plan->spare[port];
		if (cell->spare < cell->amount) {
			note_witness(plan, request, cell, (uint32_t)plan->spare_at[port]);
			return false;
		}
	}
	return true;
}

static bool fits(const struct mfs_plan *plan, const struct plan_request *request)
{
	const struct plan_batch *batch = request->batch;

	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];

		if (cell->spare - plan->taken[plan_port(batch->row, cell->k)] < cell->amount)
			return false;
	}
	return true;
}

/* Fetches into the cache what fits_alone() will look at in a few turns: pointer by pointer, each in time for the
 * next. */
static inline void fetch(struct plan_request *const *pruned, uint32_t left)
{
	if (left < 12)
		return;
	__builtin_prefetch(pruned[left - 12]);
	__builtin_prefetch(pruned[left - 8]->part);
	__builtin_prefetch(pruned[left - 8]->batch);
	__builtin_prefetch(pruned[left - 4]->batch->cell);
	__builtin_prefetch(pruned[left - 4]->batch->row);
}

/* Brings back, most urgent first, what fits. Follows plan_walk, and uses up its S. */
static void readmit(struct mfs_plan *plan)
{
	uint32_t left = plan->pruned.n, candidates = 0, least_at = 0;
	int64_t least = 2 * MFS_PLAN_TIME_MAX;

	for (uint32_t u = 0; u < plan->ports; u++)
		plan->spare[u] = INT64_MAX;
	for (uint32_t i = 0; i < plan->classes; i++)
		plan->class_time[i] = -1;
	for (uint32_t i = plan->order.n; left; i--) {
		struct plan_row *row = plan->row_at.at[i - 1];
		int64_t margin, longest = plan->longest_at.at[i - 1], time;

		plan_row_fetch(row, -PLAN_AHEAD);
		margin = plan_room(plan, row->due, row->loose);
		time = margin > longest ? margin : longest;
		least_at = time <= least ? i - 1 : least_at;
		least = time < least ? time : least;
		plan_walk_back(plan, row, least, least_at);
		for (; left && plan->pruned.at[left - 1]->batch == row->batch; left--) {
			fetch(plan->pruned.at, left);
			if (fits_alone(plan, plan->pruned.at[left - 1]))
				plan->fresh.at[candidates++] = plan->pruned.at[left - 1];
		}
	}
	if (!candidates)
		return;
	memset(plan->taken, 0, plan->ports * sizeof(*plan->taken));
	while (candidates--) {
		struct plan_request *request = plan->fresh.at[candidates];
		const struct plan_batch *batch = request->batch;
		bool before;

		if (!fits(plan, request))
			continue;
		plan_give_back(plan, request);
		before = plan->first_unfit < plan->order.n &&
			 plan_batch_before(batch, plan->row_at.at[plan->first_unfit]->batch);
		for (uint32_t i = 0; i < request->parts; i++) {
			const struct plan_cell *cell = &batch->cell[request->part[i]];
			uint32_t u = plan_port(batch->row, cell->k);

			plan->taken[u] += cell->amount;
			if (before)
				plan->load_before_unfit[u] += cell->amount;
		}
	}
	compact(plan);
}

/* The first cell of the column whose request counts; the column's end when none does. */
static uint32_t top_cell(const struct mfs_plan *plan, struct plan_batch *batch, uint32_t k)
{
	uint32_t c = batch->cursor[k], end = batch->column[k + 1];

	while (c < end && !plan_counts(plan, &batch->request[batch->cell[c].request]))
		c++;
	batch->cursor[k] = c;
	return c;
}

/* The request with the most load on the port, of batches up to `last`: of equal ones the least urgent
 * batch's, then the greater number. NULL: none has any. */
static struct plan_request *find_victim(struct mfs_plan *plan, uint32_t port, const struct plan_batch *last,
					int64_t *amount)
{
	struct plan_touches *touches = &plan->touch[port];
	struct plan_batch *best = NULL;
	uint32_t best_cell = 0;
	int64_t most = 0;

	for (uint32_t i = 0; i < touches->n; i++) {
		struct plan_touch *touch = &touches->at[i];
		struct plan_batch *batch = touch->batch;
		uint32_t c;

		if (touch->top < most || !touch->top || touch->red > last->red ||
		    (touch->red == last->red && plan_batch_before(last, batch)))
			continue;
		c = top_cell(plan, batch, touch->k);
		touch->top = c < batch->column[touch->k + 1] ? batch->cell[c].amount : 0;
		if (touch->top > most || (best && touch->top == most && plan_batch_before(best, batch))) {
			most = touch->top;
			best = batch;
			best_cell = c;
		}
	}
	*amount = most;
	return best ? &best->request[best->cell[best_cell].request] : NULL;
}

/* Variant mfs: late by compute alone, or even with every request of everybody pruned. `done`: batches whose fixed loads
 * are counted. */
static bool hopeless(struct mfs_plan *plan, uint32_t at, uint32_t *done)
{
	int64_t due = plan->order.at[at]->row->due;

	if (plan->paper)
		return false;
	if (plan->now > plan->order.at[at]->row->helped)
		return true;
	if (plan->classes == 1 && plan_sums_longest(plan, &plan->all_fixed) + plan->now <= due)
		return false;
	for (; plan->batches_with_fixed && *done <= at; ++*done) {
		struct plan_batch *batch = plan->order.at[*done];

		if (*done + 8 < plan->order.n) {
			__builtin_prefetch(plan->order.at[*done + 8]);
			__builtin_prefetch(plan->order.at[*done + 4]->fixed);
			__builtin_prefetch(plan->order.at[*done + 4]->row);
		}
		if (batch->fixed)
			plan_walk_grow(plan, &plan->fixed, batch->row, batch->fixed, true);
	}
	return plan->fixed.longest + plan->now > due;
}

/* A port without candidates stays so until a batch brings one. */
static void clear_barren(struct mfs_plan *plan, struct plan_batch *batch)
{
	for (uint32_t k = 0; plan->barrens && k < batch->row->n; k++) {
		uint32_t u = plan_port(batch->row, k);

		if (plan->barren[u] && top_cell(plan, batch, k) < batch->column[k + 1]) {
			plan->barren[u] = 0;
			plan->barrens--;
		}
	}
}

static void clear_barrens(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	for (uint32_t o = 0; plan->barrens && o < chunk->used; o += ((struct plan_row *)(chunk->rows + o))->bytes)
		clear_barren(plan, ((struct plan_row *)(chunk->rows + o))->batch);
}

/* Prunes one request for the batch; false when that cannot help. */
static bool prune_one(struct mfs_plan *plan, struct plan_batch *batch, uint32_t *victims)
{
	uint32_t port = plan->walk.slowest;
	struct plan_request *victim;
	int64_t amount;

	if (port == MFS_PLAN_NO_PORT || plan->barren[port])
		return false;
	victim = find_victim(plan, port, batch, &amount);
	if (!victim) {
		plan->barren[port] = 1;
		plan->barrens++;
		return false;
	}
	victim->flags |= PLAN_PRUNED;
	victim->for_batch = batch->id;
	victim->port = port;
	victim->amount = amount;
	plan->fresh.at[(*victims)++] = victim;
	plan_load_out(plan, victim);
	for (uint32_t i = 0; i < victim->parts; i++) {
		const struct plan_cell *cell = &victim->batch->cell[victim->part[i]];

		plan->walk.load[plan_port(victim->batch->row, cell->k)] -= cell->amount;
	}
	plan_refuse(plan, victim, batch, port, plan->walk.load[port] + amount);
	plan_walk_longest(plan);
	plan_mark(plan, victim);
	return true;
}

static int compare_urgency(const void *a, const void *b)
{
	return plan_request_before(*(struct plan_request *const *)a, *(struct plan_request *const *)b) ? -1 : 1;
}

/* New victims into the list, which stays in order of urgency. */
static void merge(struct mfs_plan *plan, uint32_t victims)
{
	struct plan_request **old = plan->pruned.at, **add = plan->fresh.at, **to;
	uint32_t i = plan->pruned.n, j = victims;

	qsort(add, victims, sizeof(*add), compare_urgency);
	to = old + i + j;
	while (j)
		*--to = i && plan_request_before(add[j - 1], old[i - 1]) ? old[--i] : add[--j];
	plan->pruned.n += victims;
}

static void prune_begin(struct mfs_plan *plan)
{
	plan_walk_reset(plan, &plan->fixed);
	memset(plan->barren, 0, plan->ports * sizeof(*plan->barren));
	plan->barrens = 0;
}

/* One batch of the walk, that of position `at`: prunes while it does not fit. Answers `within`. */
static int64_t prune_at(struct mfs_plan *plan, struct plan_row *row, uint32_t at, int64_t within, uint32_t *victims,
			uint32_t *done)
{
	within = plan_walk_on(plan, row, within);
	if (plan->barrens)
		clear_barren(plan, row->batch);
	if (plan->walk.longest + plan->now <= row->due || hopeless(plan, at, done))
		return within;
	plan_walk_longest(plan); /* by which port */
	while (plan->walk.longest + plan->now > row->due && plan->pruned.n + *victims < plan->budget)
		if (!prune_one(plan, row->batch, victims))
			break;
	return plan->walk.longest ? plan_within(plan, 0, plan->walk.longest) : 0;
}

/* Walks on from the first batch that does not fit, and prunes where one does not. */
static void prune(struct mfs_plan *plan)
{
	uint32_t victims = 0, done = 0;
	int64_t within;

	prune_begin(plan);
	memcpy(plan->walk.load, plan->load_before_unfit, plan->ports * sizeof(*plan->walk.load));
	plan_walk_longest(plan);
	within = plan->walk.longest ? plan_within(plan, 0, plan->walk.longest) : 0;
	/* behind the last one that did not fit when nothing was pruned yet, all fit: loads only become less */
	for (uint32_t at = plan->first_unfit; at <= plan->last_unfit && plan->pruned.n + victims < plan->budget; at++) {
		plan_row_fetch(plan->row_at.at[at], PLAN_AHEAD);
		within = prune_at(plan, plan->row_at.at[at], at, within, &victims, &done);
	}
	if (victims)
		merge(plan, victims);
}

/* The same, where S in front of each chunk is known: walks only through chunks in which a batch may not fit. */
static void prune_by_chunks(struct mfs_plan *plan)
{
	uint32_t victims = 0, done = 0;

	prune_begin(plan);
	for (uint32_t c = 0; c < plan->chunk.n && plan->pruned.n + victims < plan->budget; c++) {
		struct plan_chunk *chunk = plan->chunk.at[c];
		uint32_t at = plan->bound.at[c].first;
		int64_t within;

		if (!plan_block_is_late(plan, chunk)) {
			clear_barrens(plan, chunk);
			continue;
		}
		memcpy(plan->walk.load, chunk->before.load, plan->ports * sizeof(*plan->walk.load));
		plan->walk.longest = plan_sums_longest(plan, &chunk->before);
		within = plan->walk.longest ? plan_within(plan, 0, plan->walk.longest) : 0;
		for (uint32_t o = 0; o < chunk->used && plan->pruned.n + victims < plan->budget; at++) {
			struct plan_row *row = (struct plan_row *)(chunk->rows + o);

			within = prune_at(plan, row, at, within, &victims, &done);
			o += row->bytes;
		}
	}
	if (victims)
		merge(plan, victims);
}

/* What arrived or departed is in the tables, and plan->now is set. */
void plan_event(struct mfs_plan *plan)
{
	plan_lost_settle(plan);
	compact(plan);
	plan->budget = (uint32_t)(((uint64_t)plan->requests * plan->ppm + 999999) / 1000000);
	trim(plan);
	if (plan->classes == 1) {
		plan_block_bounds(plan);
		if (!plan->pruned.n || plan_block_readmit(plan)) {
			compact(plan);
			if (plan->pruned.n < plan->budget)
				prune_by_chunks(plan);
			return;
		}
	}
	plan_walk(plan);
	if (plan->pruned.n)
		readmit(plan);
	if (plan->first_unfit < plan->order.n && plan->pruned.n < plan->budget)
		prune(plan);
}
