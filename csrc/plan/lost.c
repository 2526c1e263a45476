/*
 * Which requests are lost: too late even with every port to themselves. That depends on the clock alone, so
 * two heaps, one on each side of it, give those that change sides, whichever way the clock goes.
 */
#include "state.h"

static void put(struct plan_heap *heap, uint32_t at, struct plan_entry entry)
{
	heap->at[at] = entry;
	entry.request->heap_at = at;
}

static void up(struct plan_heap *heap, uint32_t at, struct plan_entry entry)
{
	while (at && entry.key < heap->at[(at - 1) / 2].key) {
		put(heap, at, heap->at[(at - 1) / 2]);
		at = (at - 1) / 2;
	}
	put(heap, at, entry);
}

static void down(struct plan_heap *heap, uint32_t at, struct plan_entry entry)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= heap->n)
			break;
		if (child + 1 < heap->n && heap->at[child + 1].key < heap->at[child].key)
			child++;
		if (heap->at[child].key >= entry.key)
			break;
		put(heap, at, heap->at[child]);
		at = child;
	}
	put(heap, at, entry);
}

static void take(struct plan_heap *heap, uint32_t at)
{
	struct plan_entry last = heap->at[--heap->n];

	if (at == heap->n)
		return;
	if (at && last.key < heap->at[(at - 1) / 2].key)
		up(heap, at, last);
	else
		down(heap, at, last);
}

/* Files the request by the clock of this event and says so in its flags. */
void plan_lost_add(struct mfs_plan *plan, struct plan_request *request)
{
	if (request->latest < plan->now) {
		request->flags |= PLAN_LOST;
		up(&plan->lost, plan->lost.n++, (struct plan_entry){ ~request->latest, request });
	} else {
		request->flags &= (uint8_t)~PLAN_LOST;
		up(&plan->hopeful, plan->hopeful.n++, (struct plan_entry){ request->latest, request });
	}
}

void plan_lost_remove(struct mfs_plan *plan, struct plan_request *request)
{
	take(request->flags & PLAN_LOST ? &plan->lost : &plan->hopeful, request->heap_at);
}

static void change_side(struct mfs_plan *plan, struct plan_request *request)
{
	bool counted = plan_counts(plan, request);

	plan_lost_remove(plan, request);
	plan_lost_add(plan, request);
	plan_mark(plan, request);
	if (plan->paper)
		return;
	if (request->flags & PLAN_PRUNED) { /* no longer by pruning */
		request->flags &= (uint8_t)~PLAN_PRUNED;
		plan->pruned_stale = true;
	}
	if (counted)
		plan_load_out(plan, request);
	else if (plan_counts(plan, request))
		plan_load_in(plan, request);
}

void plan_lost_settle(struct mfs_plan *plan)
{
	while (plan->hopeful.n && plan->hopeful.at[0].key < plan->now)
		change_side(plan, plan->hopeful.at[0].request);
	while (plan->lost.n && ~plan->lost.at[0].key >= plan->now)
		change_side(plan, plan->lost.at[0].request);
}
