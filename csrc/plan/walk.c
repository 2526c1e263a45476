/*
 * The walk along the order: S(u), and the longest port after each batch. S only grows along it, so a port
 * matters only when its load leaves `within`, what is known to take less than the longest so far.
 */
#include <string.h>

#include "state.h"

void plan_walk_reset(const struct mfs_plan *plan, struct plan_walk *walk)
{
	memset(walk->load, 0, plan->ports * sizeof(*walk->load));
	memset(walk->within, 0, plan->ports * sizeof(*walk->within));
	walk->longest = 0;
	walk->slowest = MFS_PLAN_NO_PORT;
}

/* The port has left `within`: is it the longest? Of equal ones the first is. */
static void look(const struct mfs_plan *plan, struct plan_walk *walk, uint32_t port)
{
	int64_t time = plan_time(plan, port, walk->load[port]);

	if (time > walk->longest || (time == walk->longest && port < walk->slowest)) {
		walk->longest = time;
		walk->slowest = port;
	}
	walk->within[port] = plan_within(plan, port, walk->longest - 1);
}

static inline int64_t amount_at(const void *amounts, bool wide, uint32_t k)
{
	return wide ? ((const int64_t *)amounts)[k] : ((const uint32_t *)amounts)[k];
}

/* S += `amounts`, by the ports of the row. */
void plan_walk_add(const struct mfs_plan *plan, struct plan_walk *walk, struct plan_row *row, const void *amounts,
		   bool wide)
{
	const uint32_t *port = plan_row_ports(row);
	const void *few = plan_few(row, amounts, wide);
	int64_t *load = walk->load, *within = walk->within;
	uint32_t run = row->run, first = row->first, n = row->n - run;

	if (run && plan->runs.add(load + first, within + first, amounts, wide, run))
		for (uint32_t u = first; u < first + run; u++)
			if (load[u] > within[u])
				look(plan, walk, u);
	for (uint32_t k = 0; k < n; k++) {
		uint32_t u = port[k];
		int64_t sum = load[u] + amount_at(few, wide, k);

		load[u] = sum;
		if (__builtin_expect(sum > within[u], 0))
			look(plan, walk, u);
	}
}

static inline __attribute__((always_inline)) void add_few(struct mfs_plan *plan, struct plan_walk *walk,
							   struct plan_row *row, const void *amounts, bool wide,
							   int64_t *within)
{
	const uint32_t *port = plan_row_ports(row);
	const void *few = plan_few(row, amounts, wide);
	int64_t *load = walk->load, top = *within;

	for (uint32_t k = 0, n = row->n - row->run; k < n; k++) {
		int64_t sum = load[port[k]] + amount_at(few, wide, k);

		load[port[k]] = sum;
		if (__builtin_expect(sum > top, 0)) {
			walk->longest = plan_time(plan, 0, sum);
			top = plan_within(plan, 0, walk->longest);
		}
	}
	*within = top;
}

/* S += L_i without telling which port is the slowest. Among ports of one class the greatest load takes longest:
 * `*within`, what is no longer than the longest so far, is one number for them. */
static inline __attribute__((always_inline)) void add(struct mfs_plan *plan, struct plan_walk *walk,
						       struct plan_row *row, const void *amounts, bool wide,
						       int64_t *within)
{
	if (plan->classes > 1) {
		plan_walk_add(plan, walk, row, amounts, wide);
		return;
	}
	if (row->run) {
		int64_t most = plan->runs.most(walk->load + row->first, amounts, wide, row->run);

		if (most > *within) {
			walk->longest = plan_time(plan, 0, most);
			*within = plan_within(plan, 0, walk->longest);
		}
	}
	if (wide)
		add_few(plan, walk, row, amounts, true, within);
	else
		add_few(plan, walk, row, amounts, false, within);
}

/* As plan_walk_add, without telling which port is the slowest. */
void plan_walk_grow(struct mfs_plan *plan, struct plan_walk *walk, struct plan_row *row, const void *amounts, bool wide)
{
	int64_t within = walk->longest ? plan_within(plan, 0, walk->longest) : 0;

	add(plan, walk, row, amounts, wide, &within);
}

static void plan_walk_copy_before(struct mfs_plan *plan, struct plan_row *row)
{
	int64_t *load = plan->load_before_unfit;

	memcpy(load, plan->walk.load, plan->ports * sizeof(*load));
	for (uint32_t k = 0; k < row->n; k++)
		load[plan_port(row, k)] -= amount_at(row->amounts, row->wide, k);
}

/* All batches: their rows by position, the longest port after each, and the first that prune() must look at. In
 * variant mfs one that is late with nothing ahead of it prunes nobody. */
void plan_walk(struct mfs_plan *plan)
{
	struct plan_walk *walk = &plan->walk;
	int64_t now = plan->now, within = 0;
	uint32_t i = 0;

	plan_walk_reset(plan, walk);
	plan->first_unfit = plan->last_unfit = plan->order.n;
	for (uint32_t c = 0; c < plan->chunk.n; c++) {
		char *at = plan->chunk.at[c]->rows, *end = at + plan->chunk.at[c]->used;

		for (; at < end; at += ((struct plan_row *)at)->bytes, i++) {
			struct plan_row *row = (struct plan_row *)at;

			plan_row_fetch(row, PLAN_AHEAD);
			add(plan, walk, row, row->amounts, row->wide, &within);
			plan->row_at.at[i] = row;
			plan->longest_at.at[i] = walk->longest;
			if (walk->longest + now > row->due && now <= row->helped) {
				if (plan->first_unfit == plan->order.n) {
					plan->first_unfit = i;
					plan_walk_copy_before(plan, row);
				}
				plan->last_unfit = i;
			}
		}
	}
}

/* One more row: longest grows, which port it is stays open where all are of one class. `within`: what is no longer than
 * the longest was; answers what it is now. */
int64_t plan_walk_on(struct mfs_plan *plan, struct plan_row *row, int64_t within)
{
	add(plan, &plan->walk, row, row->amounts, row->wide, &within);
	return within;
}

/* The most that passes in `time` on ports of the class, worked out once per time. */
static inline int64_t class_within(struct mfs_plan *plan, uint32_t class, int64_t time)
{
	if (plan->class_time[class] != time) {
		plan->class_time[class] = time;
		plan->class_within[class] = plan_within(plan, plan->class_port[class], time);
	}
	return plan->class_within[class];
}

/* Where all are of one class: the first port with more than passes in less than the greatest load's time. */
static void find_longest(const struct mfs_plan *plan, struct plan_walk *walk)
{
	int64_t within;
	uint32_t u = 0;

	walk->longest = plan_time(plan, 0, plan->runs.top(walk->load, plan->ports));
	if (!walk->longest)
		return;
	within = plan_within(plan, 0, walk->longest - 1);
	while (walk->load[u] <= within)
		u++;
	walk->slowest = u;
}

/* Finds the longest port again, since load was taken away. */
void plan_walk_longest(struct mfs_plan *plan)
{
	struct plan_walk *walk = &plan->walk;
	double candidate = 0;

	walk->longest = 0;
	walk->slowest = MFS_PLAN_NO_PORT;
	if (plan->classes == 1) {
		find_longest(plan, walk);
		return;
	}
	for (uint32_t u = 0; u < plan->ports; u++) {
		int64_t time;

		/* off by a few units in the last place: leave out only what is clearly less */
		if (!walk->load[u] || (double)walk->load[u] * plan->ns_per_unit[u] < candidate)
			continue;
		time = plan_time(plan, u, walk->load[u]);
		if (time > walk->longest) {
			walk->longest = time;
			walk->slowest = u;
			candidate = (double)time * (1 - 0x1p-48);
		}
	}
	for (uint32_t u = 0; u < plan->ports; u++)
		walk->within[u] = walk->longest ? class_within(plan, plan->class[u], walk->longest - 1) : 0;
}

static inline void back(struct mfs_plan *plan, uint32_t port, int64_t amount, int64_t within, int64_t at)
{
	int64_t sum = plan->walk.load[port], fits = within - sum, old = plan->spare[port], old_at = plan->spare_at[port];

	plan->spare[port] = fits < old ? fits : old; /* always stored: no branch to guess */
	plan->spare_at[port] = fits < old ? at : old_at;
	plan->walk.load[port] = sum - amount;
}

static inline __attribute__((always_inline)) void back_few(struct mfs_plan *plan, struct plan_row *row, bool wide,
							    int64_t within, int64_t at)
{
	const uint32_t *port = plan_row_ports(row);
	const void *few = plan_few(row, row->amounts, wide);

	for (uint32_t k = 0, n = row->n - row->run; k < n; k++)
		back(plan, port[k], amount_at(few, wide, k), within, at);
}

/* S -= L_i, after noting for each port of the batch what still fits on it within `time`, for which `at` stands. */
void plan_walk_back(struct mfs_plan *plan, struct plan_row *row, int64_t time, int64_t at)
{
	int64_t *load = plan->walk.load, *spare = plan->spare, within;
	uint32_t k = 0;

	if (row->run && row->class != PLAN_NONE) {
		within = class_within(plan, row->class, time);
		plan->runs.spare(load + row->first, spare + row->first, plan->spare_at + row->first, row->amounts,
				 row->wide, within, at, row->run);
		k = row->run;
	}
	if (plan->classes > 1) {
		for (; k < row->n; k++) {
			uint32_t u = plan_port(row, k);

			within = class_within(plan, plan->class[u], time);
			back(plan, u, amount_at(row->amounts, row->wide, k), within, at);
		}
	} else if (row->wide) {
		back_few(plan, row, true, class_within(plan, 0, time), at);
	} else {
		back_few(plan, row, false, class_within(plan, 0, time), at);
	}
}
