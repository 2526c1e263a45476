/* Loads: reuse without a batch, submitted while its request still queues. The load of each request stands in a
 * batch record of its own. Such requests do not block a unit yet, and are ordered by how soon each could be done. */
#ifndef MFS_RMLQ_LONE_H
#define MFS_RMLQ_LONE_H

#include "state.h"

static inline bool batch_is_lone(const struct batch *batch)
{
	return batch->record.part;
}

static inline bool batch_is_of_request(const struct batch *batch)
{
	return batch->record.part == BATCH_OF_REQUEST;
}

static inline struct split_load *split_load_find(struct mfs_rmlq *q, uint64_t request)
{
	for (uint32_t i = 0; i < SPLIT_LOADS; i++)
		if (q->split_load[i].request == request)
			return &q->split_load[i];
	return NULL;
}

/* Called when nothing of a load waits. If its sender asks for the next piece when the last one has
 * arrived, it is the same load that comes back. Only the latest SPLIT_LOADS are remembered. */
static inline void lone_keep(struct mfs_rmlq *q, const struct batch *batch)
{
	struct split_load *load;

	if (!q->incoming || !batch_is_of_request(batch) || !batch->bytes_behind)
		return;
	load = split_load_find(q, batch->record.key);
	if (!load)
		load = &q->split_load[q->split_load_next++ % SPLIT_LOADS];
	*load = (struct split_load){.request = batch->record.key, .bytes_whole = batch->bytes_whole};
}

static inline uint64_t lone_recall(struct mfs_rmlq *q, const struct batch *batch)
{
	struct split_load *load = batch_is_of_request(batch) ? split_load_find(q, batch->record.key) : NULL;
	uint64_t bytes = load ? load->bytes_whole : 0;

	if (load)
		*load = (struct split_load){0};
	return bytes;
}

/* Notes when the load must have arrived, and what its sender has behind this flow; the latest values count
 * for the whole load. Its whole size is what was submitted since some of it waits or, if that is more,
 * what its sender once had left. */
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
	if (!batch->bytes_whole && q->incoming)
		batch->bytes_whole = lone_recall(q, batch);
	if (info->bytes_left > batch->bytes_whole)
		batch->bytes_whole = info->bytes_left;
}

#endif
