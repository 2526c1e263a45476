/* What the ring benchmark needs from a queue. Each queue is one file that defines a struct queue. */
#ifndef BENCH_RING_H
#define BENCH_RING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The payload, which fits into a cache line beside a sequence number. */
struct item {
	uint64_t producer;
	uint64_t number;
	uint64_t rest[5];
};

/* Items that fit with four producers. If producers have queues of their own (mfs, moodycamel), each gets a
 * quarter. */
#define CAPACITY 8192

struct queue {
	const char *name;
	void *(*create)(int producers);
	void (*destroy)(void *queue);
	void *(*producer)(void *queue, int index); /* a producer's own handle */
	unsigned (*push)(void *producer, const struct item *items, unsigned n);
	unsigned (*pop)(void *queue, struct item *items, unsigned n); /* called by the only consumer */
};

extern const struct queue queue_mfs, queue_rte_ring, queue_rte_ring_rts, queue_ck_ring, queue_moodycamel, queue_boost;

#ifdef __cplusplus
}
#endif
#endif
