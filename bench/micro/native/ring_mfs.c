#include "ring.h"

#include <mfs/ring.h>
#include <stdlib.h>

_Static_assert(sizeof(struct item) == sizeof(struct mfs_message), "the payload is a message");

/* As in a segment: several submit rings, of which each thread uses one. */
struct mfs_queue {
	struct mfs_mpsc ring[MFS_SUBMIT_RINGS];
	struct mfs_mpsc_slot slot[MFS_SUBMIT_RINGS][MFS_SUBMIT_SLOTS];
	_Alignas(MFS_CACHE_LINE) struct mfs_submit_reader reader;
	struct mfs_producer {
		struct mfs_mpsc *ring;
		struct mfs_mpsc_slot *slots;
	} producer[MFS_SUBMIT_RINGS];
};

static void *create(int producers)
{
	struct mfs_queue *q = aligned_alloc(4096, (sizeof(*q) + 4095) / 4096 * 4096);

	(void)producers;
	memset(q, 0, sizeof(*q));
	for (int i = 0; i < MFS_SUBMIT_RINGS; i++)
		q->producer[i] = (struct mfs_producer){&q->ring[i], q->slot[i]};
	return q;
}

static void *producer(void *queue, int index)
{
	return &((struct mfs_queue *)queue)->producer[index % MFS_SUBMIT_RINGS];
}

static unsigned push(void *producer, const struct item *items, unsigned n)
{
	struct mfs_producer *p = producer;

	return mfs_mpsc_push_owned(p->ring, p->slots, MFS_SUBMIT_SLOTS, (const struct mfs_message *)items, n);
}

static unsigned pop(void *queue, struct item *items, unsigned n)
{
	struct mfs_queue *q = queue;
	/* The time is always the same, since a slot may be slow here but is never torn. */
	int taken = mfs_submit_pop(&q->reader, q->ring, q->slot[0], MFS_SUBMIT_SLOTS, (struct mfs_message *)items, n, 1, 2);

	return taken < 0 ? 0 : (unsigned)taken;
}

const struct queue queue_mfs = {"mfs", create, free, producer, push, pop};
