/* Algorithm 1, kept up to date event by event: the order of the active batches by robust effective
 * deadline, and the requests that are pruned from it (docs/internals/plan.md). The rules are those of the
 * specification in mfsd/policy/pruning.py, and every result equals that of the specification. It uses
 * integers only, and one correctly rounded operation where a real number enters (the readmission margin).
 *
 * A load is the time in nanoseconds for which it keeps a port busy, so ports need no rates here. Ports are
 * numbered from 0; the numbers break ties. Single threaded. Functions that can fail return -errno and have
 * then changed nothing. */
#ifndef MFS_PLAN_H
#define MFS_PLAN_H

#include <stdbool.h>
#include <stdint.h>

struct mfs_plan;

/* Limit of clock readings, deadlines, compute and the sum of all load that is promised on one port (pruned
 * or not), positive or negative: more than 73 years. A deadline may also be INT64_MAX, which means never. */
#define MFS_PLAN_TIME_MAX (INT64_C(1) << 61)
#define MFS_PLAN_NO_PORT UINT32_MAX

struct mfs_plan_config {
	bool paper;                /* true: the paper's rules as written; false: variant mfs */
	uint32_t drop_budget_ppm;  /* share of the active requests that may be pruned at once */
	double readmission_margin; /* share of the remaining time, 0..1 */
	uint32_t ports;
};

struct mfs_plan_load {
	uint32_t port;
	int64_t busy_ns;
};

struct mfs_plan_request {
	uint64_t id; /* unique among active requests */
	int64_t deadline_ns;
	uint32_t loads; /* number of loads; each port occurs at most once */
};

/* A batch that arrives. `load` holds fixed_loads entries of the batch itself, then those of each request in turn. */
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
	uint32_t bottleneck; /* MFS_PLAN_NO_PORT: no port has any load */
};

/* A request in the scavenger and the reason: `for_batch` did not fit, `port` was its bottleneck, and this
 * request had the most load there. */
struct mfs_plan_pruned {
	uint64_t request, batch, for_batch;
	int64_t busy_ns;
	uint32_t port;
};

struct mfs_plan_counts {
	uint32_t batches, requests, pruned, infeasible, drop_budget;
};

/* -EINVAL: a share is outside 0..1. -ENOMEM. */
int mfs_plan_create(struct mfs_plan **out, const struct mfs_plan_config *config);
void mfs_plan_destroy(struct mfs_plan *plan);

/* Adds a batch, or replaces it with what is left of it. -EINVAL: no requests, a duplicate request, a port
 * twice in one request, an unknown port, a negative load or compute. -EEXIST: a request belongs to another
 * batch. -ERANGE: a time beyond MFS_PLAN_TIME_MAX. -ENOMEM. */
int mfs_plan_put(struct mfs_plan *plan, const struct mfs_plan_batch *batch);
int mfs_plan_remove(struct mfs_plan *plan, uint64_t batch); /* -ENOENT */
/* Decides again which requests are pruned, after one event or many. -ERANGE. */
int mfs_plan_evaluate(struct mfs_plan *plan, int64_t now_ns);
/* Sets how many requests are pruned by others (the engines). They use up the drop budget from the next
 * evaluation on. */
void mfs_plan_spend(struct mfs_plan *plan, uint32_t requests);
/* Returns for how long a port is busy with what is promised to batches up to this RED; INT64_MAX: to all
 * batches. Pruned and (variant mfs) infeasible requests are left out. Walks at most one chunk of the batches. */
int64_t mfs_plan_promised(const struct mfs_plan *plan, uint32_t port, int64_t red_ns);
bool mfs_plan_active(const struct mfs_plan *plan, uint64_t batch);
/* Finds the batch of an active request. Returns false if there is none. */
bool mfs_plan_owner(const struct mfs_plan *plan, uint64_t request, uint64_t *batch);

struct mfs_plan_counts mfs_plan_counts(const struct mfs_plan *plan);
/* Copy the whole result of the last evaluation: `batches` places, first served first; `pruned` and
 * `infeasible` entries in no particular order. Places are estimated again by the call: O(all loads). */
void mfs_plan_places(struct mfs_plan *plan, struct mfs_plan_place *out);
void mfs_plan_pruned(const struct mfs_plan *plan, struct mfs_plan_pruned *out);
void mfs_plan_infeasible(const struct mfs_plan *plan, uint64_t *out);

/* What changed since the last mfs_plan_delta_take, in space and time proportional to the change. A request
 * is reported as pruned or as infeasible. It is reported as restored when an earlier delta reported one of
 * the two and now neither holds, or the request is gone. Apply `restored` before the others, since a
 * request number may be used again. */
struct mfs_plan_delta {
	uint32_t pruned, infeasible, restored;
};

/* Upper bounds of what mfs_plan_delta_take would write now. */
struct mfs_plan_delta mfs_plan_delta_bounds(const struct mfs_plan *plan);
struct mfs_plan_delta mfs_plan_delta_take(struct mfs_plan *plan, struct mfs_plan_pruned *pruned,
					  uint64_t *infeasible, uint64_t *restored);

#endif
