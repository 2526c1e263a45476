/* What waits for closed destinations, and how it returns. See parked.h. */
#include "parked.h"

static struct pairing_links *parked_links(const struct mfs_rmlq *q, uint32_t node)
{
	return &q->park[node].links;
}

static bool parked_before(const struct mfs_rmlq *q, uint32_t a, uint32_t b)
{
	const struct parked *first = &q->park[a], *second = &q->park[b];

	return first->high != second->high ? first->high < second->high : first->low < second->low;
}

static const struct pairing BY_KEY = {parked_links, parked_before};

/* Returns the node that stands in the tier's heap for what is parked. There is one for each destination and tier. */
static uint32_t stand_in(const struct mfs_rmlq *q, unsigned tier, uint16_t destination)
{
	return q->node_parked + tier * MFS_DESTINATIONS_MAX + destination;
}

static uint16_t node_destination(const struct mfs_rmlq *q, uint32_t node)
{
	if (node >= q->node_parked)
		return (uint16_t)((node - q->node_parked) % MFS_DESTINATIONS_MAX);
	if (node > q->node_batch)
		return batch_at(q, node - q->node_batch)->destination;
	return request_at(q, node)->destination;
}

/* For an open destination the best parked key is in the tier's heap; for a closed one, none is. */
static void stand_in_place(struct mfs_rmlq *q, unsigned tier, uint16_t destination)
{
	uint32_t best = q->destination[destination].parked[tier];
	const struct parked *parked = &q->park[best];

	if (best && !q->destination[destination].closed)
		mfs_heap_set(&q->tier[tier], stand_in(q, tier, destination), parked->high, parked->low,
			     parked->hint);
	else
		mfs_heap_remove(&q->tier[tier], stand_in(q, tier, destination));
}

/* Enters or leaves only the pairing heap. */
static void enter(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination)
{
	pairing_insert(&BY_KEY, q, &q->destination[destination].parked[tier], node);
	q->tier[tier].position[node] = POSITION_PARKED;
	q->apart++;
}

static void leave(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination)
{
	pairing_remove(&BY_KEY, q, &q->destination[destination].parked[tier], node);
	q->tier[tier].position[node] = 0;
	q->apart--;
}

void parked_set(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination, uint64_t high,
		uint64_t low, uint32_t hint)
{
	struct parked *parked = &q->park[node];

	if (q->tier[tier].position[node]) {
		parked->hint = hint;
		if (parked->high == high && parked->low == low)
			return;
		leave(q, tier, node, destination);
	}
	parked->high = high;
	parked->low = low;
	parked->hint = hint;
	enter(q, tier, node, destination);
	stand_in_place(q, tier, destination);
}

void parked_remove(struct mfs_rmlq *q, unsigned tier, uint32_t node, uint16_t destination)
{
	leave(q, tier, node, destination);
	stand_in_place(q, tier, destination);
}

void parked_surface(struct mfs_rmlq *q, unsigned tier)
{
	struct mfs_heap *heap = &q->tier[tier];

	while (heap->n) {
		const struct mfs_heap_entry first = heap->entry[0];
		uint16_t destination = node_destination(q, first.node);

		if (first.node >= q->node_parked) {
			uint32_t best = q->destination[destination].parked[tier];
			const struct parked *parked = &q->park[best];

			leave(q, tier, best, destination);
			/* before the node is set: the heap has room only for as many entries as have flows */
			stand_in_place(q, tier, destination);
			mfs_heap_set(heap, best, parked->high, parked->low, parked->hint);
		} else if (q->destination[destination].closed) {
			mfs_heap_remove(heap, first.node);
			parked_set(q, tier, first.node, destination, first.high, first.low, first.hint);
		} else {
			return;
		}
	}
}

void mfs_rmlq_destination_close(struct mfs_rmlq *q, uint16_t destination)
{
	if (destination >= MFS_DESTINATIONS_MAX || q->destination[destination].closed)
		return;
	q->destination[destination].closed = true;
	q->apart++;
	for (unsigned tier = 0; tier < MFS_TIERS; tier++)
		stand_in_place(q, tier, destination);
}

void mfs_rmlq_destination_open(struct mfs_rmlq *q, uint16_t destination)
{
	if (destination >= MFS_DESTINATIONS_MAX || !q->destination[destination].closed)
		return;
	q->destination[destination].closed = false;
	q->apart--;
	for (unsigned tier = 0; tier < MFS_TIERS; tier++)
		stand_in_place(q, tier, destination);
}

uint32_t mfs_rmlq_waiting_at(const struct mfs_rmlq *q, uint16_t destination)
{
	return destination < MFS_DESTINATIONS_MAX ? q->destination[destination].waiting : 0;
}
