/* Loads: reuse that came without a batch, since its request still queues. Each request's stands in a batch record of its
 * own. Such requests block no unit yet, and are ordered by how soon each could be done. */
#ifndef MFS_RMLQ_LONE_H
#define MFS_RMLQ_LONE_H

#include "state.h"

static inline bool batch_is_lone(const struct batch *batch)
{
	return batch->record.part;
}

/* When the load must be there: the latest that was announced holds for all of it. */
static inline void lone_need(struct mfs_rmlq *q, uint32_t b, uint64_t needed_ns)
{
	if (needed_ns && needed_ns < MFS_TIME_MAX)
		batch_at(q, b)->needed_ns = needed_ns;
}

#endif
