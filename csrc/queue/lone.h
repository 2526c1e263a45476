/* Loads: reuse that came without a batch, since its request still queues. Each request's stands in a batch record of its
 * own. Such requests block nobody yet, and are told apart by how soon each could be done. */
#ifndef MFS_RMLQ_LONE_H
#define MFS_RMLQ_LONE_H

#include "state.h"

#define LATE_SIZES 2u /* how many sizes larger a load counts that comes too late */

static inline bool batch_is_lone(const struct batch *batch)
{
	return batch->record.part;
}

/* Whether what the request waits for can no longer be there in time, were the port its own. */
static inline bool lone_is_late(const struct mfs_rmlq *q, const struct batch *batch)
{
	return batch->needed_ns && q->now_ns + transfer_ns(q, batch->bytes_waiting) > batch->needed_ns;
}

/* The latest word on when the load must be there holds for all of it. */
static inline void lone_need(struct mfs_rmlq *q, uint32_t b, uint64_t needed_ns)
{
	if (q->policy.early_order == MFS_EARLY_SHORTEST && needed_ns && needed_ns < MFS_TIME_MAX)
		batch_at(q, b)->needed_ns = needed_ns;
}

/* Its place among loads of the same layer: its size, since it has no rank. */
static inline uint64_t lone_second(const struct mfs_rmlq *q, struct batch *batch)
{
	batch->late = lone_is_late(q, batch);
	return size_second(batch->bytes_waiting, batch->rank) + ((uint64_t)(batch->late * LATE_SIZES) << 32);
}

/* Whether it is known how much a load without a batch is: of one flow alone nobody said what more comes. */
static inline bool lone_is_sized(const struct mfs_rmlq *q, const struct batch *batch)
{
	return batch->record.part == BATCH_OF_REQUEST && q->policy.early_order == MFS_EARLY_SHORTEST &&
	       q->policy.short_load_ns;
}

/* How many classes below the first one of loads its rest travels. */
static inline uint32_t lone_step(const struct mfs_rmlq *q, const struct batch *batch)
{
	const uint64_t left_ns = transfer_ns(q, batch->bytes_waiting) << (lone_is_late(q, batch) ? LATE_SIZES : 0);

	return (left_ns > q->policy.short_load_ns) + (left_ns > MFS_LOAD_STEP * q->policy.short_load_ns);
}

#endif
