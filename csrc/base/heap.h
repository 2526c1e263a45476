/* A 4-ary heap of nodes with inline keys, smallest first, that knows where every node is.
 *
 * A key is a pair, compared as one 128-bit number. `position` is a dense array beside the entries, so
 * moving an entry touches no record. Several heaps may share one position array if a node is in at most
 * one of them at a time. */
#ifndef MFS_HEAP_H
#define MFS_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct mfs_heap_entry {
	uint64_t high, low;
	uint32_t node;
	uint32_t hint; /* for the caller: what to fetch into the cache when the node comes first */
};

struct mfs_heap {
	struct mfs_heap_entry *entry;
	uint32_t *position; /* by node: place + 1; 0: not in a heap */
	uint32_t n;
};

/* Written to compile without a branch: which child is the least is a coin toss that no predictor learns. */
static inline bool mfs_heap_before(const struct mfs_heap_entry *a, const struct mfs_heap_entry *b)
{
	return ((unsigned __int128)a->high << 64 | a->low) < ((unsigned __int128)b->high << 64 | b->low);
}

/* Returns the least of up to four entries from `first` on, `end` excluded. */
static inline uint32_t mfs_heap_least(const struct mfs_heap_entry *entry, uint32_t first, uint32_t end)
{
	uint32_t a = first, b;

	if (end - first >= 4) {
		a += mfs_heap_before(&entry[first + 1], &entry[first]);
		b = first + 2 + mfs_heap_before(&entry[first + 3], &entry[first + 2]);
		return a + (b - a) * mfs_heap_before(&entry[b], &entry[a]);
	}
	for (b = first + 1; b < end; b++)
		a += (b - a) * mfs_heap_before(&entry[b], &entry[a]);
	return a;
}

static inline void mfs_heap_place(struct mfs_heap *heap, uint32_t at, const struct mfs_heap_entry *entry)
{
	heap->entry[at] = *entry;
	heap->position[entry->node] = at + 1;
}

/* Moves the hole up to where `entry` belongs. Returns that place. */
static inline uint32_t mfs_heap_rise(struct mfs_heap *heap, uint32_t at, const struct mfs_heap_entry *entry)
{
	while (at) {
		uint32_t parent = (at - 1) / 4;

		if (!mfs_heap_before(entry, &heap->entry[parent]))
			break;
		mfs_heap_place(heap, at, &heap->entry[parent]);
		at = parent;
	}
	return at;
}

/* Moves the hole down to where `entry` belongs. Returns that place. */
static inline uint32_t mfs_heap_sink(struct mfs_heap *heap, uint32_t at, const struct mfs_heap_entry *entry)
{
	uint32_t child;

	while ((child = at * 4 + 1) < heap->n) {
		uint32_t best = mfs_heap_least(heap->entry, child, heap->n);

		if (!mfs_heap_before(&heap->entry[best], entry))
			break;
		mfs_heap_place(heap, at, &heap->entry[best]);
		at = best;
	}
	return at;
}

/* Inserts the node, or moves it to its new key. */
static inline void mfs_heap_set(struct mfs_heap *heap, uint32_t node, uint64_t high, uint64_t low,
				uint32_t hint)
{
	const struct mfs_heap_entry entry = {high, low, node, hint};
	uint32_t position = heap->position[node], at;

	if (!position) {
		mfs_heap_place(heap, mfs_heap_rise(heap, heap->n++, &entry), &entry);
		return;
	}
	at = mfs_heap_rise(heap, position - 1, &entry);
	if (at == position - 1)
		at = mfs_heap_sink(heap, at, &entry);
	mfs_heap_place(heap, at, &entry);
}

/* Removes the node; does nothing if it is not in. */
static inline void mfs_heap_remove(struct mfs_heap *heap, uint32_t node)
{
	uint32_t position = heap->position[node], at, child;
	struct mfs_heap_entry last;

	if (!position)
		return;
	heap->position[node] = 0;
	last = heap->entry[--heap->n];
	if (last.node == node)
		return;
	/* the last entry usually belongs near the bottom: move the hole all the way down without comparing it */
	for (at = position - 1; (child = at * 4 + 1) < heap->n;) {
		uint32_t best = mfs_heap_least(heap->entry, child, heap->n);

		mfs_heap_place(heap, at, &heap->entry[best]);
		at = best;
	}
	mfs_heap_place(heap, mfs_heap_rise(heap, at, &last), &last);
}

#endif
