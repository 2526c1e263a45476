/* The one clock of all native parts: CLOCK_MONOTONIC in nanoseconds. Thanks to the vDSO reading it is no
 * system call. */
#ifndef MFS_BASE_CLOCK_H
#define MFS_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define MFS_NS_PER_S 1000000000ull
#define MFS_NS_PER_MS 1000000ull

static inline uint64_t mfs_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * MFS_NS_PER_S + (uint64_t)now.tv_nsec;
}

#endif
