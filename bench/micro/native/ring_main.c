/* Measures messages per second through one queue: ring ROUNDS ITEMS. Prints a line "name producers batch
 * ops_per_s" for each run.
 *
 * All queues run in turn within every round, so that other load on the machine affects all of them. Each
 * thread is pinned to a core, and the consumer and the first producer to different ones. Otherwise a run
 * would depend on where they happen to be. A run checks that every item arrives once and in its producer's
 * order. A thread that finds the queue full or empty yields, since there may be fewer cores than threads.
 */
#define _GNU_SOURCE
#include "ring.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PRODUCERS_MAX 4
#define POP_MAX 64
#define BATCH_MAX 64

struct shared {
	const struct queue *queue;
	void *object;
	unsigned batch;
	uint64_t items_each;
	pthread_barrier_t barrier;
};

struct producer {
	struct shared *shared;
	int index;
};

static void keep_to_core(int n)
{
	cpu_set_t allowed, one;
	static cpu_set_t at_start;
	static bool known;

	if (!known) {
		sched_getaffinity(0, sizeof(at_start), &at_start);
		known = true;
	}
	allowed = at_start;
	n %= CPU_COUNT(&allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &allowed) || n-- > 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		sched_setaffinity(0, sizeof(one), &one);
		return;
	}
}

static void *produce(void *argument)
{
	struct producer *p = argument;
	struct shared *s = p->shared;
	void *handle = s->queue->producer(s->object, p->index);
	unsigned (*push)(void *, const struct item *, unsigned) = s->queue->push;
	struct item items[BATCH_MAX] = {0};
	uint64_t next = 0;

	keep_to_core(p->index + 1);
	pthread_barrier_wait(&s->barrier);
	while (next < s->items_each) {
		unsigned n = s->items_each - next < s->batch ? (unsigned)(s->items_each - next) : s->batch;
		unsigned done = 0;

		for (unsigned i = 0; i < n; i++) {
			items[i].producer = (uint64_t)p->index;
			items[i].number = next + i;
		}
		for (;;) {
			done += push(handle, items + done, n - done);
			if (done == n)
				break;
			sched_yield();
		}
		next += n;
	}
	return NULL;
}

static double run(const struct queue *queue, int producers, unsigned batch, uint64_t items_each)
{
	struct shared s = {.queue = queue, .object = queue->create(producers), .batch = batch, .items_each = items_each};
	struct producer p[PRODUCERS_MAX];
	pthread_t thread[PRODUCERS_MAX];
	uint64_t expected[PRODUCERS_MAX] = {0}, left = items_each * (uint64_t)producers;
	struct item items[POP_MAX];
	struct timespec start, end;

	pthread_barrier_init(&s.barrier, NULL, (unsigned)producers + 1);
	for (int i = 0; i < producers; i++) {
		p[i] = (struct producer){&s, i};
		pthread_create(&thread[i], NULL, produce, &p[i]);
	}
	pthread_barrier_wait(&s.barrier);
	clock_gettime(CLOCK_MONOTONIC, &start);
	while (left) {
		unsigned n = queue->pop(s.object, items, POP_MAX);

		if (n == 0)
			sched_yield();
		for (unsigned i = 0; i < n; i++) {
			if (items[i].number != expected[items[i].producer]++) {
				fprintf(stderr, "%s: an item was lost, doubled or reordered\n", queue->name);
				exit(1);
			}
		}
		left -= n;
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	for (int i = 0; i < producers; i++)
		pthread_join(thread[i], NULL);
	pthread_barrier_destroy(&s.barrier);
	queue->destroy(s.object);
	return (double)items_each * producers /
	       ((double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9);
}

int main(int argc, char **argv)
{
	static const struct queue *queues[] = {&queue_mfs,	 &queue_rte_ring,   &queue_rte_ring_rts,
					       &queue_ck_ring, &queue_moodycamel, &queue_boost};
	static const int producers[] = {1, 2, 4};
	static const unsigned batches[] = {1, 8};

	if (argc != 3) {
		fprintf(stderr, "usage: ring ROUNDS ITEMS\n");
		return 2;
	}
	keep_to_core(0);
	for (int round = 0; round < atoi(argv[1]); round++)
		for (unsigned b = 0; b < 2; b++)
			for (unsigned p = 0; p < 3; p++)
				for (unsigned q = 0; q < 6; q++) {
					uint64_t each = strtoull(argv[2], NULL, 10) / (uint64_t)producers[p];
					const struct queue *queue = queues[(q + (unsigned)round) % 6];

					printf("%s %d %u %.0f\n", queue->name, producers[p], batches[b],
					       run(queue, producers[p], batches[b], each));
					fflush(stdout);
				}
	return 0;
}
