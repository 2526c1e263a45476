/*
 * The walk along the order: S(u), and the longest port after each batch. S only grows along it, so a port
 * matters only when its load leaves `within`, what is known to take less than the longest so far.
 */
#include <string.h>

#include "plan_state.h"

/* Eight words at a time; the compiler splits them where registers are narrower. */
typedef int64_t words __attribute__((vector_size(64), aligned(8), may_alias));
#define LANES 8

static inline __attribute__((always_inline)) bool add_run(int64_t *load, const int64_t *within,
							   const int64_t *amount, uint32_t n)
{
	words over = { 0 };
	int64_t any = 0;
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words sum = *(words *)(load + k) + *(const words *)(amount + k);

		*(words *)(load + k) = sum;
		over |= sum > *(const words *)(within + k);
	}
	for (; k < n; k++) {
		load[k] += amount[k];
		any |= load[k] > within[k];
	}
	for (uint32_t lane = 0; lane < LANES; lane++)
		any |= over[lane];
	return any;
}

/* load += amount; the greatest load. */
static inline __attribute__((always_inline)) int64_t most_run(int64_t *load, const int64_t *amount, uint32_t n)
{
	words top = { 0 };
	int64_t most = 0;
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words sum = *(words *)(load + k) + *(const words *)(amount + k), more = sum > top;

		*(words *)(load + k) = sum;
		top = (sum & more) | (top & ~more);
	}
	for (; k < n; k++) {
		load[k] += amount[k];
		most = load[k] > most ? load[k] : most;
	}
	for (uint32_t lane = 0; lane < LANES; lane++)
		most = top[lane] > most ? top[lane] : most;
	return most;
}

static inline __attribute__((always_inline)) void spare_run(int64_t *load, int64_t *spare, const int64_t *amount,
							    int64_t within, uint32_t n)
{
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words sum = *(words *)(load + k), old = *(words *)(spare + k), fits = within - sum;
		words less = fits < old;

		*(words *)(spare + k) = (fits & less) | (old & ~less);
		*(words *)(load + k) = sum - *(const words *)(amount + k);
	}
	for (; k < n; k++) {
		if (within - load[k] < spare[k])
			spare[k] = within - load[k];
		load[k] -= amount[k];
	}
}

#define VERSION(name, ...)                                                                                       \
	__VA_ARGS__ static bool add_run_##name(int64_t *load, const int64_t *within, const int64_t *amount,     \
					       uint32_t n)                                                       \
	{                                                                                                        \
		return add_run(load, within, amount, n);                                                         \
	}                                                                                                        \
	__VA_ARGS__ static int64_t most_run_##name(int64_t *load, const int64_t *amount, uint32_t n)             \
	{                                                                                                        \
		return most_run(load, amount, n);                                                                \
	}                                                                                                        \
	__VA_ARGS__ static void spare_run_##name(int64_t *load, int64_t *spare, const int64_t *amount,          \
						 int64_t within, uint32_t n)                                     \
	{                                                                                                        \
		spare_run(load, spare, amount, within, n);                                                       \
	}

VERSION(any)
#ifdef __x86_64__
VERSION(avx2, __attribute__((target("avx2"))))
VERSION(avx512, __attribute__((target("avx512f"))))
#endif

void plan_walk_init(struct mfs_plan *plan)
{
	plan->add_run = add_run_any;
	plan->most_run = most_run_any;
	plan->spare_run = spare_run_any;
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f")) {
		plan->add_run = add_run_avx512;
		plan->most_run = most_run_avx512;
		plan->spare_run = spare_run_avx512;
	} else if (__builtin_cpu_supports("avx2")) {
		plan->add_run = add_run_avx2;
		plan->most_run = most_run_avx2;
		plan->spare_run = spare_run_avx2;
	}
#endif
}

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

/* S += `amount`, by the ports of the row. */
void plan_walk_add(const struct mfs_plan *plan, struct plan_walk *walk, struct plan_row *row, const int64_t *amount)
{
	const uint32_t *port = plan_row_ports(row);
	int64_t *load = walk->load, *within = walk->within;
	uint32_t n = row->n;

	if (!row->run) {
		for (uint32_t k = 0; k < n; k++) {
			uint32_t u = port[k];
			int64_t sum = load[u] + amount[k];

			load[u] = sum;
			if (__builtin_expect(sum > within[u], 0))
				look(plan, walk, u);
		}
	} else {
		load += row->first;
		within += row->first;
		if (plan->add_run(load, within, amount, n))
			for (uint32_t k = 0; k < n; k++)
				if (load[k] > within[k])
					look(plan, walk, row->first + k);
	}
}

/* As plan_walk_add, of row->amount, without telling which port is the slowest. Among ports of one class the
 * greatest load takes longest: `*within`, what is no longer than the longest so far, is one number for them. */
static inline void add(struct mfs_plan *plan, struct plan_row *row, int64_t *within)
{
	struct plan_walk *walk = &plan->walk;
	const uint32_t *port = plan_row_ports(row);
	const int64_t *amount = row->amount;
	int64_t *load = walk->load, top = *within;
	uint32_t n = row->n;

	if (plan->classes > 1) {
		plan_walk_add(plan, walk, row, amount);
	} else if (row->run) {
		int64_t most = plan->most_run(load + row->first, amount, n);

		if (most <= top)
			return;
		walk->longest = plan_time(plan, 0, most);
		*within = plan_within(plan, 0, walk->longest);
	} else {
		for (uint32_t k = 0; k < n; k++) {
			int64_t sum = load[port[k]] + amount[k];

			load[port[k]] = sum;
			if (__builtin_expect(sum > top, 0)) {
				walk->longest = plan_time(plan, 0, sum);
				top = plan_within(plan, 0, walk->longest);
			}
		}
		*within = top;
	}
}

/* All batches: their rows by position, the longest port after each, and the first that prune() must look at. In
 * variant mfs one that is late with nothing ahead of it prunes nobody. */
void plan_walk(struct mfs_plan *plan)
{
	struct plan_walk *walk = &plan->walk;
	int64_t now = plan->now, within = 0;
	uint32_t i = 0;

	plan_walk_reset(plan, walk);
	plan->first_unfit = plan->order.n;
	for (uint32_t c = 0; c < plan->chunk.n; c++) {
		char *at = plan->chunk.at[c]->rows, *end = at + plan->chunk.at[c]->used;

		for (; at < end; at += ((struct plan_row *)at)->bytes, i++) {
			struct plan_row *row = (struct plan_row *)at;

			add(plan, row, &within);
			plan->row_at.at[i] = row;
			plan->longest_at.at[i] = walk->longest;
			if (walk->longest + now > row->due && plan->first_unfit == plan->order.n &&
			    (plan->paper || now <= row->due))
				plan->first_unfit = i;
		}
	}
}

/* S of the batches before position `end`, without looking for the longest port on the way. */
void plan_walk_to(struct mfs_plan *plan, uint32_t end)
{
	struct plan_walk *walk = &plan->walk;

	plan_walk_reset(plan, walk);
	for (uint32_t i = 0; i < end; i++) {
		struct plan_row *row = plan->row_at.at[i];
		const uint32_t *port = plan_row_ports(row);

		if (row->run)
			plan->most_run(walk->load + row->first, row->amount, row->n);
		else
			for (uint32_t k = 0; k < row->n; k++)
				walk->load[port[k]] += row->amount[k];
	}
	plan_walk_longest(plan);
}

/* Finds the longest port again, since load was taken away. */
void plan_walk_longest(struct mfs_plan *plan)
{
	struct plan_walk *walk = &plan->walk;
	double candidate = 0;

	memset(walk->within, 0, plan->ports * sizeof(*walk->within));
	walk->longest = 0;
	walk->slowest = MFS_PLAN_NO_PORT;
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

static inline void back(int64_t *load, int64_t *spare, int64_t amount, int64_t within)
{
	int64_t sum = *load, fits = within - sum, old = *spare;

	*spare = fits < old ? fits : old; /* always stored: no branch to guess */
	*load = sum - amount;
}

/* S -= L_i, after noting for each port of the batch what still fits on it within `time`. */
void plan_walk_back(struct mfs_plan *plan, struct plan_row *row, int64_t time)
{
	const uint32_t *port = plan_row_ports(row), *class = plan->class;
	int64_t *load = plan->walk.load, *spare = plan->spare, within;
	uint32_t n = row->n;

	if (row->run && row->class != PLAN_NONE) {
		within = class_within(plan, row->class, time);
		plan->spare_run(load + row->first, spare + row->first, row->amount, within, n);
	} else if (plan->classes == 1) {
		within = class_within(plan, 0, time);
		for (uint32_t k = 0; k < n; k++)
			back(&load[port[k]], &spare[port[k]], row->amount[k], within);
	} else {
		for (uint32_t k = 0; k < n; k++) {
			uint32_t u = plan_port(row, k);

			back(&load[u], &spare[u], row->amount[k], class_within(plan, class[u], time));
		}
	}
}
