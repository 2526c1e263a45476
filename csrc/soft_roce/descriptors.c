/*
 * Which descriptors are this library's: a forked child closes its copies of them, so that the peer sees it when
 * the parent ends. They are known by a static table alone. After ibv_fork_init the pages of registered memory are
 * missing in a child, and with them whatever else the heap has put there: contexts, queue pairs, connections. The
 * child follows no pointer.
 */
#include "descriptors.h"

#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 1 << 16, BITS = 64 }; /* a child keeps its copies of those above */

static _Atomic uint64_t owned[DESCRIPTORS_MAX / BITS];

/* Answers the descriptor; a negative one is passed on. */
int mfs_descriptor_own(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS_MAX)
		atomic_fetch_or(&owned[fd / BITS], 1ULL << fd % BITS);
	return fd;
}

/* Forgotten first: once it is closed, its number may be that of another file. */
void mfs_descriptor_close(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS_MAX)
		atomic_fetch_and(&owned[fd / BITS], ~(1ULL << fd % BITS));
	close(fd);
}

void mfs_descriptors_close_all(void)
{
	for (int i = 0; i < DESCRIPTORS_MAX / BITS; i++)
		for (uint64_t left = atomic_exchange(&owned[i], 0); left; left &= left - 1)
			close(i * BITS + __builtin_ctzll(left));
}
