/* A number for the port that a task goes to. Tasks of several processes, and of both ends, must agree on
 * it, so it depends only on the bytes of the GID. */
#include <mfs/client.h>

/* The finalizer of MurmurHash3: every bit of the input changes about half of the bits of the output. */
static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 33) * 0xff51afd7ed558ccdu;
	x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

uint32_t mfs_peer_hash(const uint8_t gid[16])
{
	uint64_t half[2] = {0, 0};
	uint32_t hash;

	for (unsigned i = 0; i < 16; i++)
		half[i / 8] = half[i / 8] << 8 | gid[i];
	if (!half[0] && !half[1])
		return 0;
	hash = (uint32_t)mix(mix(half[0]) ^ half[1]);
	return hash ? hash : 1;
}
