/*
 * Shared by the parts of the rate allocator. From above to below; none includes or calls one above it
 * (tests/unit/test_native_layers.py).
 *
 *   fluid.c   flows, links and the clock
 *   solve.c   the rates
 *   finish.h  which flow finishes first
 */
#ifndef MFS_FLUID_INTERNAL_H
#define MFS_FLUID_INTERNAL_H

#include <stdbool.h>

#include "mfs/fluid.h"

#define NONE UINT32_MAX
/* One flow on one link. Nodes of a flow are contiguous; nodes of one group form a list. */
struct node {
	double share;
	uint32_t flow, link, prev, next;
};

/* The flows of one order on one link. */
struct group {
	uint64_t order;
	double usage;    /* rate that they take */
	double residual; /* rate that smaller orders leave to them */
	uint32_t head, count;
	uint32_t bottled; /* flows that are limited by this link */
};

struct link {
	double capacity;
	struct group *groups; /* by order */
	uint32_t n_groups, room;
	/* Scratch for the solution of one group; valid if `stamp` is the net's. */
	uint64_t stamp;
	uint32_t at, members, open;
	double available, weights, all_weights, level, highest;
};

struct flow {
	uint64_t order;
	double weight, left, rate, level, since, finish, next_level;
	uint32_t nodes, n_nodes; /* n_nodes 0: a free entry, nodes is the next free one */
	uint32_t bottleneck;     /* node of the link that limits the flow, or NONE */
	uint32_t heap_at;        /* place in the completion heap, or NONE */
	uint64_t stamp, frozen;
	bool linked, dirty, completed, listed;
};

struct dirty {
	uint64_t order;
	uint32_t flow;
};
struct change {
	uint64_t order;
	uint32_t link;
};
struct level {
	double level;
	uint32_t link;
};

#define VECTOR(type)              \
	struct {                  \
		type *at;         \
		uint32_t n, room; \
	}

struct mfs_fluid {
	struct link *links;
	uint32_t n_links, room_links;
	struct flow *flows;
	uint32_t n_flows, room_flows, free_flow;
	struct node *nodes;
	uint32_t n_nodes, room_nodes;
	VECTOR(uint32_t) free_nodes; /* first free run of nodes, by length */
	VECTOR(uint32_t) heap;       /* flows by finish */
	VECTOR(uint32_t) completed;
	VECTOR(struct dirty) dirty; /* heap by order */
	VECTOR(struct change) changes;
	VECTOR(uint32_t) set; /* flows of the group being solved */
	VECTOR(uint32_t) touched;
	VECTOR(struct level) levels; /* heap by level */
	uint32_t void_dirty;         /* entries in dirty whose flow has left that order */
	double now;
	uint64_t stamp;
	bool stale;
	struct mfs_fluid_stats stats;
};

/* Returns the index of the link's first group whose order is not below `order`; n_groups if there is none. */
uint32_t fluid_group_at(const struct link *l, uint64_t order);
/* Marks a flow whose rate must be solved again. Room for every flow was reserved when it was added. */
void fluid_mark_dirty(struct mfs_fluid *net, uint32_t flow);
/* Brings all rates up to date. Called when completed flows have left their links. */
void fluid_allocate(struct mfs_fluid *net);

#endif
