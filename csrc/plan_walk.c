/*
 * The walk along the order: S(u), and the longest port after each batch. S only grows along it, so a port
 * matters only when its load leaves `within`, what is known to take less than the longest so far.
 */
#include <string.h>

#include "plan_state.h"

#define AHEAD 6 /* batches fetched into the cache before their turn */

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
	plan->spare_run = spare_run_any;
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f")) {
		plan->add_run = add_run_avx512;
		plan->spare_run = spare_run_avx512;
	} else if (__builtin_cpu_supports("avx2")) {
		plan->add_run = add_run_avx2;
		plan->spare_run = spare_run_avx2;
	}
#endif
}

void plan_walk_reset(struct mfs_plan *plan)
{
	memset(plan->load, 0, plan->ports * sizeof(*plan->load));
	memset(plan->within, 0, plan->ports * sizeof(*plan->within));
	plan->longest = 0;
	plan->slowest = MFS_PLAN_NO_PORT;
}

/* The port has left `within`: is it the longest? Of equal ones the first is. */
static void look(struct mfs_plan *plan, uint32_t port)
{
	int64_t time = plan_time(plan, port, plan->load[port]);

	if (time > plan->longest || (time == plan->longest && port < plan->slowest)) {
		plan->longest = time;
		plan->slowest = port;
	}
	plan->within[port] = plan_within(plan, port, plan->longest - 1);
}

/* S += L_i. */
void plan_walk_add(struct mfs_plan *plan, const struct plan_batch *batch)
{
	int64_t *load = plan->load;
	const int64_t *within = plan->within, *amount = batch->amount;
	uint32_t n = batch->n;

	if (batch->port) {
		for (uint32_t k = 0; k < n; k++) {
			uint32_t u = batch->port[k];
			int64_t sum = load[u] + amount[k];

			load[u] = sum;
			if (__builtin_expect(sum > within[u], 0))
				look(plan, u);
		}
	} else if (n) {
		load += batch->first;
		within += batch->first;
		if (plan->add_run(load, within, amount, n))
			for (uint32_t k = 0; k < n; k++)
				if (load[k] > within[k])
					look(plan, batch->first + k);
	}
}

static inline void fetch(struct plan_batch *const *batch, int step)
{
	const char *row = (const char *)(batch[step / 2] + 1);

	__builtin_prefetch(batch[step]);
	__builtin_prefetch(row);
	__builtin_prefetch(row + 64);
}

/* All batches: their positions, the longest port after each, and the first that prune() must look at. In
 * variant mfs one that is late with nothing ahead of it prunes nobody. */
void plan_walk(struct mfs_plan *plan)
{
	uint32_t n = plan->order.n;
	int64_t now = plan->now;

	plan_walk_reset(plan);
	plan->first_unfit = n;
	for (uint32_t i = 0; i < n; i++) {
		struct plan_batch *batch = plan->order.at[i];

		if (i + AHEAD < n)
			fetch(plan->order.at + i, AHEAD);
		plan_walk_add(plan, batch);
		batch->at = i;
		plan->longest_at.at[i] = plan->longest;
		if (plan->longest + now > batch->due && plan->first_unfit == n && (plan->paper || now <= batch->due))
			plan->first_unfit = i;
	}
}

/* S of the batches before position `end`. */
void plan_walk_to(struct mfs_plan *plan, uint32_t end)
{
	plan_walk_reset(plan);
	for (uint32_t i = 0; i < end; i++) {
		const struct plan_batch *batch = plan->order.at[i];

		if (i + AHEAD < end)
			fetch(plan->order.at + i, AHEAD);
		if (batch->port)
			for (uint32_t k = 0; k < batch->n; k++)
				plan->load[batch->port[k]] += batch->amount[k];
		else if (batch->n)
			plan->add_run(plan->load + batch->first, plan->within + batch->first, batch->amount, batch->n);
	}
	plan_walk_longest(plan);
}

/* Finds the longest port again, since load was taken away. */
void plan_walk_longest(struct mfs_plan *plan)
{
	double candidate = 0;

	memset(plan->within, 0, plan->ports * sizeof(*plan->within));
	plan->longest = 0;
	plan->slowest = MFS_PLAN_NO_PORT;
	for (uint32_t u = 0; u < plan->ports; u++) {
		int64_t time;

		/* off by a few units in the last place: leave out only what is clearly less */
		if (!plan->load[u] || (double)plan->load[u] * plan->ns_per_unit[u] < candidate)
			continue;
		time = plan_time(plan, u, plan->load[u]);
		if (time > plan->longest) {
			plan->longest = time;
			plan->slowest = u;
			candidate = (double)time * (1 - 0x1p-48);
		}
	}
}

/* S -= L_i, after noting for each port of the batch what still fits on it within `time`. */
void plan_walk_back(struct mfs_plan *plan, const struct plan_batch *batch, int64_t time)
{
	for (uint32_t k = 0; batch->port && k < batch->n; k++) {
		uint32_t u = batch->port[k], class = plan->class[u];
		int64_t fits;

		if (plan->class_time[class] != time) {
			plan->class_time[class] = time;
			plan->class_within[class] = plan_within(plan, plan->class_port[class], time);
		}
		fits = plan->class_within[class] - plan->load[u];
		if (fits < plan->spare[u])
			plan->spare[u] = fits;
		plan->load[u] -= batch->amount[k];
	}
	if (batch->port || !batch->n)
		return;
	if (batch->class != PLAN_NONE) {
		int64_t within = plan_within(plan, plan->class_port[batch->class], time);

		plan->spare_run(plan->load + batch->first, plan->spare + batch->first, batch->amount, within, batch->n);
		return;
	}
	for (uint32_t k = 0; k < batch->n; k++) {
		uint32_t u = batch->first + k;
		int64_t fits = plan_within(plan, u, time) - plan->load[u];

		if (fits < plan->spare[u])
			plan->spare[u] = fits;
		plan->load[u] -= batch->amount[k];
	}
}
