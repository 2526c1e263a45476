/*
 * What is promised on each port in front of each chunk, kept up to date by every load that comes or goes: an event
 * knows S anywhere in the order without walking there. Only where all ports have one capacity: the greatest load is
 * the longest then.
 */
#include <string.h>

#include "plan_state.h"

static inline void change(struct plan_sums *sums, uint32_t port, int64_t by)
{
	int64_t old = sums->load[port], new = old + by;

	sums->load[port] = new;
	if (new > sums->top)
		sums->top = new; /* also right where stale: what is found then is no less */
	else if (old == sums->top && by)
		sums->stale = true;
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
	if (plan->classes > 1)
		return;
	for (uint32_t c = chunk->at + 1; c < plan->chunk.n; c++)
		change(&plan->chunk.at[c]->before, port, by);
	change(&plan->all, port, by);
}

static void change_by_row(struct plan_sums *sums, struct plan_row *row, int sign)
{
	const uint32_t *port = plan_row_ports(row);

	for (uint32_t k = 0; k < row->run; k++)
		change(sums, row->first + k, sign * amount_at(row, k));
	for (uint32_t k = row->run; k < row->n; k++)
		change(sums, port[k - row->run], sign * amount_at(row, k));
}

/* The row comes into the chunk, or goes. */
void plan_sums_row(struct mfs_plan *plan, const struct plan_chunk *chunk, struct plan_row *row, int sign)
{
	if (plan->classes > 1)
		return;
	for (uint32_t c = chunk->at + 1; c < plan->chunk.n; c++)
		change_by_row(&plan->chunk.at[c]->before, row, sign);
	change_by_row(&plan->all, row, sign);
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
		change_by_row(out, (struct plan_row *)(uintptr_t)(chunk->rows + o), 1);
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
