/* Measures the reverse multi-level queue at a steady number of queued flows: every turn submits one flow and
 * picks the first in order, one microsecond of queue time apart, so that requests are promoted as time
 * passes. Picked flows are completed in blocks, timed apart. All times are CPU time of the thread.
 *
 * rmlq_load FLOWS TURNS ROUNDS: one JSON object a line, for every round and scenario. The peers sort the same
 * arrivals by a key that never changes: they have no groups, promotion, cancel or change of L_curr, and show
 * what ordering alone costs.
 */
#include <mfs/rmlq.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TEMPLATES 16384 /* flows to draw from; few enough to stay in cache beside the queue */
#define REQUESTS  10000
#define BATCHES	  500
#define LAYERS	  64
#define RATE	  1250000000ULL /* 10 Gbit/s: a request crosses several levels in the measured time */
#define BLOCK	  256		/* flows in flight before they are completed */

struct peer_key {
	uint64_t high, low;
};
double peer_set_ns(const struct peer_key *keys, uint32_t templates, uint32_t flows, uint32_t turns);
double peer_priority_queue_ns(const struct peer_key *keys, uint32_t templates, uint32_t flows,
			      uint32_t turns);

/* Share of stages in percent: reuse, collective, last stage; the rest is background. */
struct scenario {
	const char *name;
	unsigned reuse, collective, last;
	unsigned reuse_queued, collective_queued, last_queued; /* before the first turn */
};

static const struct scenario SCENARIOS[] = {
	/* early stages keep up and held KV waits: what a busy NIC evaluations like */
	{ "kv_backlog", 20, 5, 65, 1, 0, 90 },
	/* reuse is backlogged too: picks come from batches */
	{ "all_backlogged", 40, 10, 40, 45, 5, 40 },
	{ "reuse_only", 100, 0, 0, 100, 0, 0 },
	{ "last_only", 0, 0, 100, 0, 0, 100 },
	{ "background_only", 0, 0, 0, 0, 0, 0 },
};

static uint64_t state = 0x9e3779b97f4a7c15ULL;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static double cpu_seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void make(struct mfs_flow *flow, struct peer_key *key, unsigned reuse, unsigned collective,
		 unsigned last)
{
	unsigned kind = (unsigned)draw(100);
	uint64_t request = 1 + draw(REQUESTS);

	*flow = (struct mfs_flow){ .bytes = 4096 + draw(65536),
				   .request = request,
				   .batch = 1 + request % BATCHES,
				   .layer = (uint16_t)draw(LAYERS) };
	if (kind < reuse) {
		flow->stage = MFS_STAGE_REUSE;
		*key = (struct peer_key){ 1ULL << 62 | (uint64_t)flow->layer << 34 | (flow->batch << 2) | 2,
					  0 };
	} else if (kind < reuse + collective) {
		flow->stage = MFS_STAGE_COLLECTIVE;
		*key = (struct peer_key){ 1ULL << 62 | (flow->batch << 2) | 1, 0 };
	} else if (kind < reuse + collective + last) {
		flow->stage = MFS_STAGE_P2D;
		flow->deadline_ns = 300000000 + request * 100000; /* 0.3 to 1.3 s ahead */
		*key = (struct peer_key){ 2ULL << 62 | flow->deadline_ns, 0 };
	} else {
		flow->stage = MFS_STAGE_BACKGROUND;
		*key = (struct peer_key){ 3ULL << 62, 0 };
	}
}

static struct mfs_flow queued[TEMPLATES], arriving[TEMPLATES];
static struct peer_key queued_keys[TEMPLATES], arriving_keys[TEMPLATES];

struct cost {
	double turn_ns, complete_ns;
};

/* False when the queue answers what it must not. */
static bool measure(uint32_t flows, uint32_t turns, struct cost *cost, struct mfs_rmlq_stats *stats)
{
	struct mfs_policy policy;
	struct mfs_rmlq *queue;
	struct mfs_pick pick;
	mfs_flow_handle handle, in_flight[BLOCK];
	uint64_t now = 0;
	double began, picked;

	mfs_policy_default(&policy, 8);
	if (mfs_rmlq_create(&policy, RATE, flows + BLOCK, &queue))
		return false;
	for (uint64_t b = 1; b <= BATCHES; b++) {
		struct mfs_batch_context context = { .layer_current = (uint32_t)(b % LAYERS),
						     .layers = LAYERS,
						     .rank = (uint32_t)b };

		mfs_rmlq_batch(queue, b, &context, now);
	}
	for (uint32_t i = 0; i < flows; i++)
		if (mfs_rmlq_submit(queue, &queued[draw(TEMPLATES)], now, &handle))
			return false;
	*cost = (struct cost){ 0 };
	for (uint32_t turn = 0; turn < turns; turn += BLOCK) {
		began = cpu_seconds();
		for (uint32_t i = 0; i < BLOCK; i++) {
			now += 1000;
			if (mfs_rmlq_submit(queue, &arriving[(turn + i) % TEMPLATES], now, &handle) ||
			    mfs_rmlq_pick(queue, now, &pick))
				return false;
			in_flight[i] = pick.handle;
		}
		picked = cpu_seconds();
		for (uint32_t i = 0; i < BLOCK; i++)
			if (mfs_rmlq_complete(queue, in_flight[i], UINT64_MAX) != 1)
				return false;
		cost->turn_ns += (picked - began) * 1e9 / turns;
		cost->complete_ns += (cpu_seconds() - picked) * 1e9 / turns;
	}
	mfs_rmlq_stats(queue, stats);
	mfs_rmlq_destroy(queue);
	return true;
}

int main(int argc, char **argv)
{
	uint32_t flows, turns, rounds;

	if (argc != 4) {
		fprintf(stderr, "usage: rmlq_load FLOWS TURNS ROUNDS\n");
		return 2;
	}
	flows = (uint32_t)strtoul(argv[1], NULL, 10);
	turns = (uint32_t)strtoul(argv[2], NULL, 10) / BLOCK * BLOCK;
	rounds = (uint32_t)strtoul(argv[3], NULL, 10);
	for (uint32_t round = 0; round < rounds; round++) {
		for (unsigned i = 0; i < sizeof(SCENARIOS) / sizeof(*SCENARIOS); i++) {
			const struct scenario *s = &SCENARIOS[i];
			struct mfs_rmlq_stats stats;
			struct cost cost;
			double set_ns, priority_queue_ns;

			for (uint32_t t = 0; t < TEMPLATES; t++) {
				make(&queued[t], &queued_keys[t], s->reuse_queued, s->collective_queued,
				     s->last_queued);
				make(&arriving[t], &arriving_keys[t], s->reuse, s->collective, s->last);
			}
			if (!measure(flows, turns, &cost, &stats)) {
				fprintf(stderr, "rmlq_load: the queue failed in scenario %s\n", s->name);
				return 1;
			}
			set_ns = peer_set_ns(arriving_keys, TEMPLATES, flows, turns);
			priority_queue_ns = peer_priority_queue_ns(arriving_keys, TEMPLATES, flows, turns);
			printf("{\"scenario\":\"%s\",\"turn_ns\":%.2f,\"complete_ns\":%.2f,\"std_set_ns\":%.2f,"
			       "\"std_priority_queue_ns\":%.2f,\"evaluations\":%" PRIu64 ",\"promotions\":%" PRIu64
			       "}\n",
			       s->name, cost.turn_ns, cost.complete_ns, set_ns, priority_queue_ns,
			       stats.evaluations, stats.promotions);
			fflush(stdout);
		}
	}
	return 0;
}
