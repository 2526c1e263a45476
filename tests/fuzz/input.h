/* Reads numbers off a fuzz input; when it is used up, zeros. */
#ifndef MFS_FUZZ_INPUT_H
#define MFS_FUZZ_INPUT_H

#include <stdint.h>
#include <string.h>

struct input {
	const uint8_t *data;
	size_t left;
};

static inline uint64_t take(struct input *in, size_t bytes)
{
	uint64_t value = 0;

	if (bytes > in->left)
		bytes = in->left;
	if (bytes) /* data may be NULL when nothing is left */
		memcpy(&value, in->data, bytes);
	in->data += bytes;
	in->left -= bytes;
	return value;
}

static inline void take_bytes(struct input *in, void *to, size_t bytes)
{
	memset(to, 0, bytes);
	if (bytes > in->left)
		bytes = in->left;
	if (bytes)
		memcpy(to, in->data, bytes);
	in->data += bytes;
	in->left -= bytes;
}

#endif
