/* The tables behind plan.h. Calls point down:
 *
 *   plan.c      batches come and go; reading
 *   evaluate.c  one event: what is infeasible, readmission, pruning
 *   order.c     the batches in order, and the load promised along it
 *   batch.c     one batch: checked, its RED, its loads
 *   delta.c     what changed since the last delta */
#ifndef MFS_PLAN_STATE_H
#define MFS_PLAN_STATE_H

#include <stddef.h>
#include <string.h>

#include <mfs/plan.h>

#include "../base/arena.h"
#include "../base/map.h"

#define PLAN_NONE UINT32_MAX

enum {
	PLAN_PRUNED = 1,     /* in plan->pruned */
	PLAN_INFEASIBLE = 2, /* cannot make its own deadline even with every port to itself */
	PLAN_REPORTED = 4,   /* the last delta reported it as pruned or infeasible */
	PLAN_CHANGED = 8,    /* in plan->changed: the next delta checks it */
};

/* The load of a request on a port. */
struct plan_cell {
	int64_t busy; /* greater than 0 */
	uint32_t port;
	uint32_t k;    /* index of the port in the batch's row */
	uint32_t next; /* next cell of the same request; PLAN_NONE: it is the last */
	uint32_t request;
};

struct plan_request {
	struct mfs_plan_pruned why; /* its number and that of its batch; if it is pruned, also the reason */
	int64_t deadline;
	int64_t latest; /* the latest time at which it can still make its deadline alone */
	struct plan_batch *batch;
	uint32_t cell; /* its first cell; PLAN_NONE: it loads no port */
	uint32_t changed_at;
	uint8_t flags;
};

/* The loads of the batch's requests on one port of its row. */
struct plan_column {
	uint32_t begin;         /* index of the first cell; the next column's is the end */
	uint32_t first;         /* no cell before it counts */
	uint32_t candidates_at; /* index in plan->candidates of the port; PLAN_NONE: no request loads it */
};

/* A batch and its arrays, in one block of memory. */
struct plan_batch {
	struct plan_chunk *chunk;
	uint64_t id;
	int64_t red, loose, compute;
	/* L_i by ascending port: fixed loads and those of the requests that count */
	struct mfs_plan_load *row;
	uint32_t ports, fixed_loads, requests;
	struct mfs_plan_load *fixed;
	struct plan_cell *cell;     /* sorted by port, then greatest load, then greatest request number */
	struct plan_column *column; /* ports + 1 entries */
	struct plan_request *request;
};

/* A batch at its place, with what every event reads of it. */
struct plan_slot {
	struct plan_batch *batch;
	int64_t loose;   /* D^Lo */
	int64_t latest;  /* D^Lo less compute */
	int64_t longest; /* the load of the longest port, valid if chunk->known */
	int64_t feasible_until,
		/* a clock between these changes no request's PLAN_INFEASIBLE */
		infeasible_from;
};

/* Successive batches. `behind` is S(u) behind the last of them; it is updated when load in this chunk or
 * one before it is added or removed. */
struct plan_chunk {
	uint32_t at; /* index in plan->chunk */
	uint32_t n;
	bool known;  /* slot->longest of all its batches is valid */
	int64_t top; /* the greatest value in `behind` */
	int64_t *behind;
	int64_t *fixed; /* by port: sum of the fixed loads of these batches */
	/* bounds from G_i, the load up to which batch i can bear load on a port without losing its margin
	 * or becoming later (evaluate.c) */
	int64_t least; /* every batch of the chunk bears this much */
	int64_t end;   /* more load is refused by the last batch of the chunk or by some batch of the next */
	struct plan_slot slot[];
};

/* A walk along the order. S at its position is in plan->load. */
struct plan_walk {
	int64_t longest;  /* M_i */
	uint32_t slowest; /* the first port with that load */
};

/* A pruned request, and the port and chunk at whose end it was last refused, which are checked first. */
struct plan_out {
	struct plan_request *request;
	int64_t busy;
	uint32_t port, chunk; /* PLAN_NONE: unknown */
};

/* A batch with requests that load a port. */
struct plan_candidates {
	struct plan_batch *batch;
	int64_t red; /* that of the batch */
	int64_t top; /* no request that counts has more load there */
	uint32_t k;
};

#define PLAN_VECTOR(type, ...)    \
	struct __VA_ARGS__ {      \
		type *at;         \
		uint32_t n, room; \
	}

PLAN_VECTOR(struct plan_candidates, plan_candidates_list);

struct mfs_plan {
	struct mfs_plan_config config;
	int64_t now;
	size_t bytes; /* size of this and of the tables by port */

	/* tables by port */
	int64_t *total; /* load promised, pruned or not */
	int64_t *load;  /* S of the walk */
	int64_t *fixed_total;
	int64_t *fixed;            /* fixed loads of the walk */
	int64_t *no_victim_before; /* while pruning: batches with a smaller RED have no candidate */
	struct plan_candidates_list *candidates;
	int64_t *port; /* these three are used while a batch is built */
	uint64_t *stamp;
	uint32_t *k_of;
	struct mfs_plan_load *part; /* the loads of one request */
	uint64_t stamps;

	uint32_t chunk_slots;
	PLAN_VECTOR(struct plan_chunk *) chunk;
	struct plan_chunk *spare;
	struct plan_chunk *start; /* in front of all others: empty, and nothing is promised there */
	uint32_t batches, requests, infeasible;
	uint32_t budget;
	uint32_t spent; /* part of the budget used up by requests that others have pruned */
	/* the first `sorted` by urgency, most urgent first; new ones behind them */
	PLAN_VECTOR(struct plan_out) pruned;
	PLAN_VECTOR(struct plan_out) merging;
	uint32_t sorted;
	struct mfs_map batch_of;   /* batch number -> plan_batch */
	struct mfs_map request_of; /* request number -> plan_request */

	/* since the last delta */
	PLAN_VECTOR(struct plan_request *) changed;
	PLAN_VECTOR(uint64_t) gone; /* reported before, and no longer active */
};

int plan_grow(void *vector, size_t size, uint64_t need); /* -ENOMEM */
#define PLAN_RESERVE(vector, need) plan_grow(&(vector), sizeof(*(vector).at), (need))

static inline int64_t plan_max(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline int64_t plan_min(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline bool plan_counts(const struct mfs_plan *plan, const struct plan_request *request)
{
	return !(request->flags & (plan->config.paper ? PLAN_PRUNED : PLAN_PRUNED | PLAN_INFEASIBLE));
}

/* The order of batches. */
static inline bool plan_batch_before(const struct plan_batch *a, const struct plan_batch *b)
{
	return a->red != b->red ? a->red < b->red : a->id < b->id;
}

/* evaluate.c */
void plan_tidy(struct mfs_plan *plan);

/* order.c */
int plan_order_reserve(struct mfs_plan *plan);
void plan_order_insert(struct mfs_plan *plan, struct plan_batch *batch);
void plan_order_remove(struct mfs_plan *plan, struct plan_batch *batch);
void plan_order_learn(struct mfs_plan *plan, struct plan_chunk *chunk);
void plan_walk_begin(struct mfs_plan *plan, struct plan_walk *walk, const struct plan_chunk *chunk);
void plan_walk_longest(const struct mfs_plan *plan, struct plan_walk *walk, int64_t longest);
void plan_walk_on(const struct mfs_plan *plan, struct plan_walk *walk, const struct plan_chunk *chunk,
		  uint32_t slot);
const struct plan_chunk *plan_front(const struct mfs_plan *plan, const struct plan_chunk *chunk);
int64_t plan_greatest(const int64_t *load, uint32_t n);
uint32_t plan_request_count(struct mfs_plan *plan, struct plan_request *request, int sign);
uint32_t plan_request_loads(struct mfs_plan *plan, const struct plan_request *request);

/* batch.c */
int plan_batch_build(struct mfs_plan *plan, const struct mfs_plan_batch *from, struct plan_batch **out);
void plan_candidates_add(struct mfs_plan *plan, struct plan_batch *batch);
void plan_candidates_remove(struct mfs_plan *plan, struct plan_batch *batch);

/* delta.c */
void plan_mark(struct mfs_plan *plan, struct plan_request *request);
void plan_unmark(struct mfs_plan *plan, struct plan_request *request);

#endif
