#include "ring.h"

#include <mfs/ring.h>
#include <stdlib.h>

_Static_assert(sizeof(struct item) == sizeof(struct mfs_message), "the payload is a message");

struct mfs_queue {
	struct mfs_mpsc ring;
	struct mfs_mpsc_slot slot[CAPACITY];
	_Alignas(MFS_CACHE_LINE) struct mfs_mpsc_reader reader;
};

static void *create(int producers)
{
	struct mfs_queue *q = aligned_alloc(4096, (sizeof(*q) + 4095) / 4096 * 4096);

	(void)producers;
	memset(q, 0, sizeof(*q));
	return q;
}

static void *producer(void *queue, int index)
{
	(void)index;
	return queue;
}

static unsigned push(void *producer, const struct item *items, unsigned n)
{
	struct mfs_queue *q = producer;

	return mfs_mpsc_push(&q->ring, q->slot, CAPACITY, (const struct mfs_message *)items, n);
}

static unsigned pop(void *queue, struct item *items, unsigned n)
{
	struct mfs_queue *q = queue;
	/* A clock that stands still: no slot is torn here, only slow. */
	int taken = mfs_mpsc_pop(&q->reader, &q->ring, q->slot, CAPACITY, (struct mfs_message *)items, n, 1, 2);

	return taken < 0 ? 0 : (unsigned)taken;
}

const struct queue queue_mfs = {"mfs", create, free, producer, push, pop};
