/* A 4-ary heap of nodes with their keys inline, smallest first, that knows where every node is.
 *
 * Keys are pairs compared as one 128-bit number. `position` is a dense array beside the entries: moving an entry touches
 * no record. Several heaps may share one position array when a node is in at most one of them at a time. */
#ifndef MFS_HEAP_H
#define MFS_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct mfs_heap_entry {
	uint64_t high, low;
	uint32_t node;
};

struct mfs_heap {
	struct mfs_heap_entry *entry;
	uint32_t *position; /* of a node: place + 1; 0: not in a heap */
	uint32_t n;
};

static inline bool mfs_heap_before(const struct mfs_heap_entry *a, const struct mfs_heap_entry *b)
{
	return a->high < b->high || (a->high == b->high && a->low < b->low);
}

static inline void mfs_heap_place(struct mfs_heap *heap, uint32_t at, const struct mfs_heap_entry *entry)
{
	heap->entry[at] = *entry;
	heap->position[entry->node] = at + 1;
}

static inline void mfs_heap_settle(struct mfs_heap *heap, uint32_t at, struct mfs_heap_entry entry)
{
	uint32_t start = at;

	while (at) {
		uint32_t parent = (at - 1) / 4;

		if (!mfs_heap_before(&entry, &heap->entry[parent]))
			break;
		mfs_heap_place(heap, at, &heap->entry[parent]);
		at = parent;
	}
	if (at == start) {
		for (;;) {
			uint32_t child = at * 4 + 1, best, end;

			if (child >= heap->n)
				break;
			end = child + 4 < heap->n ? child + 4 : heap->n;
			for (best = child++; child < end; child++)
				if (mfs_heap_before(&heap->entry[child], &heap->entry[best]))
					best = child;
			if (!mfs_heap_before(&heap->entry[best], &entry))
				break;
			mfs_heap_place(heap, at, &heap->entry[best]);
			at = best;
		}
	}
	mfs_heap_place(heap, at, &entry);
}

/* Puts the node in, or moves it to its new key. */
static inline void mfs_heap_set(struct mfs_heap *heap, uint32_t node, uint64_t high, uint64_t low)
{
	uint32_t position = heap->position[node];

	if (!position) /* the hole at the end */
		position = ++heap->n;
	mfs_heap_settle(heap, position - 1, (struct mfs_heap_entry){ high, low, node });
}

/* Takes the node out; nothing happens when it is not in. */
static inline void mfs_heap_remove(struct mfs_heap *heap, uint32_t node)
{
	uint32_t position = heap->position[node];
	struct mfs_heap_entry last;

	if (!position)
		return;
	heap->position[node] = 0;
	last = heap->entry[--heap->n];
	if (last.node != node)
		mfs_heap_settle(heap, position - 1, last);
}

#endif
