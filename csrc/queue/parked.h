/* Nodes in the heaps of the tiers, and outside of them while their destination is closed.
 *
 * A node whose destination is closed is parked: it leaves its tier's heap when it comes first there, or
 * never enters it. What is parked for one destination and tier is a pairing heap with the same keys. While
 * a destination is open, the best key parked for it stands in the tier's heap as a node of its own kind.
 * When that comes first, the parked node takes a place in the tier's heap, and the next best key stands in
 * for the rest. So neither closing nor opening moves what waits. */
#ifndef MFS_RMLQ_PARKED_H
#define MFS_RMLQ_PARKED_H

#include "state.h"

#define POSITION_PARKED UINT32_MAX /* stored for a parked node in place of its position in a tier's heap */

/* parked.c */
void parked_set(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination, uint64_t high,
		uint64_t low, uint32_t hint);
void parked_remove(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination);
/* makes the first node of the tier one that may go */
void parked_surface(struct mfs_rmlq *q, unsigned tier);

/* Inserts the node of a destination, or moves it to its new key. */
static inline void node_set(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination,
			    uint64_t high, uint64_t low, uint32_t hint)
{
	uint32_t position = q->tier[tier].position[node];

	if (position ? position != POSITION_PARKED : !q->destination[destination].closed)
		mfs_heap_set(&q->tier[tier], node, high, low, hint);
	else
		parked_set(q, tier, node, destination, high, low, hint);
}

/* Removes the node; does nothing if it is not in. */
static inline void node_remove(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination)
{
	if (q->tier[tier].position[node] == POSITION_PARKED)
		parked_remove(q, tier, node, destination);
	else
		mfs_heap_remove(&q->tier[tier], node);
}

/* The first half of the key of a node that is in. */
static inline uint64_t node_high(const struct mfs_rmlq *q, unsigned tier, uint32_t node)
{
	uint32_t position = q->tier[tier].position[node];

	return position == POSITION_PARKED ? q->park[node].high : q->tier[tier].entry[position - 1].high;
}

/* Returns the first node of a tier whose destination is open, or NULL. */
static inline const struct mfs_heap_entry *node_first(struct mfs_rmlq *q, unsigned tier)
{
	if (__builtin_expect(q->apart, 0))
		parked_surface(q, tier);
	return q->tier[tier].n ? q->tier[tier].entry : NULL;
}

#endif
