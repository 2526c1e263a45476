/*
 * Exact conversions between amounts and the time they take on a port. A product in double precision is off by
 * less than one up to 2^50; the remainder, which fits a word although the products do not, puts it right.
 * And how long a batch may take with the margin kept.
 */
#define _GNU_SOURCE /* qsort_r */
#include "state.h"

#define NS_PER_S INT64_C(1000000000)

/* The least time in which `amount` passes: ceil(amount * 1e9 / capacity). */
int64_t plan_time(const struct mfs_plan *plan, uint32_t port, int64_t amount)
{
	int64_t capacity = plan->capacity[port];
	double estimate = (double)amount * plan->ns_per_unit[port];
	int64_t time, rest;

	if (!(estimate < 0x1p50))
		return (int64_t)(((__int128)amount * NS_PER_S + capacity - 1) / capacity);
	time = (int64_t)estimate;
	rest = (int64_t)((uint64_t)amount * NS_PER_S - (uint64_t)time * (uint64_t)capacity);
	for (; rest > 0; rest -= capacity)
		time++;
	for (; rest <= -capacity; rest += capacity)
		time--;
	return time;
}

/* The most that passes in `time` >= 0: floor(time * capacity / 1e9), at most twice MFS_PLAN_AMOUNT_MAX. */
int64_t plan_within(const struct mfs_plan *plan, uint32_t port, int64_t time)
{
	int64_t capacity = plan->capacity[port];
	double estimate = (double)time * plan->units_per_ns[port];
	int64_t amount, rest;

	if (!(estimate < 0x1p50)) {
		__int128 exact = (__int128)time * capacity / NS_PER_S;

		return exact < 2 * MFS_PLAN_AMOUNT_MAX ? (int64_t)exact : 2 * MFS_PLAN_AMOUNT_MAX;
	}
	amount = (int64_t)estimate;
	rest = (int64_t)((uint64_t)time * (uint64_t)capacity - (uint64_t)amount * NS_PER_S);
	for (; rest < 0; rest += NS_PER_S)
		amount--;
	for (; rest >= NS_PER_S; rest -= NS_PER_S)
		amount++;
	return amount;
}

static int compare_capacity(const void *a, const void *b, void *capacity)
{
	int64_t x = ((int64_t *)capacity)[*(const uint32_t *)a], y = ((int64_t *)capacity)[*(const uint32_t *)b];

	return (x > y) - (x < y);
}

int plan_time_init(struct mfs_plan *plan, const int64_t *capacity)
{
	for (uint32_t u = 0; u < plan->ports; u++) {
		if (capacity[u] < 1 || capacity[u] > MFS_PLAN_AMOUNT_MAX)
			return -EINVAL;
		plan->capacity[u] = capacity[u];
		plan->ns_per_unit[u] = (double)NS_PER_S / (double)capacity[u];
		plan->units_per_ns[u] = (double)capacity[u] / (double)NS_PER_S;
		plan->k_of[u] = u;
	}
	for (uint32_t u = 0; u < plan->ports; u++) {
		plan->limit[u] = plan_within(plan, u, MFS_PLAN_TIME_MAX);
		if (plan->limit[u] > MFS_PLAN_AMOUNT_MAX)
			plan->limit[u] = MFS_PLAN_AMOUNT_MAX;
	}
	qsort_r(plan->k_of, plan->ports, sizeof(*plan->k_of), compare_capacity, plan->capacity);
	for (uint32_t i = 0; i < plan->ports; i++) {
		uint32_t u = plan->k_of[i];

		if (!i || capacity[u] != capacity[plan->k_of[i - 1]])
			plan->class_port[plan->classes++] = u;
		plan->class[u] = plan->classes - 1;
	}
	return 0;
}

/* H_i: what the longest port may take with the margin kept. */
int64_t plan_room(const struct mfs_plan *plan, int64_t due, int64_t loose)
{
	__int128 time;

	if (loose <= MFS_PLAN_TIME_MAX) {
		int64_t left = loose - plan->now, room = due - plan->now;

		room -= left > 0 ? (int64_t)((double)left * plan->margin) : 0;
		return room < 0 ? 0 : room;
	}
	time = (__int128)due - plan->now;
	if (loose > plan->now)
		time -= (uint64_t)((double)((uint64_t)loose - (uint64_t)plan->now) * plan->margin);
	if (time > 2 * MFS_PLAN_TIME_MAX)
		return 2 * MFS_PLAN_TIME_MAX;
	return time < 0 ? 0 : (int64_t)time;
}
