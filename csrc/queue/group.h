/* The groups of a batch: its reuse flows of one layer and destination each. A group is found by these two,
 * and stands in one of two pairing heaps in the batch's record, or strand, for that destination. */
#ifndef MFS_RMLQ_GROUP_H
#define MFS_RMLQ_GROUP_H

#include "state.h"

/* A group that is due is ordered by the arrival of its first flow, a group ahead by its layer. */
static inline uint64_t group_order(const struct group *group)
{
	return group->due ? group->head_arrival : group->layer;
}

static inline struct pairing_links *group_links(const struct mfs_rmlq *q, uint32_t g)
{
	return &group_at(q, g)->links;
}

static inline bool group_before(const struct mfs_rmlq *q, uint32_t a, uint32_t b)
{
	return group_order(group_at(q, a)) < group_order(group_at(q, b));
}

static const struct pairing GROUPS = {group_links, group_before};

/* The second half of a group's key: in the low bits the layer, above it the part of the batch's key, above
 * that the destination. */
_Static_assert(MFS_DESTINATIONS_MAX <= 1u << 14, "it fits above layer and part");

static inline uint32_t group_part(uint32_t batch_part, uint16_t layer, uint16_t destination)
{
	return (uint32_t)destination << 18 | batch_part << 16 | layer;
}

static inline uint32_t group_find(const struct mfs_rmlq *q, uint64_t batch_key, uint32_t batch_part,
				  uint16_t layer, uint16_t destination)
{
	return mfs_slab_find(&q->group, batch_key, group_part(batch_part, layer, destination));
}

/* `strand` is the batch's record for that destination. */
static inline uint32_t group_make(struct mfs_rmlq *q, uint32_t b, uint32_t strand, uint16_t layer)
{
	const struct mfs_record *of = &batch_at(q, b)->record;
	/* cannot fail: there is one for every flow */
	uint32_t g = mfs_slab_take(&q->group, of->key,
				   group_part(of->part, layer, batch_at(q, strand)->destination));
	struct group *group = group_at(q, g);

	record_clear(group);
	group->batch = b;
	group->strand = strand;
	group->layer = layer;
	return g;
}

static inline uint32_t *group_heap(const struct mfs_rmlq *q, const struct group *group)
{
	struct batch *strand = batch_at(q, group->strand);

	return group->due ? &strand->due : &strand->ahead;
}

/* Inserts a group that got its first flow, or whose batch has advanced, into the heap where it belongs. */
static inline void group_insert(struct mfs_rmlq *q, uint32_t g)
{
	struct group *group = group_at(q, g);
	const struct batch *batch = batch_at(q, group->batch);

	group->due = batch->announced && group->layer <= batch->layer_current;
	pairing_insert(&GROUPS, q, group_heap(q, group), g);
}

static inline void group_remove(struct mfs_rmlq *q, uint32_t g)
{
	pairing_remove(&GROUPS, q, group_heap(q, group_at(q, g)), g);
}

/* The group has another first flow. That changes the order of a group that is due. */
static inline void group_head_set(struct mfs_rmlq *q, uint32_t g, uint64_t arrival)
{
	struct group *group = group_at(q, g);

	/* not in that order, or alone */
	if (!group->due || (batch_at(q, group->strand)->due == g && !group->links.child)) {
		group->head_arrival = arrival;
		return;
	}
	group_remove(q, g);
	group->head_arrival = arrival;
	group_insert(q, g);
}

#endif
