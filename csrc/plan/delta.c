/*
 * What changed since it was last asked: lists of what may have, each record in one at most, and of what has
 * gone since an earlier answer. And the ranks, which leave gaps so that few change.
 */
#include "state.h"

#define RANKS UINT32_MAX /* MFS_RANK_NONE is the one above the last */
#define STEP  65536	 /* gap behind the last batch: most arrive there */

void plan_mark_batch(struct mfs_plan *plan, struct plan_batch *batch)
{
	if (batch->flags & PLAN_DIRTY)
		return;
	batch->flags |= PLAN_DIRTY;
	batch->dirty_at = plan->moved.n;
	plan->moved.at[plan->moved.n++] = batch;
}

void plan_mark(struct mfs_plan *plan, struct plan_request *request)
{
	if (request->flags & PLAN_DIRTY)
		return;
	request->flags |= PLAN_DIRTY;
	request->dirty_at = plan->dirty.n;
	plan->dirty.at[plan->dirty.n++] = request;
}

/* The batch goes. */
void plan_unmark_batch(struct mfs_plan *plan, struct plan_batch *batch)
{
	if (batch->flags & PLAN_DIRTY) {
		struct plan_batch *last = plan->moved.at[--plan->moved.n];

		plan->moved.at[batch->dirty_at] = last;
		last->dirty_at = batch->dirty_at;
	}
	if (batch->flags & PLAN_TOLD)
		plan->departed.at[plan->departed.n++] = batch->id;
}

/* The request goes. */
void plan_unmark(struct mfs_plan *plan, struct plan_request *request)
{
	if (request->flags & PLAN_DIRTY) {
		struct plan_request *last = plan->dirty.at[--plan->dirty.n];

		plan->dirty.at[request->dirty_at] = last;
		last->dirty_at = request->dirty_at;
	}
	if (request->flags & PLAN_TOLD)
		plan->gone.at[plan->gone.n++] = request->id;
}

/* Free ranks between the neighbours of positions first..last: *low is the least, the result how many. */
static uint64_t gap(const struct mfs_plan *plan, uint32_t first, uint32_t last, uint64_t *low)
{
	*low = first ? (uint64_t)plan->order.at[first - 1]->rank + 1 : 0;
	return (last + 1 < plan->order.n ? plan->order.at[last + 1]->rank : RANKS) - *low;
}

/* Spreads the ranks around the position evenly, over as few batches as leaves each a gap that grows with
 * their number: each batch is moved O(log n) times per arrival on average. */
static void respread(struct mfs_plan *plan, uint32_t at)
{
	for (uint64_t half = 1;; half *= 2) {
		uint32_t first = at > half ? (uint32_t)(at - half) : 0;
		uint32_t last = at + half < plan->order.n ? (uint32_t)(at + half) : plan->order.n - 1;
		uint64_t batches = (uint64_t)last - first + 1, low, free = gap(plan, first, last, &low);
		bool all = batches == plan->order.n;

		if (!all && free / batches < 2 * half)
			continue;
		for (uint64_t i = 0; i < batches; i++) {
			struct plan_batch *batch = plan->order.at[first + i];

			batch->rank = (uint32_t)(low + free * (2 * i + 1) / (2 * batches));
			plan_mark_batch(plan, batch);
		}
		return;
	}
}

/* A rank for the batch that is new at this position; the one it has when that still fits and `keep`. */
void plan_rank_assign(struct mfs_plan *plan, uint32_t at, bool keep)
{
	struct plan_batch *batch = plan->order.at[at];
	uint64_t low, free = gap(plan, at, at, &low);

	if (keep && batch->rank >= low && batch->rank < low + free)
		return;
	plan_mark_batch(plan, batch);
	if (!free)
		respread(plan, at);
	else if (at + 1 == plan->order.n)
		batch->rank = (uint32_t)(low + (free / 2 < STEP ? free / 2 : STEP));
	else
		batch->rank = (uint32_t)(low + free / 2);
}

struct mfs_plan_delta mfs_plan_delta_bounds(const struct mfs_plan *plan)
{
	return (struct mfs_plan_delta){ plan->moved.n, plan->departed.n, plan->dirty.n, plan->dirty.n,
					plan->dirty.n + plan->gone.n };
}

struct mfs_plan_delta mfs_plan_delta_take(struct mfs_plan *plan, struct mfs_plan_rank *moved, uint64_t *departed,
					  struct mfs_plan_pruned *pruned, uint64_t *infeasible, uint64_t *restored)
{
	struct mfs_plan_delta count = { plan->moved.n, plan->departed.n, 0, 0, plan->gone.n };

	for (uint32_t i = 0; i < plan->moved.n; i++) {
		struct plan_batch *batch = plan->moved.at[i];

		batch->flags = PLAN_TOLD;
		moved[i] = (struct mfs_plan_rank){ batch->id, batch->rank };
	}
	for (uint32_t i = 0; i < plan->departed.n; i++)
		departed[i] = plan->departed.at[i];
	for (uint32_t i = 0; i < plan->gone.n; i++)
		restored[i] = plan->gone.at[i];
	for (uint32_t i = 0; i < plan->dirty.n; i++) {
		struct plan_request *r = plan->dirty.at[i];

		if (r->flags & PLAN_PRUNED)
			pruned[count.pruned++] =
				(struct mfs_plan_pruned){ r->id, r->batch->id, r->for_batch, r->amount, r->port };
		else if (r->flags & PLAN_LOST)
			infeasible[count.infeasible++] = r->id;
		else if (r->flags & PLAN_TOLD)
			restored[count.restored++] = r->id;
		r->flags &= (uint8_t)~(PLAN_DIRTY | PLAN_TOLD);
		if (r->flags & (PLAN_PRUNED | PLAN_LOST))
			r->flags |= PLAN_TOLD;
	}
	plan->moved.n = plan->departed.n = plan->dirty.n = plan->gone.n = 0;
	return count;
}
