/* A fixed table of records with a free list and, for records with a key, lookup by key.
 *
 * Record 0 is never given out: 0 means "none", and zeroed memory is a valid empty table. Memory above the
 * highest record ever used is not touched. */
#ifndef MFS_SLAB_H
#define MFS_SLAB_H

#include <stdint.h>

#include "arena.h"

struct mfs_record {   /* first member of every record */
	uint64_t key; /* 0: cannot be found by key */
	/* next record with the same hash, or next free one; in a table without lookup, free for the user */
	uint32_t chain;
	uint32_t part; /* second half of the key; for a record without a key, free for the user */
};

struct mfs_slab {
	char *records; /* aligned to a cache line */
	size_t stride;
	uint32_t capacity;
	uint32_t used; /* highest record ever given out */
	uint32_t free;
	uint32_t live;
	uint32_t *bucket; /* NULL: no lookup */
	uint32_t bucket_shift;
};

/* Lays the table out in `arena`, which is zeroed. `keyed` is the usual maximum of records with keys; 0: no lookup. */
static inline void mfs_slab_lay(struct mfs_slab *slab, struct mfs_arena *arena, size_t stride,
				uint32_t capacity, uint32_t keyed)
{
	uint32_t bits = 4;

	*slab = (struct mfs_slab){.stride = stride, .capacity = capacity};
	slab->records = mfs_arena_take(arena, ((size_t)capacity + 1) * stride);
	if (!keyed)
		return;
	while ((4u << bits) < keyed) /* usually few of the records are in use: keep the buckets in cache */
		bits++;
	slab->bucket_shift = 64 - bits;
	slab->bucket = mfs_arena_take(arena, ((size_t)1 << bits) * sizeof(*slab->bucket));
}

static inline uint32_t *mfs_slab_bucket(const struct mfs_slab *slab, uint64_t key, uint32_t part)
{
	/* a multiplication alone would not let high bits reach low ones; all but the highest bit of `part` count */
	key ^= (key >> 32) ^ ((uint64_t)part << 33);
	return &slab->bucket[(key * 0x9e3779b97f4a7c15ULL) >> slab->bucket_shift];
}

static inline struct mfs_record *mfs_slab_at(const struct mfs_slab *slab, uint32_t index)
{
	return (struct mfs_record *)(slab->records + index * slab->stride);
}

/* Takes a record, 0 when all are in use. What follows the mfs_record keeps its old contents. */
static inline uint32_t mfs_slab_take(struct mfs_slab *slab, uint64_t key, uint32_t part)
{
	uint32_t index = slab->free;
	struct mfs_record *record;

	if (index) {
		record = mfs_slab_at(slab, index);
		slab->free = record->chain;
	} else {
		if (slab->used == slab->capacity)
			return 0;
		index = ++slab->used;
		record = mfs_slab_at(slab, index);
	}
	record->key = key;
	if (key) {
		uint32_t *bucket = mfs_slab_bucket(slab, key, part);

		record->part = part;
		record->chain = *bucket;
		*bucket = index;
	}
	slab->live++;
	return index;
}

static inline uint32_t mfs_slab_find(const struct mfs_slab *slab, uint64_t key, uint32_t part)
{
	uint32_t index = *mfs_slab_bucket(slab, key, part);

	while (index) {
		const struct mfs_record *record = mfs_slab_at(slab, index);

		if (record->key == key && record->part == part)
			break;
		index = record->chain;
	}
	return index;
}

static inline void mfs_slab_give(struct mfs_slab *slab, uint32_t index)
{
	struct mfs_record *record = mfs_slab_at(slab, index);

	if (record->key && slab->bucket) {
		uint32_t *link = mfs_slab_bucket(slab, record->key, record->part);

		while (*link != index)
			link = &mfs_slab_at(slab, *link)->chain;
		*link = record->chain;
	}
	record->key = 0;
	record->chain = slab->free;
	slab->free = index;
	slab->live--;
}

#endif
