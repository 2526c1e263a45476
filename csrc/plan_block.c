/*
 * One event by chunks: what can be said of all batches of a chunk at once, from S in front of it and behind it. Both
 * the longest port and S grow along the order, so inside the chunk they lie between. Rows are looked at only in
 * chunks in which that leaves the answer open; it is exact in any case.
 */
#include <math.h>
#include <string.h>

#include "plan_state.h"

#ifndef OPEN_MAX
#define OPEN_MAX 384 /* candidates: for more, two walks over everything cost less */
#endif

static int64_t longer(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void look_at_rows(const struct mfs_plan *plan, struct plan_chunk *chunk)
{
	chunk->changed = false;
	chunk->count = 0;
	chunk->least_due = chunk->least_loose = INT64_MAX;
	chunk->least_room = INFINITY;
	chunk->far = 0;
	for (uint32_t o = 0; o < chunk->used; chunk->count++) {
		const struct plan_row *row = (const struct plan_row *)(chunk->rows + o);
		double due = (double)row->due, loose = (double)row->loose, room = due - loose * plan->margin;

		chunk->least_due = row->due < chunk->least_due ? row->due : chunk->least_due;
		chunk->least_loose = row->loose < chunk->least_loose ? row->loose : chunk->least_loose;
		chunk->least_room = room < chunk->least_room ? room : chunk->least_room;
		due = fabs(due) > fabs(loose) ? fabs(due) : fabs(loose);
		chunk->far = due > chunk->far ? due : chunk->far;
		o += row->bytes;
	}
}

static int64_t whole(double time)
{
	return time <= 0 ? 0 : time < 0x1p62 ? (int64_t)time : 2 * MFS_PLAN_TIME_MAX;
}

/* What the longest port may take for no batch of the chunk to lose its margin: the least plan_room, from both sides.
 * It is 0 when a batch is late; else the same as due - now - margin (loose - now) but for rounding. */
static void rooms(const struct mfs_plan *plan, const struct plan_chunk *chunk, int64_t *least, int64_t *most)
{
	double now = (double)plan->now, room = chunk->least_room - now * (1 - plan->margin);
	double off = 4 + (chunk->far + fabs(now)) * 0x1p-49;

	*least = *most = 0;
	if (chunk->least_loose <= plan->now)
		return;
	*least = whole(room - off);
	*most = whole(room + off);
}

/* Where each chunk begins, and what it bears. */
void plan_block_bounds(struct mfs_plan *plan)
{
	uint32_t first = 0;

	for (uint32_t c = 0; c < plan->chunk.n; c++) {
		struct plan_chunk *chunk = plan->chunk.at[c];
		struct plan_bound *bound = &plan->bound.at[c];
		int64_t least, most;

		if (chunk->changed)
			look_at_rows(plan, chunk);
		bound->first = first;
		first += chunk->count;
		bound->exact = false;
		if (!plan->pruned.n)
			continue;
		rooms(plan, chunk, &least, &most);
		least = longer(least, plan_sums_longest(plan, &chunk->before));
		most = longer(most, plan_sums_longest(plan, plan_sums_behind(plan, c)));
		bound->least = plan_within(plan, 0, least);
		bound->most = plan_within(plan, 0, most);
	}
}

/* What each batch of the chunk bears. */
static void look_closely(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	struct plan_bound *bound = &plan->bound.at[chunk->at];
	int64_t *bears = plan->longest_at.at + bound->first, within;

	if (bound->exact)
		return;
	bound->exact = true;
	memcpy(plan->walk.load, chunk->before.load, plan->ports * sizeof(*plan->walk.load));
	plan->walk.longest = plan_sums_longest(plan, &chunk->before);
	within = plan->walk.longest ? plan_within(plan, 0, plan->walk.longest) : 0;
	for (uint32_t o = 0; o < chunk->used;) {
		struct plan_row *row = (struct plan_row *)(chunk->rows + o);

		within = plan_walk_on(plan, row, within);
		*bears++ = plan_within(plan, 0, longer(plan->walk.longest, plan_room(plan, row)));
		o += row->bytes;
	}
}

/* Whether all batches of the chunk, those before `from` apart, bear so much more on the port. */
static bool bears(struct mfs_plan *plan, struct plan_chunk *chunk, uint32_t port, int64_t more,
		  const struct plan_row *from)
{
	const int64_t *at = plan->longest_at.at + plan->bound.at[chunk->at].first;
	int64_t sum = chunk->before.load[port] + more;

	look_closely(plan, chunk);
	for (uint32_t o = 0; o < chunk->used; at++) {
		struct plan_row *row = (struct plan_row *)(chunk->rows + o);

		sum += plan_row_amount(row, port);
		if (sum > *at && row >= from)
			return false;
		o += row->bytes;
	}
	return true;
}

/* Some chunk behind the request's own has no room for it, whatever is in that chunk. */
static bool refused_by(const struct mfs_plan *plan, struct plan_request *request, uint32_t chunk)
{
	const struct plan_batch *batch = request->batch;

	if (chunk <= batch->chunk->at || chunk >= plan->chunk.n)
		return false;
	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];
		const int64_t *load = plan->chunk.at[chunk]->before.load;

		if (plan->bound.at[chunk].most - load[plan_port(batch->row, cell->k)] < cell->amount)
			return true;
	}
	return false;
}

/* The same, for what is in that chunk. */
static bool refused_within(struct mfs_plan *plan, struct plan_request *request, uint32_t chunk)
{
	struct plan_batch *batch = request->batch;
	const struct plan_row *from = chunk == batch->chunk->at ? batch->row : NULL;

	if (chunk < batch->chunk->at || chunk >= plan->chunk.n)
		return false;
	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];
		uint32_t port = plan_port(batch->row, cell->k);

		if (plan->bound.at[chunk].least - plan_sums_behind(plan, chunk)->load[port] < cell->amount &&
		    !bears(plan, plan->chunk.at[chunk], port, cell->amount, from))
			return true;
	}
	return false;
}

/* The chunk that refused it the last time does so again nearly always. */
static bool refused(struct mfs_plan *plan, struct plan_request *request)
{
	if (refused_by(plan, request, request->witness) || refused_within(plan, request, request->witness))
		return true;
	for (uint32_t c = plan->chunk.n; --c > request->batch->chunk->at;)
		if (refused_by(plan, request, c)) {
			request->witness = c;
			return true;
		}
	return false;
}

/* With what has come back before it in this event. */
static bool fits(struct mfs_plan *plan, struct plan_request *request)
{
	struct plan_batch *batch = request->batch;

	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];
		uint32_t port = plan_port(batch->row, cell->k);
		int64_t more = cell->amount + plan->taken[port];

		for (uint32_t c = batch->chunk->at; c < plan->chunk.n; c++) {
			struct plan_chunk *chunk = plan->chunk.at[c];
			const struct plan_bound *bound = &plan->bound.at[c];
			const struct plan_row *from = chunk == batch->chunk ? batch->row : NULL;

			if (bound->least - plan_sums_behind(plan, c)->load[port] >= more)
				continue;
			request->witness = c;
			if (!from && bound->most - chunk->before.load[port] < more)
				return false;
			if (!bears(plan, chunk, port, more, from))
				return false;
		}
	}
	return true;
}

/* Brings back, most urgent first, what fits; false, and nothing is done, when bounds leave too much open. */
bool plan_block_readmit(struct mfs_plan *plan)
{
	uint32_t open = 0, back = 0;

	for (uint32_t i = 0; i < plan->pruned.n; i++) {
		if (i + 8 < plan->pruned.n) {
			__builtin_prefetch(plan->pruned.at[i + 8]);
			__builtin_prefetch(plan->pruned.at[i + 4]->batch);
			__builtin_prefetch(plan->pruned.at[i + 4]->part);
		}
		if (refused(plan, plan->pruned.at[i]))
			continue;
		if (open == OPEN_MAX)
			return false;
		plan->fresh.at[open++] = plan->pruned.at[i];
	}
	if (!open)
		return true;
	memset(plan->taken, 0, plan->ports * sizeof(*plan->taken));
	for (uint32_t i = 0; i < open; i++) {
		struct plan_request *request = plan->fresh.at[i];
		struct plan_batch *batch = request->batch;

		if (!fits(plan, request))
			continue;
		for (uint32_t j = 0; j < request->parts; j++) {
			const struct plan_cell *cell = &batch->cell[request->part[j]];

			plan->taken[plan_port(batch->row, cell->k)] += cell->amount;
		}
		plan->fresh.at[back++] = request;
	}
	/* only now: S must not move while it is looked at */
	for (uint32_t i = 0; i < back; i++)
		plan_give_back(plan, plan->fresh.at[i]);
	return true;
}

/* Whether some batch of the chunk ends its longest port after its time. */
bool plan_block_may_be_late(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	int64_t end = plan_sums_longest(plan, plan_sums_behind(plan, chunk->at)) + plan->now;

	if (end <= chunk->least_due)
		return false;
	for (uint32_t o = 0; o < chunk->used;) {
		const struct plan_row *row = (const struct plan_row *)(chunk->rows + o);

		if (end > row->due && (plan->paper || plan->now <= row->due))
			return true;
		o += row->bytes;
	}
	return false;
}
