/* Loads: reuse that came without a batch, since its request still queues. Each request's stands in a batch record of its
 * own. Such requests block no unit yet, and are ordered by how soon each could be done. */
#ifndef MFS_RMLQ_LONE_H
#define MFS_RMLQ_LONE_H

#include "state.h"

static inline bool batch_is_lone(const struct batch *batch)
{
	return batch->record.part;
}

/* When the load must be there, and what its sender has behind this flow of it: the latest holds for all of it. The whole
 * of it is what was submitted since some of it waits, or what its sender once had left, if that is more. */
static inline void lone_submitted(struct mfs_rmlq *q, uint32_t b, const struct mfs_flow *info)
{
	struct batch *batch = batch_at(q, b);

	if (info->deadline_ns && info->deadline_ns < MFS_TIME_MAX)
		batch->needed_ns = info->deadline_ns;
	if (!info->bytes_left || info->bytes_left < info->bytes) {
		batch->bytes_whole += info->bytes;
		return;
	}
	batch->bytes_behind = info->bytes_left - info->bytes;
	if (info->bytes_left > batch->bytes_whole)
		batch->bytes_whole = info->bytes_left;
}

#endif
