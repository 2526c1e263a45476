/* The groups of a batch: its reuse flows of one layer each. They are found by batch and layer, and stand in one of the
 * batch's two pairing heaps. */
#ifndef MFS_RMLQ_GROUP_H
#define MFS_RMLQ_GROUP_H

#include "pairing.h"

/* The second half of a group's key: the layer, and above all layers what the first half names. */
static inline uint32_t group_part(uint32_t batch_part, uint16_t layer)
{
	return batch_part << 16 | layer;
}

static inline uint32_t group_find(const struct mfs_rmlq *q, uint64_t batch_key, uint32_t batch_part, uint16_t layer)
{
	return mfs_slab_find(&q->group, batch_key, group_part(batch_part, layer));
}

static inline uint32_t group_make(struct mfs_rmlq *q, uint32_t b, uint16_t layer)
{
	const struct mfs_record *of = &batch_at(q, b)->record;
	uint32_t g = mfs_slab_take(&q->group, of->key, group_part(of->part, layer)); /* there is one for every flow */
	struct group *group = group_at(q, g);

	record_clear(group);
	group->batch = b;
	group->layer = layer;
	batch_at(q, b)->groups++;
	return g;
}

/* Puts a group that got its first flow, or whose batch moved, into the heap where it belongs. */
static inline void group_insert(struct mfs_rmlq *q, uint32_t g)
{
	struct group *group = group_at(q, g);
	struct batch *batch = batch_at(q, group->batch);

	group->due = batch->told && group->layer <= batch->layer_current;
	pairing_insert(q, group->due ? &batch->due : &batch->ahead, g);
}

static inline void group_remove(struct mfs_rmlq *q, uint32_t g)
{
	struct group *group = group_at(q, g);
	struct batch *batch = batch_at(q, group->batch);

	pairing_remove(q, group->due ? &batch->due : &batch->ahead, g);
}

/* The group has another first flow: the order of a group that is due changes with it. */
static inline void group_head_set(struct mfs_rmlq *q, uint32_t g, uint64_t arrival)
{
	struct group *group = group_at(q, g);

	if (!group->due || (batch_at(q, group->batch)->due == g && !group->child)) { /* no order, or alone */
		group->head_arrival = arrival;
		return;
	}
	group_remove(q, g);
	group->head_arrival = arrival;
	group_insert(q, g);
}

#endif
