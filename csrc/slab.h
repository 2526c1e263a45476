/* A fixed table of records with a free list and, for records with a key, lookup by key.
 *
 * Record 0 is never given out, so that 0 means "none" and zeroed memory is a valid empty table. Memory above the
 * highest record ever used is not touched. */
#ifndef MFS_SLAB_H
#define MFS_SLAB_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MFS_HUGE_PAGE (2UL << 20)

struct mfs_record { /* first member of every record */
	uint64_t key;	/* 0: not found by key */
	uint32_t chain; /* next with the same hash, or next free */
	uint32_t part;	/* second half of a key; without a key the user's, it survives when all else is made zero */
};

struct mfs_slab {
	char *records; /* on a cache line */
	void *memory;
	size_t stride;
	uint32_t capacity;
	uint32_t used; /* highest record that was ever given out */
	uint32_t free;
	uint32_t live;
	uint32_t *bucket; /* NULL: no lookup */
	uint32_t bucket_shift;
};

/* A large table is read at random: fewer, larger pages spare most of the translation misses. Only advice. */
static inline void mfs_slab_advise(void *memory, size_t bytes)
{
	uintptr_t start = ((uintptr_t)memory + MFS_HUGE_PAGE - 1) & ~(MFS_HUGE_PAGE - 1);
	uintptr_t end = ((uintptr_t)memory + bytes) & ~(MFS_HUGE_PAGE - 1);

	if (end > start)
		(void)madvise((void *)start, end - start, MADV_HUGEPAGE);
}

static inline int mfs_slab_create(struct mfs_slab *slab, size_t stride, uint32_t capacity, int keyed)
{
	uint32_t bits = 4;

	*slab = (struct mfs_slab){ .stride = stride, .capacity = capacity };
	/* calloc gives pages that are not touched yet; one record more for 0, one to align the first */
	slab->memory = calloc((size_t)capacity + 2, stride);
	if (!slab->memory)
		return -ENOMEM;
	slab->records = (char *)(((uintptr_t)slab->memory + 63) & ~(uintptr_t)63);
	mfs_slab_advise(slab->memory, ((size_t)capacity + 2) * stride);
	if (!keyed)
		return 0;
	while ((4u << bits) < capacity) /* few of the records are in use as a rule: keep the buckets in cache */
		bits++;
	slab->bucket_shift = 64 - bits;
	slab->bucket = calloc((size_t)1 << bits, sizeof(*slab->bucket));
	return slab->bucket ? 0 : -ENOMEM;
}

static inline void mfs_slab_destroy(struct mfs_slab *slab)
{
	free(slab->memory);
	free(slab->bucket);
}

static inline uint32_t *mfs_slab_bucket(const struct mfs_slab *slab, uint64_t key, uint32_t part)
{
	key ^= (key >> 32) ^ ((uint64_t)part << 40); /* a multiplication alone would not let high bits reach low ones */
	return &slab->bucket[(key * 0x9e3779b97f4a7c15ULL) >> slab->bucket_shift];
}

static inline struct mfs_record *mfs_slab_at(const struct mfs_slab *slab, uint32_t index)
{
	return (struct mfs_record *)(slab->records + index * slab->stride);
}

/* A record, zero but for the key, or 0 when all are in use. */
static inline uint32_t mfs_slab_take(struct mfs_slab *slab, uint64_t key, uint32_t part)
{
	uint32_t index = slab->free;
	struct mfs_record *record;

	if (index) {
		record = mfs_slab_at(slab, index);
		slab->free = record->chain;
		memset(record + 1, 0, slab->stride - sizeof(*record));
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
