/*
 * The descriptors that belong to this library. A forked child closes its copies of them, so that the peer
 * notices when the parent ends. They are recorded in a static table, so that the child follows no pointer:
 * after ibv_fork_init, the pages of registered memory are missing in a child, and with them everything
 * else that the heap has put there, such as contexts, queue pairs and connections.
 */
#include "descriptors.h"

#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

enum { DESCRIPTORS_MAX = 1 << 16, BITS = 64 }; /* a child keeps its copies of higher ones */

static _Atomic uint64_t owned[DESCRIPTORS_MAX / BITS];

/* Records the descriptor and returns it. A negative one is only returned. */
int mfs_descriptor_own(int fd)
{
	if (fd >= 0 && fd < DESCRIPTORS_MAX)
		atomic_fetch_or(&owned[fd / BITS], 1ULL << fd % BITS);
	return fd;
}

/* Removes the descriptor from the table before closing it: once closed, its number may be given to another
 * file. */
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
