/*
 * Algorithm 1, kept up to date event by event: the order of the active batches by robust effective deadline
 * and the requests that are pruned from it (docs/internals/plan.md). The rules are those of the specification
 * in mfsd/policy/pruning.py, and every answer equals its: integers only, and where a real number enters
 * (the readmission margin), one correctly rounded operation.
 *
 * A load is the time in nanoseconds for which a port is busy with it: ports need no rates here. Ports are numbered
 * from 0 in the order that breaks ties. Single threaded. Functions that can fail return -errno and have then changed
 * nothing.
 */
#ifndef MFS_PLAN_H
#define MFS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct mfs_plan;

/* Clock readings, deadlines, compute and all load that is promised on one port, pruned or not, stay within this, either
 * way; a deadline may also be INT64_MAX, which is never. Above 73 years. */
#define MFS_PLAN_TIME_MAX (INT64_C(1) << 61)
#define MFS_PLAN_NO_PORT UINT32_MAX

struct mfs_plan_config {
	bool paper;                /* the paper's rules as written; false: variant mfs */
	uint32_t drop_budget_ppm;  /* share of active requests that may be pruned at once */
	double readmission_margin; /* share of the remaining time, 0..1 */
	uint32_t ports;
};

struct mfs_plan_load {
	uint32_t port;
	int64_t busy_ns;
};

struct mfs_plan_request {
	uint64_t id; /* unique among the active ones */
	int64_t deadline_ns;
	uint32_t loads; /* each port at most once */
};

/* What arrives. `load` holds fixed_loads entries of the batch, then each request's in turn. */
struct mfs_plan_batch {
	uint64_t id;
	int64_t compute_ns;
	uint32_t fixed_loads;
	uint32_t requests;
	const struct mfs_plan_request *request;
	const struct mfs_plan_load *load;
};

struct mfs_plan_place {
	uint64_t batch;
	int64_t red_ns, loose_ns, finish_ns;
	uint32_t bottleneck; /* MFS_PLAN_NO_PORT: nothing is loaded */
};

/* A request in the scavenger and why: `for_batch` did not fit, `port` was its bottleneck, and this request
 * had the most load there. */
struct mfs_plan_pruned {
	uint64_t request, batch, for_batch;
	int64_t busy_ns;
	uint32_t port;
};

struct mfs_plan_counts {
	uint32_t batches, requests, pruned, infeasible, drop_budget;
};

/* -EINVAL: a share outside 0..1. -ENOMEM. */
int mfs_plan_create(struct mfs_plan **out, const struct mfs_plan_config *config);
void mfs_plan_destroy(struct mfs_plan *plan);

/*
 * A batch arrives, or what is left of it replaces it. -EINVAL: no requests, a request or a port of one
 * request twice, an unknown port, a negative load or compute. -EEXIST: a request of another batch.
 * -ERANGE: a time beyond MFS_PLAN_TIME_MAX. -ENOMEM.
 */
int mfs_plan_put(struct mfs_plan *plan, const struct mfs_plan_batch *batch);
int mfs_plan_remove(struct mfs_plan *plan, uint64_t batch); /* -ENOENT */
/* Decides anew who is pruned, after one event or many. -ERANGE. */
int mfs_plan_evaluate(struct mfs_plan *plan, int64_t now_ns);
/* So many requests are pruned by others (their engines): they spend the drop budget from the next evaluation on. */
void mfs_plan_spend(struct mfs_plan *plan, uint32_t requests);
/* For how long a port is busy with what is promised to batches of this RED and before, pruned and (variant mfs) infeasible
 * requests left out. INT64_MAX: to all. Does not walk the batches: one chunk of them at most. */
int64_t mfs_plan_promised(const struct mfs_plan *plan, uint32_t port, int64_t red_ns);
bool mfs_plan_active(const struct mfs_plan *plan, uint64_t batch);
/* The batch of an active request; false when there is none. */
bool mfs_plan_owner(const struct mfs_plan *plan, uint64_t request, uint64_t *batch);

struct mfs_plan_counts mfs_plan_counts(const struct mfs_plan *plan);
/* The whole result of the last evaluation: `batches` places first served first, `pruned` and `infeasible`
 * entries in no order. Places are estimated anew: O(all loads). */
void mfs_plan_places(struct mfs_plan *plan, struct mfs_plan_place *out);
void mfs_plan_pruned(const struct mfs_plan *plan, struct mfs_plan_pruned *out);
void mfs_plan_infeasible(const struct mfs_plan *plan, uint64_t *out);

/*
 * What changed since the last mfs_plan_delta_take, in space and time proportional to it. A request is reported as
 * pruned, or as infeasible, or as restored when an earlier delta reported either and it is neither any more, or gone.
 * Apply `restored` before the others, since a number may be used again.
 */
struct mfs_plan_delta {
	uint32_t pruned, infeasible, restored;
};

/* Upper bounds of what mfs_plan_delta_take would write now. */
struct mfs_plan_delta mfs_plan_delta_bounds(const struct mfs_plan *plan);
struct mfs_plan_delta mfs_plan_delta_take(struct mfs_plan *plan, struct mfs_plan_pruned *pruned,
					  uint64_t *infeasible, uint64_t *restored);

#endif
