/* A map from numbers to pointers: open addressing with linear probing, at most half full. */
#ifndef MFS_MAP_H
#define MFS_MAP_H

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

struct mfs_map_slot {
	uint64_t key;
	void *value; /* NULL: free */
};

struct mfs_map {
	struct mfs_map_slot *slot;
	uint32_t n;
	uint32_t mask; /* slots - 1 */
};

static inline uint32_t mfs_map_home(const struct mfs_map *map, uint64_t key)
{
	key ^= key >> 32;
	return (uint32_t)((key * 0x9e3779b97f4a7c15ULL) >> 32) & map->mask;
}

static inline struct mfs_map_slot *mfs_map_slot(const struct mfs_map *map, uint64_t key)
{
	uint32_t at = mfs_map_home(map, key);

	while (map->slot[at].value && map->slot[at].key != key)
		at = (at + 1) & map->mask;
	return &map->slot[at];
}

static inline void *mfs_map_find(const struct mfs_map *map, uint64_t key)
{
	return map->slot ? mfs_map_slot(map, key)->value : NULL;
}

/* Makes room for `n` numbers. -ENOMEM. */
static inline int mfs_map_reserve(struct mfs_map *map, uint64_t n)
{
	uint64_t slots = map->slot ? (uint64_t)map->mask + 1 : 16;
	struct mfs_map bigger;

	while (slots < 2 * n)
		slots *= 2;
	if (map->slot && slots == (uint64_t)map->mask + 1)
		return 0;
	if (slots > UINT64_C(1) << 32)
		return -ENOMEM;
	bigger = (struct mfs_map){calloc(slots, sizeof(*bigger.slot)), map->n, (uint32_t)(slots - 1)};
	if (!bigger.slot)
		return -ENOMEM;
	for (uint64_t i = 0; map->slot && i <= map->mask; i++)
		if (map->slot[i].value)
			*mfs_map_slot(&bigger, map->slot[i].key) = map->slot[i];
	free(map->slot);
	*map = bigger;
	return 0;
}

/* Adds a number that is not in the map. Room must be reserved. */
static inline void mfs_map_add(struct mfs_map *map, uint64_t key, void *value)
{
	*mfs_map_slot(map, key) = (struct mfs_map_slot){key, value};
	map->n++;
}

/* Removes a number that is in the map. Later entries of the same cluster close the gap. */
static inline void mfs_map_remove(struct mfs_map *map, uint64_t key)
{
	uint32_t gap = (uint32_t)(mfs_map_slot(map, key) - map->slot), at = gap;

	for (;;) {
		at = (at + 1) & map->mask;
		if (!map->slot[at].value)
			break;
		if (((at - mfs_map_home(map, map->slot[at].key)) & map->mask) >= ((at - gap) & map->mask)) {
			map->slot[gap] = map->slot[at];
			gap = at;
		}
	}
	map->slot[gap].value = NULL;
	map->n--;
}

#endif
