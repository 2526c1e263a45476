/* When flows finish: a heap with four children per entry; each flow knows its place. Inlined, since nearly every event of a
 * net with few flows on a link is one of these. */
#ifndef MFS_FLUID_FINISH_H
#define MFS_FLUID_FINISH_H

#include "internal.h"

static inline void heap_place(struct mfs_fluid *net, uint32_t at, uint32_t flow)
{
	net->heap.at[at] = flow;
	net->flows[flow].heap_at = at;
}

static inline void heap_fix(struct mfs_fluid *net, uint32_t at, uint32_t flow)
{
	struct flow *flows = net->flows;
	double finish = flows[flow].finish;
	while (at) {
		uint32_t parent = (at - 1) / 4;
		if (flows[net->heap.at[parent]].finish <= finish)
			break;
		heap_place(net, at, net->heap.at[parent]);
		at = parent;
	}
	for (;;) {
		uint32_t least = NONE, child = 4 * at + 1;
		double smallest = finish;
		for (uint32_t end = child + 4; child < end && child < net->heap.n; child++) {
			if (flows[net->heap.at[child]].finish < smallest) {
				smallest = flows[net->heap.at[child]].finish;
				least = child;
			}
		}
		if (least == NONE)
			break;
		heap_place(net, at, net->heap.at[least]);
		at = least;
	}
	heap_place(net, at, flow);
}

/* Takes the flow's completion out. */
static inline void fluid_unschedule(struct mfs_fluid *net, uint32_t flow)
{
	uint32_t at = net->flows[flow].heap_at;
	if (at == NONE)
		return;
	net->flows[flow].heap_at = NONE;
	uint32_t last = net->heap.at[--net->heap.n];
	if (last != flow)
		heap_fix(net, at, last);
}

/* Puts the flow's completion where its rate says, or now if nothing is left. Room for every flow was reserved when it was
 * added. */
static inline void fluid_schedule(struct mfs_fluid *net, uint32_t flow)
{
	struct flow *f = &net->flows[flow];
	if (f->left > 0 && f->rate <= 0) {
		fluid_unschedule(net, flow);
		return;
	}
	f->finish = f->left > 0 ? f->since + f->left / f->rate : f->since;
	heap_fix(net, f->heap_at == NONE ? net->heap.n++ : f->heap_at, flow);
}

/* Books the bytes sent at the present rate. */
static inline void fluid_settle(struct mfs_fluid *net, struct flow *f)
{
	double left = f->left - (net->now - f->since) * f->rate;
	f->left = left > 0 ? left : 0;
	f->since = net->now;
}

/* The same before that rate changes: a flow that has ended by now has, even if it has not been asked for yet. */
static inline void fluid_settle_ended(struct mfs_fluid *net, struct flow *f)
{
	bool ended = f->heap_at != NONE && f->finish <= net->now + MFS_FLUID_INSTANT_S;
	fluid_settle(net, f);
	if (ended)
		f->left = 0;
}

#endif
