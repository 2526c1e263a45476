/* What a request adds to its batch's row and to the sums: in when it counts, out when it is pruned or lost. */
#include "state.h"

void plan_load_in(struct mfs_plan *plan, struct plan_request *request)
{
	struct plan_batch *batch = request->batch;

	for (uint32_t i = 0; i < request->parts; i++) {
		uint32_t c = request->part[i], k = batch->cell[c].k;
		int64_t amount = batch->cell[c].amount;
		struct plan_touch *touch = &plan->touch[plan_port(batch->row, k)].at[batch->touch_at[k]];

		plan_row_change(batch->row, k, amount);
		plan_sums_add(plan, batch->chunk, plan_port(batch->row, k), amount);
		if (c < batch->cursor[k])
			batch->cursor[k] = c;
		if (amount > touch->top)
			touch->top = amount;
	}
}

void plan_load_out(struct mfs_plan *plan, struct plan_request *request)
{
	struct plan_batch *batch = request->batch;

	for (uint32_t i = 0; i < request->parts; i++) {
		const struct plan_cell *cell = &batch->cell[request->part[i]];

		plan_row_change(batch->row, cell->k, -cell->amount);
		plan_sums_add(plan, batch->chunk, plan_port(batch->row, cell->k), -cell->amount);
	}
}

void plan_give_back(struct mfs_plan *plan, struct plan_request *request)
{
	request->flags &= (uint8_t)~PLAN_PRUNED;
	plan->pruned_stale = true;
	plan_load_in(plan, request);
	plan_mark(plan, request);
}
