/* The batches in order of (RED, number), in chunks, and S(u), the load promised on each port, behind each
 * chunk. An event thus knows S at the end of every chunk without walking there. S and the longest port M_i
 * only grow along the order. */
#include "state.h"

#ifndef CHUNK_SLOTS
#define CHUNK_SLOTS 0 /* 0: chosen by the number of ports */
#endif

/* Returns the chunk in front of this one. */
const struct plan_chunk *plan_front(const struct mfs_plan *plan, const struct plan_chunk *chunk)
{
	return chunk->at ? plan->chunk.at[chunk->at - 1] : plan->start;
}

int64_t plan_greatest(const int64_t *load, uint32_t n)
{
	int64_t a = 0, b = 0, c = 0, d = 0;
	uint32_t u = 0;

	for (; u + 4 <= n; u += 4) { /* four independent chains, so that they run in parallel */
		a = plan_max(a, load[u]);
		b = plan_max(b, load[u + 1]);
		c = plan_max(c, load[u + 2]);
		d = plan_max(d, load[u + 3]);
	}
	for (; u < n; u++)
		a = plan_max(a, load[u]);
	return plan_max(plan_max(a, b), plan_max(c, d));
}

/* A chunk may have to be split, so one is kept in reserve. The sums of a chunk take about as much memory
 * as its batches. */
int plan_order_reserve(struct mfs_plan *plan)
{
	uint64_t need = (uint64_t)plan->chunk.n + 1;
	int rc = PLAN_RESERVE(plan->chunk, need);
	struct plan_chunk *chunk;

	plan->chunk_slots = CHUNK_SLOTS ? CHUNK_SLOTS : plan->config.ports >= 1024 ? 64 : 32;
	if (rc || plan->spare)
		return rc;
	chunk = malloc(sizeof(*chunk) + plan->chunk_slots * sizeof(*chunk->slot) +
		       2 * plan->config.ports * sizeof(*chunk->behind));
	if (!chunk)
		return -ENOMEM;
	chunk->behind = (int64_t *)(chunk->slot + plan->chunk_slots);
	chunk->fixed = chunk->behind + plan->config.ports;
	plan->spare = chunk;
	return 0;
}

static void renumber(struct mfs_plan *plan, uint32_t at)
{
	for (; at < plan->chunk.n; at++)
		plan->chunk.at[at]->at = at;
}

/* Chunks from `at` on have moved by one place. Requests refused at the end of one of them are checked
 * there next, or at the one behind it. */
static void move_refusals(struct mfs_plan *plan, uint32_t at, int by)
{
	for (uint32_t i = 0; i < plan->pruned.n; i++)
		if (plan->pruned.at[i].chunk >= at && plan->pruned.at[i].chunk != PLAN_NONE)
			plan->pruned.at[i].chunk += (uint32_t)by;
}

/* Inserts the spare chunk, empty, behind `previous`, and copies the sums of that. */
static struct plan_chunk *add_chunk(struct mfs_plan *plan, const struct plan_chunk *previous)
{
	struct plan_chunk *chunk = plan->spare;
	uint32_t at = previous->at + 1;

	plan->spare = NULL;
	chunk->n = 0;
	chunk->known = previous->known;
	chunk->top = previous->top;
	memset(chunk->fixed, 0, plan->config.ports * sizeof(*chunk->fixed));
	memcpy(chunk->behind, previous->behind, plan->config.ports * sizeof(*chunk->behind));
	memmove(plan->chunk.at + at + 1, plan->chunk.at + at,
		(plan->chunk.n++ - at) * sizeof(*plan->chunk.at));
	plan->chunk.at[at] = chunk;
	renumber(plan, at);
	/* also those refused at `previous`: the batch may have moved */
	move_refusals(plan, at ? at - 1 : 0, 1);
	return chunk;
}

static void drop_chunk(struct mfs_plan *plan, uint32_t at)
{
	free(plan->chunk.at[at]);
	memmove(plan->chunk.at + at, plan->chunk.at + at + 1,
		(--plan->chunk.n - at) * sizeof(*plan->chunk.at));
	renumber(plan, at);
	move_refusals(plan, at, -1);
}

static void add_fixed(struct plan_chunk *chunk, const struct plan_batch *batch, int sign)
{
	for (uint32_t i = 0; i < batch->fixed_loads; i++)
		chunk->fixed[batch->fixed[i].port] += sign * batch->fixed[i].busy_ns;
}

static void move_slots(struct plan_chunk *to, struct plan_chunk *from, uint32_t first)
{
	memcpy(to->slot + to->n, from->slot + first, (from->n - first) * sizeof(*to->slot));
	for (; from->n > first; from->n--, to->n++) {
		struct plan_batch *batch = from->slot[from->n - 1].batch;

		batch->chunk = to;
		add_fixed(from, batch, -1);
		add_fixed(to, batch, 1);
	}
}

static void split(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	struct plan_chunk *rest = add_chunk(plan, chunk);

	move_slots(rest, chunk, chunk->n / 2);
	for (uint32_t i = 0; i < rest->n; i++)
		for (uint32_t k = 0; k < rest->slot[i].batch->ports; k++)
			chunk->behind[rest->slot[i].batch->row[k].port] -=
				rest->slot[i].batch->row[k].busy_ns;
	chunk->top = plan_greatest(chunk->behind, plan->config.ports);
}

/* Adds or removes load in this chunk: S changes behind it and behind all later chunks. M_i stays known in
 * chunks in which none of these ports can be the longest, because it has less load behind the chunk than
 * the longest has in front of it. */
static void promise(struct mfs_plan *plan, struct plan_chunk *chunk, const struct mfs_plan_load *load,
		    uint32_t n, int sign)
{
	int64_t front = plan_front(plan, chunk)->top;

	for (uint32_t c = chunk->at; c < plan->chunk.n; c++) {
		int64_t most = 0;

		chunk = plan->chunk.at[c];
		for (uint32_t i = 0; i < n; i++) {
			int64_t old = chunk->behind[load[i].port], new = old + sign * load[i].busy_ns;

			chunk->behind[load[i].port] = new;
			most = plan_max(most, plan_max(old, new));
		}
		if (sign > 0)
			chunk->top = plan_max(chunk->top, most);
		else if (most == chunk->top)
			chunk->top = plan_greatest(chunk->behind, plan->config.ports);
		chunk->known &= most < front;
		front = chunk->top;
	}
}

/* Returns the first slot of the chunk whose batch does not go before this one. With chunk NULL: the first
 * chunk that begins with such a batch. */
static uint32_t position(const struct mfs_plan *plan, const struct plan_chunk *chunk,
			 const struct plan_batch *batch)
{
	uint32_t low = 0, high = chunk ? chunk->n : plan->chunk.n;

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		const struct plan_slot *slot = chunk ? &chunk->slot[middle] : plan->chunk.at[middle]->slot;

		if (plan_batch_before(slot->batch, batch))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* Returns the last chunk that begins with a batch before this one, otherwise the first chunk. */
static struct plan_chunk *chunk_for(const struct mfs_plan *plan, const struct plan_batch *batch)
{
	uint32_t behind = position(plan, NULL, batch);

	return plan->chunk.at[behind ? behind - 1 : 0];
}

/* Room must be reserved. */
void plan_order_insert(struct mfs_plan *plan, struct plan_batch *batch)
{
	struct plan_chunk *chunk = plan->chunk.n ? chunk_for(plan, batch) : add_chunk(plan, plan->start);
	uint32_t at;

	if (chunk->n == plan->chunk_slots) {
		split(plan, chunk);
		chunk = chunk_for(plan, batch);
	}
	at = position(plan, chunk, batch);
	memmove(chunk->slot + at + 1, chunk->slot + at, (chunk->n++ - at) * sizeof(*chunk->slot));
	chunk->slot[at] =
		(struct plan_slot){.batch = batch,
				   .loose = batch->loose,
				   .latest = batch->loose - batch->compute,
				   .longest = at ? chunk->slot[at - 1].longest : plan_front(plan, chunk)->top,
				   .feasible_until = INT64_MIN};
	batch->chunk = chunk;
	add_fixed(chunk, batch, 1);
	promise(plan, chunk, batch->row, batch->ports, 1);
}

void plan_order_remove(struct mfs_plan *plan, struct plan_batch *batch)
{
	struct plan_chunk *chunk = batch->chunk, *next;
	uint32_t at = position(plan, chunk, batch);

	add_fixed(chunk, batch, -1);
	promise(plan, chunk, batch->row, batch->ports, -1);
	memmove(chunk->slot + at, chunk->slot + at + 1, (--chunk->n - at) * sizeof(*chunk->slot));
	next = chunk->at + 1 < plan->chunk.n ? plan->chunk.at[chunk->at + 1] : NULL;
	if (!chunk->n) {
		drop_chunk(plan, chunk->at);
	} else if (next && chunk->n + next->n <= plan->chunk_slots / 2) {
		move_slots(chunk, next, 0);
		memcpy(chunk->behind, next->behind, plan->config.ports * sizeof(*chunk->behind));
		chunk->top = next->top;
		chunk->known &= next->known;
		drop_chunk(plan, next->at);
	}
}

/* Begins the walk in front of the chunk. */
void plan_walk_begin(struct mfs_plan *plan, struct plan_walk *walk, const struct plan_chunk *chunk)
{
	memcpy(plan->load, plan_front(plan, chunk)->behind, plan->config.ports * sizeof(*plan->load));
	plan_walk_longest(plan, walk, plan_front(plan, chunk)->top);
}

/* `longest` is the longest time of all ports. Finds the first port with it. */
void plan_walk_longest(const struct mfs_plan *plan, struct plan_walk *walk, int64_t longest)
{
	*walk = (struct plan_walk){longest, 0};
	while (walk->longest && plan->load[walk->slowest] != walk->longest)
		walk->slowest++;
	walk->slowest = walk->longest ? walk->slowest : MFS_PLAN_NO_PORT;
}

/* Moves past the batch of this slot. */
void plan_walk_on(const struct mfs_plan *plan, struct plan_walk *walk, const struct plan_chunk *chunk,
		  uint32_t slot)
{
	const struct plan_batch *batch = chunk->slot[slot].batch;
	struct plan_walk at = *walk;

	/* prefetch: blocks begin with the head of the row, and lie anywhere in memory */
	if (slot + 2 < chunk->n) {
		__builtin_prefetch(chunk->slot[slot + 2].batch);
		for (uint32_t k = 0; k < chunk->slot[slot + 1].batch->ports; k += 4)
			__builtin_prefetch(&chunk->slot[slot + 1].batch->row[k]);
	}
	for (uint32_t k = 0; k < batch->ports; k++) {
		uint32_t u = batch->row[k].port;
		int64_t sum = plan->load[u] += batch->row[k].busy_ns;

		if (__builtin_expect(sum >= at.longest, 0) && (sum > at.longest || (sum && u < at.slowest)))
			at = (struct plan_walk){sum, u};
	}
	*walk = at;
}

/* Finds the longest port behind each batch of the chunk. */
void plan_order_learn(struct mfs_plan *plan, struct plan_chunk *chunk)
{
	struct plan_walk walk;

	plan_walk_begin(plan, &walk, chunk);
	for (uint32_t i = 0; i < chunk->n; i++) {
		plan_walk_on(plan, &walk, chunk, i);
		chunk->slot[i].longest = walk.longest;
	}
	chunk->known = true;
}

/* Copies the request's loads to plan->part. Returns how many there are. */
uint32_t plan_request_loads(struct mfs_plan *plan, const struct plan_request *request)
{
	uint32_t n = 0;

	for (uint32_t c = request->cell; c != PLAN_NONE; c = request->batch->cell[c].next)
		plan->part[n++] =
			(struct mfs_plan_load){request->batch->cell[c].port, request->batch->cell[c].busy};
	return n;
}

/* Adds (sign 1) or removes (sign -1) the request's loads, and leaves them in plan->part. Returns how many
 * there are. */
uint32_t plan_request_count(struct mfs_plan *plan, struct plan_request *request, int sign)
{
	struct plan_batch *batch = request->batch;
	uint32_t loads;

	for (uint32_t c = request->cell; c != PLAN_NONE; c = batch->cell[c].next) {
		const struct plan_cell *cell = &batch->cell[c];
		struct plan_column *column = &batch->column[cell->k];
		struct plan_candidates *candidates = &plan->candidates[cell->port].at[column->candidates_at];

		batch->row[cell->k].busy_ns += sign * cell->busy;
		if (sign > 0) {
			column->first = c < column->first ? c : column->first;
			candidates->top = plan_max(candidates->top, cell->busy);
		}
	}
	loads = plan_request_loads(plan, request);
	promise(plan, batch->chunk, plan->part, loads, sign);
	return loads;
}
