/* One mapping from which all tables of a structure are cut at creation. Pages that are never used are
 * never touched, whatever the allocator did before. And thousands of queues do not use up the number of
 * mappings that a process may have. */
#ifndef MFS_ARENA_H
#define MFS_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__ /* detect a table that is overrun into its neighbour */
#include <sanitizer/asan_interface.h>
#define MFS_ARENA_GAP 64
#else
#define MFS_ARENA_GAP 0
#define ASAN_POISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(start, bytes) ((void)(start), (void)(bytes))
#endif

struct mfs_arena {
	char *base; /* NULL: only count */
	size_t used;
};

/* Returns the next `bytes`, aligned to a cache line; NULL while counting. */
static inline void *mfs_arena_take(struct mfs_arena *arena, size_t bytes)
{
	size_t at = (arena->used + 63) & ~(size_t)63;

	arena->used = at + bytes + MFS_ARENA_GAP;
	if (!arena->base)
		return NULL;
	ASAN_POISON_MEMORY_REGION(arena->base + at + bytes, MFS_ARENA_GAP);
	return arena->base + at;
}

/* Maps zeroed memory for what was counted. Returns false if there is none. */
static inline bool mfs_arena_map(struct mfs_arena *arena)
{
	void *base = mmap(NULL, arena->used, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (base == MAP_FAILED)
		return false;
	*arena = (struct mfs_arena){.base = base};
	return true;
}

static inline void mfs_arena_unmap(void *base, size_t bytes)
{
	ASAN_UNPOISON_MEMORY_REGION(base, bytes);
	munmap(base, bytes);
}

#endif
