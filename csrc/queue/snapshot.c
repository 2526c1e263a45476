/* Why a flow stands where it does. Reads the queue for explanations and decides nothing. */
#include "lone.h"
#include "state.h"

#include <errno.h>

int mfs_rmlq_snapshot(struct mfs_rmlq *q, mfs_flow_handle handle, uint64_t now_ns,
		      struct mfs_rmlq_snapshot *snapshot)
{
	const struct request *request = NULL;
	const struct batch *batch = NULL;
	const struct flow *flow;
	struct mfs_pick place;
	uint32_t r = 0;

	mfs_rmlq_advance(q, now_ns);
	if (mfs_rmlq_place(q, handle, &place))
		return -ENOENT;
	flow = flow_at(q, (uint32_t)handle);
	*snapshot =
		(struct mfs_rmlq_snapshot){.place = place, .arrival = flow->arrival, .rank = MFS_RANK_NONE};
	switch (flow->state) {
	case MFS_FLOW_EARLY:
		batch = batch_at(q, flow->stage == MFS_STAGE_REUSE ? group_at(q, flow->owner)->batch
								   : flow->owner);
		break;
	case MFS_FLOW_LAST:
	case MFS_FLOW_ALONE:
		r = flow->owner;
		break;
	default:
		r = flow->stage == MFS_STAGE_P2D ? flow->owner : 0;
	}
	if (r) {
		request = request_at(q, r);
		if (request->batch)
			batch = batch_at(q, request->batch);
		if (request->kind == REQUEST_ASIDE)
			request = request_at(q, request->aside_of);
	} else if (flow->record.key) {
		r = mfs_slab_find(&q->request, flow->record.key, 0);
		request = r ? request_at(q, r) : NULL;
	}
	if (batch) {
		snapshot->batch_announced = batch->announced;
		snapshot->batch_pruned = batch->pruned;
		snapshot->rank = batch->announced ? batch->rank : MFS_RANK_NONE;
		snapshot->compute_end_ns = batch->compute_end_ns > q->now_ns ? batch->compute_end_ns : 0;
	}
	if (request) {
		snapshot->deadline_ns = request->deadline_ns == MFS_TIME_MAX ? 0 : request->deadline_ns;
		snapshot->budget_ns = request->budget_ns;
		snapshot->bytes_left = request->bytes_left;
		snapshot->bytes_ahead = request->bytes_ahead;
		snapshot->bytes_tail = request->bytes_tail;
		snapshot->level = request->level;
		snapshot->critical = request->critical;
		snapshot->lost = request->lost;
		snapshot->pruned = request->pruned;
	}
	if (flow->state == MFS_FLOW_EARLY) {
		snapshot->bytes_left = batch->bytes_waiting + batch->bytes_behind;
		if (q->incoming && batch_is_of_request(batch))
			snapshot->bytes_whole = batch->bytes_whole;
	}
	return 0;
}

void mfs_rmlq_facts(struct mfs_rmlq *q, uint64_t now_ns, struct mfs_rmlq_facts *facts)
{
	mfs_rmlq_advance(q, now_ns);
	*facts = (struct mfs_rmlq_facts){
		.rate_bytes_per_s = q->rate_bytes_per_s,
		.rho = q->rho,
		.unit_slack_ns = last_unit_slack_ns(q),
	};
}

void mfs_rmlq_watch(struct mfs_rmlq *q,
		    void (*promoted)(void *context, uint64_t cookie, uint32_t level, bool critical),
		    void *context)
{
	q->promoted = promoted;
	q->promoted_context = context;
}
