/* A decode worker. It has a request's KV when all its bytes have arrived, and reports when that was. */
#include "worker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kv {
	uint64_t expected, arrived;
} *kv;
static uint32_t kv_count;

static struct kv *kv_of(uint32_t request)
{
	if (request >= kv_count) {
		const uint32_t count = request + 256;

		kv = realloc(kv, count * sizeof(*kv));
		if (!kv)
			fail("no memory for %u requests", count);
		memset(kv + kv_count, 0, (count - kv_count) * sizeof(*kv));
		kv_count = count;
	}
	return &kv[request];
}

static void evaluate(uint32_t request)
{
	const struct kv *it = kv_of(request);

	if (it->expected && it->arrived == it->expected)
		tell("kv %u %" PRIu64 " %" PRIu64, request, now_ns(), it->arrived);
	else if (it->expected && it->arrived > it->expected)
		fail("request %u: %" PRIu64 " bytes arrived, %" PRIu64 " expected", request, it->arrived, it->expected);
}

/* `words`: REQUEST BYTES */
void decode_expect(char *words)
{
	uint64_t bytes;
	uint32_t request;

	if (sscanf(words, "%u %" SCNu64, &request, &bytes) != 2)
		fail("expect %s: want REQUEST BYTES", words);
	kv_of(request)->expected = bytes;
	evaluate(request);
}

void decode_received(uint32_t request, uint64_t bytes)
{
	kv_of(request)->arrived += bytes;
	evaluate(request);
}
