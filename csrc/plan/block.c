/*
 * One event by chunks: what can be said of all batches of a chunk at once, from S in front of it and behind it. Both
 * the longest port and S grow along the order, so inside the chunk they lie between. Rows are looked at only in
 * chunks in which that leaves the answer open; it is exact in any case.
 */
#include <math.h>
#include <string.h>

#include "state.h"

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
		int64_t least, most, longest;

		if (chunk->changed)
			look_at_rows(plan, chunk);
		bound->first = first;
		first += chunk->count;
		bound->exact = false;
		if (!plan->pruned.n)
			continue;
		rooms(plan, chunk, &least, &most);
		longest = plan_sums_longest(plan, plan_sums_behind(plan, c));
		least = longer(least, plan_sums_longest(plan, &chunk->before));
		bound->longest = plan_within(plan, 0, longest);
		bound->least = plan_within(plan, 0, least);
		bound->most = plan_within(plan, 0, longer(most, longest));
	}
}

/* Walks through the chunk: the longest port after each row, and when the first of its batches is late. */
static void learn(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	int64_t within;

	chunk->known = true;
	chunk->known_at = plan->now;
	chunk->in_time = INT64_MAX;
	memcpy(plan->walk.load, chunk->before.load, plan->ports * sizeof(*plan->walk.load));
	plan->walk.longest = plan_sums_longest(plan, &chunk->before);
	within = plan->walk.longest ? plan_within(plan, 0, plan->walk.longest) : 0;
	for (uint32_t o = 0; o < chunk->used;) {
		struct plan_row *row = (struct plan_row *)(chunk->rows + o);

		within = plan_walk_on(plan, row, within);
		row->longest = plan->walk.longest;
		if (plan->now <= row->helped && row->due - row->longest < chunk->in_time)
			chunk->in_time = row->due - row->longest;
		o += row->bytes;
	}
}

/* What each batch of the chunk bears. */
static void look_closely(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	struct plan_bound *bound = &plan->bound.at[chunk->at];
	int64_t *bears = plan->longest_at.at + bound->first;

	if (bound->exact)
		return;
	bound->exact = true;
	if (!chunk->known)
		learn(plan, chunk);
	for (uint32_t o = 0; o < chunk->used;) {
		const struct plan_row *row = (const struct plan_row *)(chunk->rows + o);

		*bears++ = plan_within(plan, 0, longer(row->longest, plan_room(plan, row->due, row->loose)));
		o += row->bytes;
	}
}

/* Remembers who does not bear `sum` on the port: enough to refuse the request again until much load has gone from there
 * or the longest port has grown. */
void plan_refuse(struct mfs_plan *plan, struct plan_request *request, struct plan_batch *witness, uint32_t port,
		 int64_t sum)
{
	request->witness = witness;
	request->witness_port = port;
	request->reach = sum + plan->shed[port];
}

static bool still_refused(struct mfs_plan *plan, const struct plan_request *request)
{
	const struct plan_batch *witness = request->witness;
	int64_t sum;

	if (!witness)
		return false;
	sum = request->reach - plan->shed[request->witness_port];
	if (sum <= plan_within(plan, 0, plan_room(plan, witness->row->due, witness->loose)))
		return false;
	if (sum > plan->bound.at[witness->chunk->at].longest)
		return true;
	if (!witness->chunk->known)
		learn(plan, witness->chunk);
	return sum > plan_within(plan, 0, witness->row->longest);
}

/* Whether some batch of the chunk, from the request's own on, does not bear it on the port, with what has come back. */
static bool refused_on(struct mfs_plan *plan, struct plan_request *request, const struct plan_cell *cell,
		       struct plan_chunk *chunk)
{
	const struct plan_row *from = chunk == request->batch->chunk ? request->batch->row : NULL;
	const int64_t *bears = plan->longest_at.at + plan->bound.at[chunk->at].first;
	uint32_t port = plan_port(request->batch->row, cell->k);
	int64_t sum = chunk->before.load[port] + cell->amount + plan->taken[port], most = 0, most_sum = 0;
	struct plan_batch *witness = NULL;

	look_closely(plan, chunk);
	for (uint32_t o = 0; o < chunk->used; bears++) {
		struct plan_row *row = (struct plan_row *)(chunk->rows + o);

		sum += plan_row_amount(row, port);
		if (sum - *bears > most && row >= from) {
			most = sum - *bears;
			most_sum = sum;
			witness = row->batch;
		}
		o += row->bytes;
	}
	if (witness)
		plan_refuse(plan, request, witness, port, most_sum);
	return witness;
}

/* Some batch of the chunk refuses it. */
static bool refused_by(struct mfs_plan *plan, struct plan_request *request, struct plan_chunk *chunk)
{
	const struct plan_batch *batch = request->batch;
	const int64_t *behind = plan_sums_behind(plan, chunk->at)->load;

	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];
		uint32_t port = plan_port(batch->row, cell->k);

		if (plan->bound.at[chunk->at].least - behind[port] < cell->amount + plan->taken[port] &&
		    refused_on(plan, request, cell, chunk))
			return true;
	}
	return false;
}

/* Some chunk behind the request's own has no room for it, whatever is in that chunk: its first batch refuses it. */
static bool refused_by_bounds(struct mfs_plan *plan, struct plan_request *request)
{
	const struct plan_batch *batch = request->batch;
	int64_t most = 0;

	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];
		uint32_t port = plan_port(batch->row, cell->k);

		for (uint32_t c = batch->chunk->at + 1; c < plan->chunk.n; c++) {
			struct plan_chunk *chunk = plan->chunk.at[c];
			int64_t sum = chunk->before.load[port] + cell->amount, over = sum - plan->bound.at[c].most;

			if (over > most) {
				most = over;
				plan_refuse(plan, request, ((struct plan_row *)chunk->rows)->batch, port, sum);
			}
		}
	}
	return most > 0;
}

static bool refused(struct mfs_plan *plan, struct plan_request *request)
{
	return still_refused(plan, request) ||
	       (request->witness && refused_by(plan, request, request->witness->chunk)) ||
	       refused_by_bounds(plan, request);
}

/* With what has come back before it in this event. */
static bool fits(struct mfs_plan *plan, struct plan_request *request)
{
	for (uint32_t c = request->batch->chunk->at; c < plan->chunk.n; c++)
		if (refused_by(plan, request, plan->chunk.at[c]))
			return false;
	return true;
}

/* So much load has gone that it can no longer be counted: begins again, and with that every search for a witness. */
static void forget_witnesses(struct mfs_plan *plan)
{
	memset(plan->shed, 0, plan->ports * sizeof(*plan->shed));
	plan->worn = false;
	for (uint32_t i = 0; i < plan->pruned.n; i++)
		plan->pruned.at[i]->witness = NULL;
}

/* Brings back, most urgent first, what fits; false, and nothing is done, when bounds leave too much open. */
bool plan_block_readmit(struct mfs_plan *plan)
{
	uint32_t open = 0, back = 0;

	if (plan->worn)
		forget_witnesses(plan);
	memset(plan->taken, 0, plan->ports * sizeof(*plan->taken));
	for (uint32_t i = 0; i < plan->pruned.n; i++) {
		if (i + 8 < plan->pruned.n) {
			__builtin_prefetch(plan->pruned.at[i + 8]);
			__builtin_prefetch(plan->pruned.at[i + 4]->witness);
		}
		if (refused(plan, plan->pruned.at[i]))
			continue;
		if (open == OPEN_MAX)
			return false;
		plan->fresh.at[open++] = plan->pruned.at[i];
	}
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

/* Whether some batch of the chunk that pruning may help ends its longest port after its time. */
bool plan_block_is_late(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	if (plan_sums_longest(plan, plan_sums_behind(plan, chunk->at)) + plan->now <= chunk->least_due)
		return false;
	if (!chunk->known || plan->now < chunk->known_at)
		learn(plan, chunk);
	return plan->now > chunk->in_time;
}
