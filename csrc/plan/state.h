/*
 * The tables behind plan.h. One batch is one block of memory: its row (what it has on each of its ports),
 * its requests and the cells of the two (what a request has on a port).
 */
#ifndef MFS_PLAN_STATE_H
#define MFS_PLAN_STATE_H

#include <stddef.h>

#include <mfs/plan.h>

#include "map.h"

#define PLAN_NONE UINT32_MAX

enum {
	PLAN_PRUNED = 1, /* in plan->pruned */
	PLAN_LOST = 2,	 /* cannot make its own deadline with every port to itself; in plan->lost */
	PLAN_TOLD = 4,	 /* the last delta has it as pruned or infeasible (request) or in place (batch) */
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
	uint32_t port;	  /* why it is pruned: these three */
	uint64_t for_batch;
	int64_t amount;
	/* why it stays pruned: this batch, in its place or behind, does not bear it on this port */
	struct plan_batch *witness; /* NULL: none is known */
	int64_t reach;		    /* S of the port there, with this request, plus plan->shed of the port: at least */
	uint32_t witness_port;
	uint8_t flags;
};

struct plan_cell {
	int64_t amount; /* above 0 */
	int64_t spare;	/* readmission: what still fits on the port, from this batch on */
	uint32_t request;
	uint32_t k;
};

/*
 * What a batch has on each of its ports, and all else that a walk reads. Rows lie packed in chunks in the order
 * of their batches: a walk streams. The first `run` entries are the ports from `first` on, some with nothing on
 * them, which vectors add up; the others have port numbers.
 */
struct plan_row {
	int64_t due;	/* what the longest port may take, plus now: D^Lo, in variant paper less compute */
	int64_t helped; /* variant mfs: D^Lo less compute, until when pruning can help it; paper: for ever */
	int64_t loose;
	int64_t longest; /* what the longest port takes, where chunk->known */
	struct plan_batch *batch;
	uint32_t bytes;
	uint32_t n, run, first;
	uint32_t class; /* of all ports of the run; PLAN_NONE: they differ */
	bool wide;	/* amounts are int64_t; else uint32_t, as nearly all are: half the memory to walk through */
	_Alignas(int64_t) char amounts[]; /* L_i: fixed loads and those of the requests that count; then n - run ports */
};

/* What is promised on each port at some place in the order. */
struct plan_sums {
	int64_t *load;
	int64_t top; /* the greatest of them, unless stale */
	bool stale;
};

struct plan_chunk {
	uint32_t used, room;
	uint32_t at; /* in plan->chunk */
	uint32_t count;
	struct plan_sums before; /* S in front of the first row; no load: ports differ in capacity */
	/* of the rows, unless changed */
	bool changed;
	int64_t least_due, least_loose;
	double least_room; /* due - margin loose */
	double far;	   /* the greatest of all their times, either way */
	bool known;	   /* row->longest of all rows, and from `known_at` on: */
	int64_t known_at, in_time; /* until then no batch that pruning may help is late */
	_Alignas(struct plan_row) char rows[];
};

struct plan_batch {
	struct plan_row *row;
	struct plan_chunk *chunk;
	uint64_t id;
	int64_t red, loose, compute;
	int64_t *fixed;		/* the fixed loads alone, by k; NULL: none */
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
	int64_t red; /* the batch's */
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

/* S(u) along the order, and the longest port. */
struct plan_walk {
	int64_t *load;	 /* S(u) */
	int64_t *within; /* load up to this takes less than the longest port */
	int64_t longest; /* in time */
	uint32_t slowest; /* the first port that takes it */
};

/* What is done with a run, for the vectors that this processor has. `amounts` as in a row. */
struct plan_runs {
	/* load += amounts; whether any is now beyond `within`, the greatest */
	bool (*add)(int64_t *load, const int64_t *within, const void *amounts, bool wide, uint32_t n);
	int64_t (*most)(int64_t *load, const void *amounts, bool wide, uint32_t n);
	/* spare = min(spare, within - load), and `at` where that is less; then load -= amounts */
	void (*spare)(int64_t *load, int64_t *spare, int64_t *spare_at, const void *amounts, bool wide, int64_t within,
		      int64_t at, uint32_t n);
	int64_t (*top)(const int64_t *load, uint32_t n);
};

/* Of one chunk, in one event: what may be promised in it at least and at most for no batch to be delayed. */
struct plan_bound {
	int64_t least, most;
	int64_t longest; /* what passes while the longest port behind it is busy */
	uint32_t first;	 /* position of its first row */
	bool exact;	 /* plan->longest_at has it for each row */
};

struct mfs_plan {
	bool paper;
	bool held; /* events are taken and not judged */
	uint32_t ppm;
	double margin;
	uint32_t ports, classes;
	int64_t now;

	/* by port */
	int64_t *spare;	 /* readmission: what still fits, from the position of the walk on */
	uint32_t *class; /* ports of equal capacity */
	int64_t *capacity;
	double *ns_per_unit, *units_per_ns;
	int64_t *limit; /* of total */
	int64_t *total; /* promised, counted or not */
	int64_t *taken; /* readmitted in this event */
	int64_t *shed;	/* all load that ever went, until `worn` */
	int64_t *spare_at; /* position that leaves no more than `spare` */
	bool worn;	/* some `shed` has grown too great to count with */
	uint8_t *barren; /* prune: no candidate has load there */
	struct plan_touches *touch;
	uint32_t *stamp, *k_of; /* building a row */
	uint32_t stamps;
	/* by class */
	uint32_t *class_port;	/* one of its ports */
	int64_t *class_within;	/* what fits into class_time */
	int64_t *class_time;

	struct plan_walk walk;	/* of all that counts */
	struct plan_walk fixed; /* prune: of the fixed loads alone */
	uint32_t barrens;

	PLAN_VECTOR(struct plan_batch *) order;
	PLAN_VECTOR(struct plan_chunk *) chunk;
	struct plan_chunk *spare_chunk[2];
	struct plan_sums all; /* behind the last chunk */
	struct plan_sums all_fixed; /* of all fixed loads */
	PLAN_VECTOR(struct plan_bound) bound;
	uint32_t chunk_room; /* of new chunks: the largest row has fitted */
	char *staging; /* the row of the batch that arrives */
	size_t staging_room;
	PLAN_VECTOR(struct plan_row *) row_at;	 /* by position, of the last walk */
	PLAN_VECTOR(int64_t) longest_at; /* by position: longest, of the last walk */
	uint32_t first_unfit;		 /* position; order.n: every batch fits or is beyond help */
	uint32_t last_unfit;		 /* position, when there is a first */
	int64_t *load_before_unfit;	 /* S before that first one */
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

	struct plan_runs runs;
};

/* vector.c */
int plan_grow(void *vector, size_t size, uint64_t need); /* -ENOMEM */
#define PLAN_RESERVE(vector, need) plan_grow(&(vector), sizeof(*(vector).at), (need))

static inline uint32_t *plan_row_ports(struct plan_row *row)
{
	return (uint32_t *)(row->amounts + (row->wide ? 8 : 4) * (size_t)row->n);
}

/* Fetches into the cache what lies that far from the row: rows are packed, so it is one of the next. */
#define PLAN_AHEAD 2048
static inline void plan_row_fetch(const struct plan_row *row, intptr_t bytes)
{
	for (uint32_t line = 0; line < row->bytes; line += 64)
		__builtin_prefetch((const void *)((uintptr_t)row + (uintptr_t)bytes + line));
}

/* The amounts behind those of the run. */
static inline const void *plan_few(const struct plan_row *row, const void *amounts, bool wide)
{
	return (const char *)amounts + (wide ? 8 : 4) * (size_t)row->run;
}

static inline void plan_row_change(struct plan_row *row, uint32_t k, int64_t by)
{
	if (row->wide)
		((int64_t *)row->amounts)[k] += by;
	else
		((uint32_t *)row->amounts)[k] += (uint32_t)by;
}

static inline uint32_t plan_port(struct plan_row *row, uint32_t k)
{
	return k < row->run ? row->first + k : plan_row_ports(row)[k - row->run];
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

/* time.c: exact conversions between amounts and nanoseconds */
int plan_time_init(struct mfs_plan *plan, const int64_t *capacity);
int64_t plan_time(const struct mfs_plan *plan, uint32_t port, int64_t amount);
int64_t plan_within(const struct mfs_plan *plan, uint32_t port, int64_t time);
int64_t plan_room(const struct mfs_plan *plan, int64_t due, int64_t loose);

/* batch.c: one batch's block, apart from everything else */
int plan_batch_build(struct mfs_plan *plan, const struct mfs_plan_batch *from, struct plan_batch **out);

/* chunk.c: rows in order */
void plan_chunk_free(struct plan_chunk *chunk);
int plan_chunk_reserve(struct mfs_plan *plan, uint32_t bytes);
void plan_chunk_insert(struct mfs_plan *plan, struct plan_batch *batch, uint32_t at);
void plan_chunk_remove(struct mfs_plan *plan, struct plan_batch *batch);

struct plan_runs plan_runs(void); /* run.c */

/* sums.c: what is promised in front of each chunk */
void plan_sums_fixed(struct mfs_plan *plan, struct plan_batch *batch, int sign);
void plan_sums_row(struct mfs_plan *plan, const struct plan_chunk *chunk, struct plan_row *row, int sign);
void plan_sums_add(struct mfs_plan *plan, const struct plan_chunk *chunk, uint32_t port, int64_t by);
void plan_sums_at(const struct mfs_plan *plan, const struct plan_chunk *chunk, uint32_t offset, struct plan_sums *out);
struct plan_sums *plan_sums_behind(struct mfs_plan *plan, uint32_t chunk);
int64_t plan_sums_longest(const struct mfs_plan *plan, struct plan_sums *sums);
int64_t plan_row_amount(struct plan_row *row, uint32_t port);

/* load.c: what requests add to rows and sums */
void plan_load_in(struct mfs_plan *plan, struct plan_request *request);
void plan_load_out(struct mfs_plan *plan, struct plan_request *request);
void plan_give_back(struct mfs_plan *plan, struct plan_request *request); /* it is not pruned any more */

/* block.c: one event by chunks */
bool plan_block_readmit(struct mfs_plan *plan);
void plan_block_bounds(struct mfs_plan *plan);
bool plan_block_is_late(struct mfs_plan *plan, struct plan_chunk *chunk);
void plan_refuse(struct mfs_plan *plan, struct plan_request *request, struct plan_batch *witness, uint32_t port,
		 int64_t sum);

/* walk.c */
void plan_walk_reset(const struct mfs_plan *plan, struct plan_walk *walk);
void plan_walk_add(const struct mfs_plan *plan, struct plan_walk *walk, struct plan_row *row, const void *amounts,
		   bool wide);
void plan_walk(struct mfs_plan *plan);
int64_t plan_walk_on(struct mfs_plan *plan, struct plan_row *row, int64_t within);
void plan_walk_longest(struct mfs_plan *plan);
void plan_walk_grow(struct mfs_plan *plan, struct plan_walk *walk, struct plan_row *row, const void *amounts, bool wide);
void plan_walk_back(struct mfs_plan *plan, struct plan_row *row, int64_t time, int64_t at);

/* prune.c */
void plan_event(struct mfs_plan *plan);

/* lost.c: which requests time has lost */
void plan_lost_add(struct mfs_plan *plan, struct plan_request *request);
void plan_lost_remove(struct mfs_plan *plan, struct plan_request *request);
void plan_lost_settle(struct mfs_plan *plan);

/* delta.c */
void plan_rank_assign(struct mfs_plan *plan, uint32_t at, bool keep);
void plan_mark_batch(struct mfs_plan *plan, struct plan_batch *batch);
void plan_mark(struct mfs_plan *plan, struct plan_request *request);
void plan_unmark_batch(struct mfs_plan *plan, struct plan_batch *batch);
void plan_unmark(struct mfs_plan *plan, struct plan_request *request);

#endif
