/*
 * What is promised on each port in front of each chunk, kept up to date by every load that comes or goes: an event
 * knows S anywhere in the order without walking there. Only where all ports have one capacity: the greatest load is
 * the longest then.
 */
#include <string.h>

#include "state.h"

#ifndef SHED_MAX
#define SHED_MAX (2 * MFS_PLAN_AMOUNT_MAX)
#endif

/* The greater of what was there and what is. */
static inline int64_t change(struct plan_sums *sums, uint32_t port, int64_t by)
{
	int64_t old = sums->load[port], new = old + by;

	sums->load[port] = new;
	if (new > sums->top)
		sums->top = new; /* also right where stale: what is found then is no less */
	else if (old == sums->top && by)
		sums->stale = true;
	return new > old ? new : old;
}

/* Load goes: what stands on there being so much on the port must count it (block.c). */
static void note_shed(struct mfs_plan *plan, uint32_t port, int64_t amount)
{
	if (plan->shed[port] < SHED_MAX)
		plan->shed[port] += amount;
	else
		plan->worn = true;
}

static inline int64_t amount_at(const struct plan_row *row, uint32_t k)
{
	return row->wide ? ((const int64_t *)row->amounts)[k] : ((const uint32_t *)row->amounts)[k];
}

struct plan_sums *plan_sums_behind(struct mfs_plan *plan, uint32_t chunk)
{
	return chunk + 1 < plan->chunk.n ? &plan->chunk.at[chunk + 1]->before : &plan->all;
}

void plan_sums_add(struct mfs_plan *plan, const struct plan_chunk *chunk, uint32_t port, int64_t by)
{
	int64_t least = chunk->before.top;
	bool stale = chunk->before.stale;

	if (plan->classes > 1)
		return;
	if (by < 0)
		note_shed(plan, port, -by);
	for (uint32_t c = chunk->at; c < plan->chunk.n; c++) {
		struct plan_sums *behind = plan_sums_behind(plan, c);
		int64_t next = behind->top;
		bool next_stale = behind->stale;

		/* a port that never had, and does not get, as much as the longest in front is nowhere the longest */
		if (change(behind, port, by) >= least || stale)
			plan->chunk.at[c]->known = false;
		least = next;
		stale = next_stale;
	}
}

/* As change(), of all ports; fetches what will be changed soon. */
static int64_t change_by_row(struct plan_sums *sums, struct plan_row *row, int sign, const int64_t *next)
{
	const uint32_t *port = plan_row_ports(row);
	int64_t most = 0, here;

	for (uint32_t k = 0; k < row->run; k++) {
		here = change(sums, row->first + k, sign * amount_at(row, k));
		most = here > most ? here : most;
	}
	for (uint32_t k = row->run; k < row->n; k++) {
		__builtin_prefetch(&next[port[k - row->run]], 1);
		here = change(sums, port[k - row->run], sign * amount_at(row, k));
		most = here > most ? here : most;
	}
	return most;
}

void plan_sums_fixed(struct mfs_plan *plan, struct plan_batch *batch, int sign)
{
	for (uint32_t k = 0; batch->fixed && k < batch->row->n; k++)
		change(&plan->all_fixed, plan_port(batch->row, k), sign * batch->fixed[k]);
}

/* The row comes into the chunk, or goes. */
void plan_sums_row(struct mfs_plan *plan, const struct plan_chunk *chunk, struct plan_row *row, int sign)
{
	int64_t least = chunk->before.top;
	bool stale = chunk->before.stale;

	if (plan->classes > 1)
		return;
	for (uint32_t k = 0; sign < 0 && k < row->n; k++)
		note_shed(plan, plan_port(row, k), amount_at(row, k));
	for (uint32_t c = chunk->at; c < plan->chunk.n; c++) {
		struct plan_sums *behind = plan_sums_behind(plan, c);
		int64_t next = behind->top;
		bool next_stale = behind->stale;

		if (change_by_row(behind, row, sign, plan_sums_behind(plan, c + 2)->load) >= least || stale)
			plan->chunk.at[c]->known = false;
		least = next;
		stale = next_stale;
	}
}

/* S in the middle of a chunk. */
void plan_sums_at(const struct mfs_plan *plan, const struct plan_chunk *chunk, uint32_t offset, struct plan_sums *out)
{
	if (plan->classes > 1)
		return;
	memcpy(out->load, chunk->before.load, plan->ports * sizeof(*out->load));
	out->top = chunk->before.top;
	out->stale = chunk->before.stale;
	for (uint32_t o = 0; o < offset; o += ((const struct plan_row *)(chunk->rows + o))->bytes)
		change_by_row(out, (struct plan_row *)(uintptr_t)(chunk->rows + o), 1, out->load);
}

/* What the longest port takes there. */
int64_t plan_sums_longest(const struct mfs_plan *plan, struct plan_sums *sums)
{
	if (sums->stale) {
		sums->top = plan->runs.top(sums->load, plan->ports);
		sums->stale = false;
	}
	return plan_time(plan, 0, sums->top);
}

int64_t plan_row_amount(struct plan_row *row, uint32_t port)
{
	const uint32_t *ports = plan_row_ports(row);
	uint32_t low = 0, high = row->n - row->run;

	if (port - row->first < row->run)
		return amount_at(row, port - row->first);
	while (low < high) {
		uint32_t middle = (low + high) / 2;

		if (ports[middle] < port)
			low = middle + 1;
		else
			high = middle;
	}
	return low < row->n - row->run && ports[low] == port ? amount_at(row, row->run + low) : 0;
}
