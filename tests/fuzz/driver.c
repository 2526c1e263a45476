/* Feeds a fuzz target with random inputs where there is no libFuzzer: `target SEED INPUTS`. Says which input failed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t state;

static uint64_t next(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int argc, char **argv)
{
	static uint8_t data[4096];
	uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, inputs = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;

	for (uint64_t n = 0; n < inputs; n++) {
		size_t size;

		state = (seed + n) * 0x9E3779B97F4A7C15u | 1; /* an input is known by its number alone */
		size = next() % sizeof(data);
		for (size_t i = 0; i < size; i++)
			data[i] = (uint8_t)next();
		fprintf(stderr, "\rinput %llu", (unsigned long long)(seed + n));
		LLVMFuzzerTestOneInput(data, size);
	}
	fprintf(stderr, "\n");
	return 0;
}
