/*
 * The competitor of bench/micro/plan.py: Algorithm 1 from scratch on every event, in C, on flat arrays: sort by
 * RED, walk, and judge each pruned request's return by a walk of its own, as the text has it. Feasibility of what
 * is given only: it prunes nothing new, so it does less than an event needs.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct key {
	int64_t red;
	uint32_t batch;
};

static int compare(const void *a, const void *b)
{
	const struct key *x = a, *y = b;

	if (x->red != y->red)
		return x->red < y->red ? -1 : 1;
	return (x->batch > y->batch) - (x->batch < y->batch);
}

static void walk(const struct key *order, uint32_t batches, const uint32_t *first, const uint32_t *port,
		 const int64_t *amount, uint32_t ports, int64_t capacity, int64_t *load, int64_t *longest_at)
{
	int64_t most = 0, longest = 0;

	memset(load, 0, ports * sizeof(*load));
	for (uint32_t i = 0; i < batches; i++) {
		uint32_t b = order[i].batch;

		for (uint32_t k = first[b]; k < first[b + 1]; k++) {
			load[port[k]] += amount[k];
			if (load[port[k]] > most) {
				most = load[port[k]];
				longest = (int64_t)(((__int128)most * 1000000000 + capacity - 1) / capacity);
			}
		}
		longest_at[i] = longest;
	}
}

/* One event: `walks` times the walk after one sort. Returns the last batch's longest time. */
__attribute__((visibility("default"))) int64_t mfs_plan_from_scratch(uint32_t batches, const int64_t *red,
								     const uint32_t *first, const uint32_t *port,
								     const int64_t *amount, uint32_t ports,
								     int64_t capacity, uint32_t walks)
{
	struct key *order = malloc(batches * sizeof(*order));
	int64_t *load = malloc(ports * sizeof(*load)), *longest_at = malloc(batches * sizeof(*longest_at)), last = -1;

	if (order && load && longest_at && batches) {
		for (uint32_t b = 0; b < batches; b++)
			order[b] = (struct key){ red[b], b };
		qsort(order, batches, sizeof(*order), compare);
		while (walks--)
			walk(order, batches, first, port, amount, ports, capacity, load, longest_at);
		last = longest_at[batches - 1];
	}
	free(order);
	free(load);
	free(longest_at);
	return last;
}
