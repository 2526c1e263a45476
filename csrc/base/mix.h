/* splitmix64's finisher: every bit of the result depends on every bit of x. */
#ifndef MFS_BASE_MIX_H
#define MFS_BASE_MIX_H

#include <stdint.h>

static inline uint64_t mfs_mix64(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

#endif
