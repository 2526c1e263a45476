/* Concurrency Kit's ring: elements by value, many producers, one consumer. It has no bulk operation. */
#include "ring.h"

#include <ck_ring.h>
#include <stdlib.h>

struct ck_queue {
	ck_ring_t ring;
	struct item buffer[CAPACITY];
};

CK_RING_PROTOTYPE(items, item)

static void *create(int producers)
{
	struct ck_queue *q = aligned_alloc(4096, (sizeof(*q) + 4095) / 4096 * 4096);

	(void)producers;
	ck_ring_init(&q->ring, CAPACITY);
	return q;
}

static void *producer(void *queue, int index)
{
	(void)index;
	return queue;
}

static unsigned push(void *producer, const struct item *items, unsigned n)
{
	struct ck_queue *q = producer;
	unsigned done = 0;

	while (done < n && CK_RING_ENQUEUE_MPSC(items, &q->ring, q->buffer, (struct item *)&items[done]))
		done++;
	return done;
}

static unsigned pop(void *queue, struct item *items, unsigned n)
{
	struct ck_queue *q = queue;
	unsigned done = 0;

	while (done < n && CK_RING_DEQUEUE_MPSC(items, &q->ring, q->buffer, &items[done]))
		done++;
	return done;
}

const struct queue queue_ck_ring = {"ck_ring", create, free, producer, push, pop};
