/* The number of an agent's name, by the same rule as in the engines' adapters (mfsd/client/checking.py). A
 * name that is an address has the number of that port. Any other name has the number of its BLAKE2b hash
 * of 16 bytes (RFC 7693), so it is not taken for a port. */
#include "name.h"

#include <arpa/inet.h>
#include <endian.h>
#include <stdbool.h>
#include <string.h>

#define DIGEST_BYTES 16
#define BLOCK_BYTES 128
#define ROUNDS 12

static const uint64_t start[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
				  0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
				  0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

static const uint8_t order[10][16] = {
	{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	{14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
	{11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
	{7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
	{9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
	{2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
	{12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
	{13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
	{6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
	{10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t turned(uint64_t x, unsigned bits)
{
	return x >> bits | x << (64 - bits);
}

static void quarter(uint64_t *v, unsigned column, unsigned shift, uint64_t x, uint64_t y)
{
	uint64_t *a = v + column, *b = v + 4 + (column + shift) % 4, *c = v + 8 + (column + 2 * shift) % 4,
		 *d = v + 12 + (column + 3 * shift) % 4;

	*a += *b + x;
	*d = turned(*d ^ *a, 32);
	*c += *d;
	*b = turned(*b ^ *c, 24);
	*a += *b + y;
	*d = turned(*d ^ *a, 16);
	*c += *d;
	*b = turned(*b ^ *c, 63);
}

/* Adds a block to the hash; `done` is the number of bytes so far, including this block. */
static void take(uint64_t state[8], const uint8_t block[BLOCK_BYTES], uint64_t done, bool last)
{
	uint64_t v[16], word[16];

	memcpy(word, block, sizeof(word));
	for (unsigned i = 0; i < 16; i++)
		word[i] = le64toh(word[i]);
	memcpy(v, state, sizeof(start));
	memcpy(v + 8, start, sizeof(start));
	v[12] ^= done;
	v[14] ^= last ? UINT64_MAX : 0;
	for (unsigned round = 0; round < ROUNDS; round++) {
		const uint8_t *at = order[round % 10];

#pragma GCC unroll 8
		for (unsigned i = 0; i < 8; i++)
			quarter(v, i % 4, i / 4, word[at[2 * i]], word[at[2 * i + 1]]);
	}
	for (unsigned i = 0; i < 8; i++)
		state[i] ^= v[i] ^ v[i + 8];
}

static void digest(const uint8_t *data, size_t bytes, uint8_t out[DIGEST_BYTES])
{
	uint8_t block[BLOCK_BYTES];
	uint64_t state[8];
	size_t done = 0, part;

	memcpy(state, start, sizeof(start));
	state[0] ^= 0x01010000 ^ DIGEST_BYTES; /* no key, sequential mode (no tree) */
	do {
		part = bytes - done < BLOCK_BYTES ? bytes - done : BLOCK_BYTES;
		memset(block, 0, sizeof(block));
		memcpy(block, data + done, part);
		done += part;
		take(state, block, done, done == bytes);
	} while (done < bytes);
	for (unsigned i = 0; i < DIGEST_BYTES; i++)
		out[i] = (uint8_t)(state[i / 8] >> 8 * (i % 8));
}

/* Parses a name that is an address into its GID. An address with a scope (fe80::1%eth0) counts as a name. */
static bool address(const struct nixl_string *name, uint8_t gid[16])
{
	static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff};
	char text[INET6_ADDRSTRLEN];

	if (name->bytes >= sizeof(text) || memchr(name->data, 0, name->bytes))
		return false;
	memcpy(text, name->data, name->bytes);
	text[name->bytes] = 0;
	memcpy(gid, v4, sizeof(v4));
	return inet_pton(AF_INET, text, gid + sizeof(v4)) == 1 || inet_pton(AF_INET6, text, gid) == 1;
}

uint32_t nixl_name_peer(const struct nixl_string *name)
{
	uint8_t gid[16];

	if (!name->bytes)
		return 0;
	if (!address(name, gid))
		digest((const uint8_t *)name->data, name->bytes, gid);
	return mfs_peer_hash(gid);
}
