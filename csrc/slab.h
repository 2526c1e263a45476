/* A fixed table of records with a free list and, for records with a key, lookup by key.
 *
 * Record 0 is never given out, so that 0 means "none" and zeroed memory is a valid empty table. Memory above the
 * highest record ever used is not touched. A record's generation rises when it is freed and is never 0. */
#ifndef MFS_SLAB_H
#define MFS_SLAB_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct mfs_record { /* first member of every record */
	uint64_t key; /* 0: not found by key */
	uint32_t chain; /* next with the same hash, or next free */
	uint32_t generation;
};

struct mfs_slab {
	char *records;
	size_t stride;
	uint32_t capacity;
	uint32_t used; /* highest record that was ever given out */
	uint32_t free;
	uint32_t live;
	uint32_t *bucket; /* NULL: no lookup */
	uint32_t bucket_shift;
};

static inline int mfs_slab_create(struct mfs_slab *slab, size_t stride, uint32_t capacity, int keyed)
{
	uint32_t bits = 4;

	*slab = (struct mfs_slab){ .stride = stride, .capacity = capacity };
	/* an aligned start: records are whole cache lines; one line more than calloc must give */
	slab->records = calloc((size_t)capacity + 2, stride);
	if (!slab->records)
		return -ENOMEM;
	if (!keyed)
		return 0;
	while ((1u << bits) < capacity && bits < 31)
		bits++;
	slab->bucket_shift = 64 - bits;
	slab->bucket = calloc((size_t)1 << bits, sizeof(*slab->bucket));
	return slab->bucket ? 0 : -ENOMEM;
}

static inline void mfs_slab_destroy(struct mfs_slab *slab)
{
	free(slab->records);
	free(slab->bucket);
}

static inline uint32_t *mfs_slab_bucket(const struct mfs_slab *slab, uint64_t key)
{
	key ^= key >> 32; /* a multiplication alone would not let high bits reach low ones */
	return &slab->bucket[(key * 0x9e3779b97f4a7c15ULL) >> slab->bucket_shift];
}

static inline struct mfs_record *mfs_slab_at(const struct mfs_slab *slab, uint32_t index)
{
	uintptr_t start = ((uintptr_t)slab->records + 63) & ~(uintptr_t)63;

	return (struct mfs_record *)(start + index * slab->stride);
}

/* A zeroed record (but for its generation), or 0 when all are in use. */
static inline uint32_t mfs_slab_take(struct mfs_slab *slab, uint64_t key)
{
	uint32_t index = slab->free;
	struct mfs_record *record;

	if (index) {
		uint32_t generation;

		record = mfs_slab_at(slab, index);
		slab->free = record->chain;
		generation = record->generation;
		memset(record, 0, slab->stride);
		record->generation = generation;
	} else {
		if (slab->used == slab->capacity)
			return 0;
		index = ++slab->used;
		record = mfs_slab_at(slab, index);
		record->generation = 1;
	}
	record->key = key;
	if (key) {
		uint32_t *bucket = mfs_slab_bucket(slab, key);

		record->chain = *bucket;
		*bucket = index;
	}
	slab->live++;
	return index;
}

static inline uint32_t mfs_slab_find(const struct mfs_slab *slab, uint64_t key)
{
	uint32_t index = *mfs_slab_bucket(slab, key);

	while (index) {
		const struct mfs_record *record = mfs_slab_at(slab, index);

		if (record->key == key)
			break;
		index = record->chain;
	}
	return index;
}

static inline void mfs_slab_give(struct mfs_slab *slab, uint32_t index)
{
	struct mfs_record *record = mfs_slab_at(slab, index);

	if (record->key && slab->bucket) {
		uint32_t *link = mfs_slab_bucket(slab, record->key);

		while (*link != index)
			link = &mfs_slab_at(slab, *link)->chain;
		*link = record->chain;
	}
	if (++record->generation == 0)
		record->generation = 1;
	record->key = 0;
	record->chain = slab->free;
	slab->free = index;
	slab->live--;
}

#endif
