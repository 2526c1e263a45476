/*
 * The tables behind plan.h. One batch is one block of memory: its row (what it has on each of its ports),
 * its requests and the cells of the two (what a request has on a port).
 */
#ifndef MFS_PLAN_STATE_H
#define MFS_PLAN_STATE_H

#include <stddef.h>

#include <mfs/plan.h>

#include "plan_map.h"

#define PLAN_NONE UINT32_MAX

enum {
	PLAN_PRUNED = 1, /* in plan->pruned */
	PLAN_LOST = 2,	 /* cannot make its own deadline with every port to itself; in plan->lost */
	PLAN_TOLD = 4,	 /* the last delta has it as pruned (request) or in place (batch) */
	PLAN_DIRTY = 8,	 /* the next delta looks at it */
};

struct plan_batch;

struct plan_request {
	uint64_t id;
	int64_t deadline;
	int64_t latest; /* the last moment at which it can still make its deadline alone */
	struct plan_batch *batch;
	const uint32_t *part; /* its cells */
	uint32_t parts;
	uint32_t heap_at;
	uint32_t dirty_at;
	uint32_t port; /* why it is pruned: these three */
	uint64_t for_batch;
	int64_t amount;
	uint8_t flags;
};

struct plan_cell {
	int64_t amount; /* above 0 */
	int64_t spare;	/* readmission: what still fits on the port, from this batch on */
	uint32_t request;
	uint32_t k;
};

/* Ports of a row ascend. A run is a row over all of first..first+n-1, some with nothing on them. */
struct plan_batch {
	int64_t *amount; /* L_i: fixed loads and those of the requests that count */
	uint32_t *port;	 /* NULL: a run */
	uint32_t n, first;
	int64_t due; /* D^Lo less compute: what the longest port may take, plus now */
	uint32_t at; /* position in the order, as of the last walk */
	uint32_t class; /* of all ports of a run; PLAN_NONE: they differ */
	uint64_t id;
	int64_t red, loose;
	/* ^ one cache line: all that a walk reads, with the arrays that follow the structure */
	int64_t compute;
	int64_t *fixed;		/* by k; NULL: none */
	struct plan_cell *cell; /* by k, then the greatest amount, then the greatest request first */
	uint32_t *column;	/* n + 1 bounds in cell */
	uint32_t *cursor;	/* no cell of column k before cursor[k] counts */
	uint32_t *touch_at;	/* place in plan->touch of the port; PLAN_NONE: no request has load there */
	struct plan_request *request;
	uint32_t requests;
	uint32_t rank;
	uint32_t dirty_at;
	uint8_t flags;
};

/* A batch whose requests have load on a port. */
struct plan_touch {
	struct plan_batch *batch;
	int64_t top; /* no request that counts has more there */
	uint32_t k;
};

struct plan_touches {
	struct plan_touch *at;
	uint32_t n, room;
};

struct plan_entry {
	int64_t key;
	struct plan_request *request;
};

struct plan_heap {
	struct plan_entry *at;
	uint32_t n, room;
};

#define PLAN_VECTOR(type)           \
	struct {                    \
		type *at;           \
		uint32_t n, room;   \
	}

struct mfs_plan {
	bool paper;
	uint32_t ppm;
	double margin;
	uint32_t ports, classes;
	int64_t now;

	/* by port */
	int64_t *load;	 /* S(u) of the walk that runs */
	int64_t *within; /* load up to this is known not to be the longest */
	int64_t *spare;	 /* readmission: what still fits, from the position of the walk on */
	uint32_t *class; /* ports of equal capacity */
	int64_t *capacity;
	double *ns_per_unit, *units_per_ns;
	int64_t *limit; /* of total */
	int64_t *total; /* promised, counted or not */
	int64_t *taken; /* readmitted in this event; prune: fixed loads so far */
	uint8_t *barren; /* prune: no candidate has load there */
	struct plan_touches *touch;
	uint32_t *stamp, *k_of; /* building a row */
	uint32_t stamps;
	/* by class */
	uint32_t *class_port;	/* one of its ports */
	int64_t *class_within;	/* what fits into class_time */
	int64_t *class_time;

	int64_t longest; /* max_u S(u) in time, and the first port that takes it */
	uint32_t slowest;
	uint32_t barrens;

	PLAN_VECTOR(struct plan_batch *) order;
	PLAN_VECTOR(int64_t) longest_at; /* by position: longest, of the last walk */
	uint32_t first_unfit;		 /* position; order.n: every batch fits or is beyond help */
	uint32_t requests, batches_with_fixed;
	uint32_t budget;
	PLAN_VECTOR(struct plan_request *) pruned; /* the most urgent first */
	bool pruned_stale;			   /* some in the list lost their flag */
	PLAN_VECTOR(struct plan_request *) fresh;  /* candidates that may return; then new victims */
	struct plan_heap hopeful;		   /* not lost, by latest */
	struct plan_heap lost;			   /* by ~latest */
	struct plan_map batch_of;		   /* number -> plan_batch */
	struct plan_map request_of;		   /* number -> plan_request */

	/* since the last delta */
	PLAN_VECTOR(struct plan_batch *) moved;
	PLAN_VECTOR(uint64_t) departed;
	PLAN_VECTOR(struct plan_request *) dirty;
	PLAN_VECTOR(uint64_t) gone;

	bool (*add_run)(int64_t *load, const int64_t *within, const int64_t *amount, uint32_t n);
	void (*spare_run)(int64_t *load, int64_t *spare, const int64_t *amount, int64_t within, uint32_t n);
};

int plan_grow(void *vector, size_t size, uint64_t need); /* -ENOMEM */
#define PLAN_RESERVE(vector, need) plan_grow(&(vector), sizeof(*(vector).at), (need))

static inline uint32_t plan_port(const struct plan_batch *batch, uint32_t k)
{
	return batch->port ? batch->port[k] : batch->first + k;
}

static inline bool plan_counts(const struct mfs_plan *plan, const struct plan_request *request)
{
	return !(request->flags & (plan->paper ? PLAN_PRUNED : PLAN_PRUNED | PLAN_LOST));
}

/* By place in the order. */
static inline bool plan_batch_before(const struct plan_batch *a, const struct plan_batch *b)
{
	return a->red != b->red ? a->red < b->red : a->id < b->id;
}

/* By urgency: place of the batch, deadline, number. */
static inline bool plan_request_before(const struct plan_request *a, const struct plan_request *b)
{
	if (a->batch != b->batch)
		return plan_batch_before(a->batch, b->batch);
	return a->deadline != b->deadline ? a->deadline < b->deadline : a->id < b->id;
}

/* plan_time.c: exact conversions between amounts and nanoseconds */
int plan_time_init(struct mfs_plan *plan, const int64_t *capacity);
int64_t plan_time(const struct mfs_plan *plan, uint32_t port, int64_t amount);
int64_t plan_within(const struct mfs_plan *plan, uint32_t port, int64_t time);

/* plan_batch.c: one batch's block, apart from everything else */
int plan_batch_build(struct mfs_plan *plan, const struct mfs_plan_batch *from, struct plan_batch **out);

/* plan_walk.c */
void plan_walk_init(struct mfs_plan *plan);
void plan_walk_reset(struct mfs_plan *plan);
void plan_walk_add(struct mfs_plan *plan, const struct plan_batch *batch);
void plan_walk(struct mfs_plan *plan);
void plan_walk_to(struct mfs_plan *plan, uint32_t end);
void plan_walk_longest(struct mfs_plan *plan);
void plan_walk_back(struct mfs_plan *plan, const struct plan_batch *batch, int64_t time);

/* plan_prune.c */
void plan_event(struct mfs_plan *plan);
void plan_load_in(struct mfs_plan *plan, struct plan_request *request);
void plan_load_out(struct plan_request *request);

/* plan_lost.c: which requests time has lost */
void plan_lost_add(struct mfs_plan *plan, struct plan_request *request);
void plan_lost_remove(struct mfs_plan *plan, struct plan_request *request);
void plan_lost_settle(struct mfs_plan *plan);

/* plan_delta.c */
void plan_rank_assign(struct mfs_plan *plan, uint32_t at, bool keep);
void plan_mark_batch(struct mfs_plan *plan, struct plan_batch *batch);
void plan_mark(struct mfs_plan *plan, struct plan_request *request);
void plan_unmark_batch(struct mfs_plan *plan, struct plan_batch *batch);
void plan_unmark(struct mfs_plan *plan, struct plan_request *request);

#endif
