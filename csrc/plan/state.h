/* The tables behind plan.h, whose calls point down:
 *
 *   plan.c      batches come and go; reading
 *   evaluate.c  one event: what is infeasible, readmission, pruning
 *   order.c     the batches in order, and the load promised along it
 *   batch.c     one batch: checked, its RED, its loads
 *   delta.c     what changed since it was last asked */
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
	PLAN_INFEASIBLE = 2, /* cannot make its own deadline with every port to itself */
	PLAN_REPORTED = 4,   /* the last delta has it as pruned or infeasible */
	PLAN_CHANGED = 8,    /* in plan->changed: the next delta checks it */
};

/* What a request has on a port. */
struct plan_cell {
	int64_t busy; /* above 0 */
	uint32_t port;
	uint32_t k;    /* of the port in the batch's row */
	uint32_t next; /* cell of the same request; PLAN_NONE: no other */
	uint32_t request;
};

struct plan_request {
	struct mfs_plan_pruned why; /* its number and its batch's, and where it is pruned the reason */
	int64_t deadline;
	int64_t latest; /* the last moment at which it can still make its deadline alone */
	struct plan_batch *batch;
	uint32_t cell; /* its first; PLAN_NONE: it loads no port */
	uint32_t changed_at;
	uint8_t flags;
};

/* The requests' loads on one port of the row. */
struct plan_column {
	uint32_t begin;         /* in cell; the next column's is the end */
	uint32_t first;         /* no cell before it counts */
	uint32_t candidates_at; /* in plan->candidates of the port; PLAN_NONE: no request loads it */
};

/* One block of memory. */
struct plan_batch {
	struct plan_chunk *chunk;
	uint64_t id;
	int64_t red, loose, compute;
	struct mfs_plan_load
		*row; /* L_i by ascending port: fixed loads and those of the requests that count */
	uint32_t ports, fixed_loads, requests;
	struct mfs_plan_load *fixed;
	struct plan_cell *cell;     /* by port, then the greatest load, then the greatest request first */
	struct plan_column *column; /* ports + 1 */
	struct plan_request *request;
};

/* A batch in its place, with what every event reads of it. */
struct plan_slot {
	struct plan_batch *batch;
	int64_t loose;   /* D^Lo */
	int64_t latest;  /* D^Lo less compute */
	int64_t longest; /* the longest port's load, where chunk->known */
	int64_t feasible_until,
		infeasible_from; /* the clock between them changes no request's PLAN_INFEASIBLE */
};

/* Successive batches. S(u) behind the last of them is kept up to date by all load that comes and goes in front. */
struct plan_chunk {
	uint32_t at; /* in plan->chunk */
	uint32_t n;
	bool known;  /* slot->longest of all */
	int64_t top; /* the greatest of `behind` */
	int64_t *behind;
	int64_t *fixed; /* by port: fixed loads of these batches */
	/* of G_i, up to which batch i bears load on a port without losing its margin or becoming later (evaluate.c) */
	int64_t least; /* no batch of the chunk bears less */
	int64_t end;   /* load above it is refused by the last batch of the chunk or some batch of the next */
	struct plan_slot slot[];
};

/* A walk along the order: S is in plan->load. */
struct plan_walk {
	int64_t longest;  /* M_i */
	uint32_t slowest; /* the first port with it */
};

/* A pruned request, and the port and chunk at whose end it was refused last: where to check first. */
struct plan_out {
	struct plan_request *request;
	int64_t busy;
	uint32_t port, chunk; /* PLAN_NONE: unknown */
};

/* A batch with requests that load a port. */
struct plan_candidates {
	struct plan_batch *batch;
	int64_t red; /* the batch's */
	int64_t top; /* no request that counts has more there */
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
	size_t bytes; /* of this and the tables by port */

	/* by port */
	int64_t *total; /* promised, pruned or not */
	int64_t *load;  /* S of the walk */
	int64_t *fixed_total;
	int64_t *fixed;            /* of the walk */
	int64_t *no_victim_before; /* prune: no candidate in batches of a lesser RED */
	struct plan_candidates_list *candidates;
	int64_t *port; /* building a batch: these three */
	uint64_t *stamp;
	uint32_t *k_of;
	struct mfs_plan_load *part; /* loads of one request */
	uint64_t stamps;

	uint32_t chunk_slots;
	PLAN_VECTOR(struct plan_chunk *) chunk;
	struct plan_chunk *spare;
	struct plan_chunk *start; /* in front of all: empty, and nothing is promised there */
	uint32_t batches, requests, infeasible;
	uint32_t budget;
	uint32_t spent;                      /* of it, by requests that others have pruned */
	PLAN_VECTOR(struct plan_out) pruned; /* `sorted` of them the most urgent first, new ones behind */
	PLAN_VECTOR(struct plan_out) merging;
	uint32_t sorted;
	struct mfs_map batch_of;   /* number -> plan_batch */
	struct mfs_map request_of; /* number -> plan_request */

	/* since the last delta */
	PLAN_VECTOR(struct plan_request *) changed;
	PLAN_VECTOR(uint64_t) gone; /* reported, and no longer active */
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

/* By place in the order. */
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
