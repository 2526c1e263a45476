/* DPDK rte_ring with many producers and one consumer: in the default mode, and with relaxed tail sync
 * (RTS), which is for more threads than cores. */
#include "ring.h"

#include <rte_ring.h>
#include <rte_ring_elem.h>
#include <stdlib.h>

static struct rte_ring *make(unsigned flags)
{
	ssize_t size = rte_ring_get_memsize_elem(sizeof(struct item), CAPACITY);
	struct rte_ring *r = aligned_alloc(4096, ((size_t)size + 4095) / 4096 * 4096);

	rte_ring_init(r, "bench", CAPACITY, flags | RING_F_SC_DEQ);
	return r;
}

static void *create(int producers)
{
	(void)producers;
	return make(0);
}

static void *create_rts(int producers)
{
	(void)producers;
	return make(RING_F_MP_RTS_ENQ);
}

static void *producer(void *queue, int index)
{
	(void)index;
	return queue;
}

static unsigned push(void *producer, const struct item *items, unsigned n)
{
	return rte_ring_mp_enqueue_burst_elem(producer, items, sizeof(*items), n, NULL);
}

static unsigned push_rts(void *producer, const struct item *items, unsigned n)
{
	return rte_ring_mp_rts_enqueue_burst_elem(producer, items, sizeof(*items), n, NULL);
}

static unsigned pop(void *queue, struct item *items, unsigned n)
{
	return rte_ring_sc_dequeue_burst_elem(queue, items, sizeof(*items), n, NULL);
}

const struct queue queue_rte_ring = {"rte_ring", create, free, producer, push, pop};
const struct queue queue_rte_ring_rts = {"rte_ring_rts", create_rts, free, producer, push_rts, pop};
