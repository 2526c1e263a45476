/* What changed since the last delta: a list of requests that may have changed, each once, and of those
 * that were reported and are no longer active. Also the arrays that grow. */
#include "state.h"

/* `vector` is any PLAN_VECTOR. */
int plan_grow(void *vector, size_t size, uint64_t need)
{
	PLAN_VECTOR(void) *v = vector;
	uint64_t room = v->room ? v->room : 16;
	void *bigger;

	if (need <= v->room)
		return 0;
	while (room < need)
		room *= 2;
	bigger = room < PLAN_NONE ? realloc(v->at, room * size) : NULL;
	if (!bigger)
		return -ENOMEM;
	v->at = bigger;
	v->room = (uint32_t)room;
	return 0;
}

void plan_mark(struct mfs_plan *plan, struct plan_request *request)
{
	if (request->flags & PLAN_CHANGED)
		return;
	request->flags |= PLAN_CHANGED;
	request->changed_at = plan->changed.n;
	plan->changed.at[plan->changed.n++] = request;
}

/* The request is being removed. */
void plan_unmark(struct mfs_plan *plan, struct plan_request *request)
{
	if (request->flags & PLAN_CHANGED) {
		struct plan_request *last = plan->changed.at[--plan->changed.n];

		plan->changed.at[request->changed_at] = last;
		last->changed_at = request->changed_at;
	}
	if (request->flags & PLAN_REPORTED)
		plan->gone.at[plan->gone.n++] = request->why.request;
}

struct mfs_plan_delta mfs_plan_delta_bounds(const struct mfs_plan *plan)
{
	return (struct mfs_plan_delta){plan->changed.n, plan->changed.n, plan->changed.n + plan->gone.n};
}

struct mfs_plan_delta mfs_plan_delta_take(struct mfs_plan *plan, struct mfs_plan_pruned *pruned,
					  uint64_t *infeasible, uint64_t *restored)
{
	struct mfs_plan_delta count = {0, 0, plan->gone.n};

	for (uint32_t i = 0; i < plan->gone.n; i++)
		restored[i] = plan->gone.at[i];
	for (uint32_t i = 0; i < plan->changed.n; i++) {
		struct plan_request *r = plan->changed.at[i];

		if (r->flags & PLAN_PRUNED)
			pruned[count.pruned++] = r->why;
		else if (r->flags & PLAN_INFEASIBLE)
			infeasible[count.infeasible++] = r->why.request;
		else if (r->flags & PLAN_REPORTED)
			restored[count.restored++] = r->why.request;
		r->flags &= (uint8_t)~(PLAN_CHANGED | PLAN_REPORTED);
		if (r->flags & (PLAN_PRUNED | PLAN_INFEASIBLE))
			r->flags |= PLAN_REPORTED;
	}
	plan->changed.n = plan->gone.n = 0;
	return count;
}
