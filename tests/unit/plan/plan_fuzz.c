/*
 * Random events on plan.h for the sanitizers, with numbers at the edges of their ranges, refused input, and
 * allocations that fail. A refusal must change nothing, and deltas must add up to the state.
 * usage: plan_fuzz SEED ROUNDS [calm]
 * Calm: no allocation fails, and the digest of all states is printed: builds that only plan in another way must agree.
 */
#undef malloc /* of csrc alone: the command line names them fuzz_... */
#undef calloc
#undef realloc
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mfs/plan.h>

#define BATCHES	 40
#define REQUESTS 200 /* numbers in use: 1000 + these */
#define PORTS	 70
#define CHECK(what)                                                              \
	do {                                                                     \
		if (!(what)) {                                                   \
			fprintf(stderr, "line %d: %s\n", __LINE__, #what);       \
			exit(1);                                                 \
		}                                                                \
	} while (0)

static uint64_t state;
static bool calm;
static uint64_t digest;
static int fail_in; /* this many allocations from now; 0: never */

static uint32_t pick(uint32_t below)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (uint32_t)(state >> 33) % below;
}

static int fails(void)
{
	return !calm && fail_in && !--fail_in;
}

void *fuzz_malloc(size_t bytes)
{
	return fails() ? NULL : malloc(bytes);
}

void *fuzz_calloc(size_t n, size_t bytes)
{
	return fails() ? NULL : calloc(n, bytes);
}

void *fuzz_realloc(void *at, size_t bytes)
{
	return fails() ? NULL : realloc(at, bytes);
}

struct snapshot {
	struct mfs_plan_counts counts;
	struct mfs_plan_place place[BATCHES];
	struct mfs_plan_pruned pruned[REQUESTS];
	uint64_t infeasible[REQUESTS];
};

static int compare_numbers(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static struct snapshot take_snapshot(struct mfs_plan *plan)
{
	struct snapshot seen;

	memset(&seen, 0, sizeof(seen)); /* padding is compared */
	seen.counts = mfs_plan_counts(plan);
	mfs_plan_places(plan, seen.place);
	mfs_plan_pruned(plan, seen.pruned);
	mfs_plan_infeasible(plan, seen.infeasible); /* in no order */
	qsort(seen.infeasible, seen.counts.infeasible, sizeof(*seen.infeasible), compare_numbers);
	return seen;
}

/* What the deltas have reported, by request number. */
static struct {
	bool pruned[REQUESTS], infeasible[REQUESTS];
} reported;

static void take_delta(struct mfs_plan *plan)
{
	struct mfs_plan_delta bounds = mfs_plan_delta_bounds(plan), n;
	struct mfs_plan_pruned *pruned = calloc(bounds.pruned + 1, sizeof(*pruned));
	uint64_t *infeasible = calloc(bounds.infeasible + 1, 8), *restored = calloc(bounds.restored + 1, 8);
	struct snapshot seen = take_snapshot(plan);
	uint32_t count = 0;

	n = mfs_plan_delta_take(plan, pruned, infeasible, restored);
	for (uint32_t i = 0; i < n.restored; i++) {
		CHECK(reported.pruned[restored[i] - 1000] || reported.infeasible[restored[i] - 1000]);
		reported.pruned[restored[i] - 1000] = reported.infeasible[restored[i] - 1000] = false;
	}
	for (uint32_t i = 0; i < n.pruned; i++) {
		reported.pruned[pruned[i].request - 1000] = true;
		reported.infeasible[pruned[i].request - 1000] = false;
	}
	for (uint32_t i = 0; i < n.infeasible; i++) {
		reported.infeasible[infeasible[i] - 1000] = true;
		reported.pruned[infeasible[i] - 1000] = false;
	}
	for (uint32_t i = 0; i < REQUESTS; i++)
		count += reported.pruned[i];
	CHECK(count == seen.counts.pruned);
	for (uint32_t i = 0; i < seen.counts.pruned; i++)
		CHECK(reported.pruned[seen.pruned[i].request - 1000]);
	for (uint32_t i = 0; i < seen.counts.infeasible; i++)
		CHECK(reported.infeasible[seen.infeasible[i] - 1000] || reported.pruned[seen.infeasible[i] - 1000]);
	free(infeasible);
	free(pruned);
	free(restored);
}

static int64_t amount(uint32_t wild)
{
	static const int64_t edge[] = { 0, 1, UINT32_MAX, (int64_t)UINT32_MAX + 1, INT64_C(1) << 60, MFS_PLAN_TIME_MAX,
					INT64_MAX, -1 };

	return pick(1000) < wild ? edge[pick(8)] : (int64_t)pick(100000);
}

static uint32_t add_loads(struct mfs_plan_load *load, uint32_t wild)
{
	uint32_t n = 0, first = pick(PORTS), span = pick(3) ? pick(4) : pick(PORTS);

	for (uint32_t u = first; u < PORTS && u < first + span; u++)
		if (pick(8))
			load[n++] = (struct mfs_plan_load){ u, amount(wild) };
	if (n && pick(1000) < wild)
		load[0].port = pick(2) ? PORTS : load[n - 1].port;
	return n;
}

static int put(struct mfs_plan *plan, uint64_t batch, int64_t now, uint32_t wild)
{
	static struct mfs_plan_load load[8 * PORTS];
	struct mfs_plan_request request[6];
	struct mfs_plan_batch from = { .id = batch, .compute_ns = pick(20000), .request = request, .load = load };
	uint32_t n = 0;

	if (pick(3) == 0)
		from.fixed_loads = n = add_loads(load, wild);
	from.requests = pick(1000) < wild ? 0 : 1 + pick(5);
	for (uint32_t r = 0; r < from.requests; r++) {
		uint32_t loads = add_loads(load + n, wild);

		request[r] = (struct mfs_plan_request){ 1000 + batch * 5 + r, now + pick(3000000), loads };
		if (pick(1000) < wild)
			request[r].id = 1000 + pick(REQUESTS);
		if (pick(1000) < wild)
			request[r].deadline_ns = pick(2) ? INT64_MAX : INT64_MIN;
		n += loads;
	}
	return mfs_plan_put(plan, &from);
}

static void round_of(uint32_t steps)
{
	int64_t now = pick(2) ? 0 : -1000000;
	struct mfs_plan_config config = { pick(2), pick(2) ? 100000 : pick(1000001), pick(5) / 4.0, PORTS };
	struct mfs_plan *plan = NULL;
	uint32_t wild = pick(2) ? 0 : 20;

	memset(&reported, 0, sizeof(reported));
	fail_in = pick(2) ? 1 + (int)pick(30) : 0;
	for (int rc = -1; rc; fail_in = 0) {
		rc = mfs_plan_create(&plan, &config);
		CHECK(!rc || rc == -ENOMEM);
	}
	while (steps--) {
		uint64_t batch = pick(BATCHES);
		struct snapshot before = take_snapshot(plan), after;
		int rc;

		now += pick(40000);
		if (pick(50) == 0)
			now -= 500000;
		fail_in = pick(4) ? 0 : 1 + (int)pick(12);
		rc = pick(3) == 0 ? mfs_plan_remove(plan, batch) : put(plan, batch, now, wild);
		fail_in = 0;
		CHECK(mfs_plan_evaluate(plan, INT64_MIN) == -ERANGE);
		if (!rc && pick(4)) /* else the next one decides for both */
			CHECK(!mfs_plan_evaluate(plan, now));
		after = take_snapshot(plan);
		for (size_t i = 0; i < sizeof(after); i++)
			digest = (digest ^ ((unsigned char *)&after)[i]) * 1099511628211ULL;
		if (rc) {
			CHECK(rc == -EINVAL || rc == -EEXIST || rc == -ERANGE || rc == -ENOMEM || rc == -ENOENT);
			CHECK(!memcmp(&before, &after, sizeof(before)));
		}
		if (pick(3) == 0)
			take_delta(plan);
	}
	mfs_plan_destroy(plan);
}

int main(int argc, char **argv)
{
	calm = argc == 4;
	CHECK(argc == 3 || calm);
	state = strtoull(argv[1], NULL, 10);
	for (int rounds = atoi(argv[2]); rounds; rounds--)
		round_of(150);
	if (calm)
		printf("%016llx\n", (unsigned long long)digest);
	else
		puts("ok");
	return 0;
}
