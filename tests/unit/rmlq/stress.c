/* Random calls on two queues at once, built with sanitizers. Checks what must hold whatever happens:
 * something is picked whenever something waits for an open destination, and nothing for a closed one; a
 * last-stage request only moves up (the scavenger apart); both queues decide alike; a handle whose flow is
 * gone is refused; a full queue refuses and stays as it is; nothing is left over.
 *
 * stress SEED STEPS: prints how often each thing happened, exits non-zero with a line about what broke. */
#include <mfs/rmlq.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLOWS_MAX 512
#define DESTINATIONS 7
#define MUST(condition)                                                                                      \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "step %u, line %d: %s\n", step, __LINE__, #condition);               \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

struct known {
	mfs_flow_handle handle;
	uint16_t destination;
	uint8_t stage, best_level;
	bool critical, in_flight;
};

static uint64_t state;
static uint32_t step;
static struct mfs_rmlq *queue[2];
static struct known known[FLOWS_MAX];
static uint32_t flows, waiting, waiting_at[DESTINATIONS];
static bool closed[DESTINATIONS];
static uint64_t now;

static bool paper;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

/* The last one is the last there can be. */
static uint16_t name(uint32_t destination)
{
	return (uint16_t)(destination == DESTINATIONS - 1 ? MFS_DESTINATIONS_MAX - 1 : destination);
}

static void leaves(const struct known *flow)
{
	waiting--;
	waiting_at[flow->destination]--;
}

static uint64_t draw_time(void)
{
	return draw(4) ? draw(1000000000) : draw(3) ? 0 : UINT64_MAX - draw(3);
}

static void check_place(struct known *flow)
{
	struct mfs_pick a, b;

	MUST(mfs_rmlq_place(queue[0], flow->handle, &a) == 0 &&
	     mfs_rmlq_place(queue[1], flow->handle, &b) == 0);
	MUST(memcmp(&a, &b, sizeof(a)) == 0);
	MUST(a.in_flight == flow->in_flight && a.wire_class < 5 && a.destination == name(flow->destination));
	if (flow->in_flight || flow->stage != MFS_STAGE_P2D || a.tier == MFS_TIER_SCAVENGER)
		return;
	MUST(paper ? a.level >= 1 && a.level <= flow->best_level : a.level == 0);
	flow->best_level = a.level;
	if (!paper && a.tier == MFS_TIER_LAST)
		return; /* a critical one that is lost stands here until it can make it again */
	MUST(!flow->critical || a.tier == MFS_TIER_CRITICAL);
	flow->critical = a.tier == MFS_TIER_CRITICAL;
}

static void forget(uint32_t i)
{
	mfs_flow_handle gone = known[i].handle;
	struct mfs_pick pick;

	if (!known[i].in_flight)
		leaves(&known[i]);
	known[i] = known[--flows];
	for (int q = 0; q < 2; q++)
		MUST(mfs_rmlq_place(queue[q], gone, &pick) == -ENOENT &&
		     mfs_rmlq_cancel(queue[q], gone) == -ENOENT &&
		     mfs_rmlq_take(queue[q], gone, now, &pick) == -ENOENT &&
		     mfs_rmlq_complete(queue[q], gone, 1) == -ENOENT);
}

static void submit(void)
{
	uint32_t destination = draw(2) ? (uint32_t)draw(DESTINATIONS) : 0;
	struct mfs_flow flow = { .bytes = draw(10) ? draw(1 << 20) : draw(MFS_FLOW_BYTES_MAX + 1),
				 .request = draw(30),
				 .batch = draw(6),
				 .deadline_ns = draw(3) ? now + draw_time() : draw_time(),
				 .cookie = step,
				 .layer = (uint16_t)draw(draw(5) ? 12 : 65536),
				 .destination = name(destination),
				 .stage = draw(3) ? MFS_STAGE_P2D : (uint8_t)draw(7),
				 .bytes_left = draw(2) ? 0 : draw(MFS_FLOW_BYTES_MAX) };
	mfs_flow_handle handle[2] = { 0, 0 };

	for (int q = 0; q < 2; q++) {
		int rc = mfs_rmlq_submit(queue[q], &flow, now, &handle[q]);

		MUST(rc == (flows == FLOWS_MAX ? -ENOSPC : 0));
		if (rc)
			MUST(handle[q] == 0 && mfs_rmlq_waiting(queue[q]) == waiting);
	}
	if (flows == FLOWS_MAX)
		return;
	MUST(handle[0] && handle[0] == handle[1]);
	for (uint32_t i = 0; i < flows; i++)
		MUST(known[i].handle != handle[0]);
	known[flows++] =
		(struct known){ .handle = handle[0], .destination = (uint16_t)destination, .stage = flow.stage,
				.best_level = MFS_LEVELS_MAX };
	waiting++;
	waiting_at[destination]++;
}

static void close_or_open(void)
{
	uint32_t destination = (uint32_t)draw(DESTINATIONS);

	closed[destination] = draw(2);
	for (int q = 0; q < 2; q++)
		(closed[destination] ? mfs_rmlq_destination_close : mfs_rmlq_destination_open)(queue[q],
											       name(destination));
}

static void take(uint32_t i)
{
	struct mfs_pick a, b;
	int rc = mfs_rmlq_take(queue[0], known[i].handle, now, &a);

	MUST(mfs_rmlq_take(queue[1], known[i].handle, now, &b) == rc);
	MUST(rc == (known[i].in_flight ? -ENOENT : 0));
	if (rc)
		return;
	MUST(memcmp(&a, &b, sizeof(a)) == 0 && a.handle == known[i].handle);
	known[i].in_flight = true;
	leaves(&known[i]);
}

static void pick(void)
{
	struct mfs_pick a, b;
	uint32_t i, open = 0;
	int rc = mfs_rmlq_pick(queue[0], now, &a);

	MUST(mfs_rmlq_pick(queue[1], now, &b) == rc);
	for (i = 0; i < DESTINATIONS; i++)
		open += closed[i] ? 0 : waiting_at[i];
	MUST(rc == (open ? 0 : -EAGAIN));
	if (rc)
		return;
	MUST(memcmp(&a, &b, sizeof(a)) == 0);
	for (i = 0; known[i].handle != a.handle; i++)
		MUST(i + 1 < flows);
	MUST(!known[i].in_flight && !closed[known[i].destination]);
	known[i].in_flight = true;
	leaves(&known[i]);
}

static void tell(void)
{
	struct mfs_batch_context batch = { (uint32_t)draw(14),
					   12,
					   draw(3) ? (uint32_t)draw(5) : MFS_RANK_NONE,
					   !draw(8),
					   draw(2) ? now + draw_time() : 0,
					   draw(2) ? draw_time() : 0 };
	struct mfs_request_context request = { draw(2) ? now + draw_time() : 0, draw(2) ? draw_time() : 0,
					       draw(MFS_FLOW_BYTES_MAX), draw(2) ? draw(UINT64_MAX) : 0 };
	uint64_t kind = draw(7), key = draw(30), rate = 1 + draw(UINT32_MAX);
	double rho = (double)draw(200) / 100 - 0.5;

	for (int q = 0; q < 2; q++) {
		if (kind == 0)
			MUST(mfs_rmlq_batch(queue[q], key % 6, &batch, now) == (key % 6 ? 0 : -EINVAL));
		else if (kind == 1)
			mfs_rmlq_batch_end(queue[q], key % 6);
		else if (kind == 2)
			MUST(mfs_rmlq_request(queue[q], key, &request, now) == (key ? 0 : -EINVAL));
		else if (kind == 3)
			mfs_rmlq_request_end(queue[q], key);
		else if (kind == 4)
			MUST(mfs_rmlq_prune(queue[q], key) == (key ? 0 : -EINVAL));
		else if (kind == 5)
			mfs_rmlq_unprune(queue[q], key);
		else
			MUST(!mfs_rmlq_set_load(queue[q], rho) && !mfs_rmlq_set_rate(queue[q], rate));
	}
}

static void end_all(void)
{
	struct mfs_rmlq_stats stats;

	if (draw(2))
		while (waiting) { /* those to closed destinations, too, when these open */
			pick();
			close_or_open();
		}
	while (flows) {
		MUST(mfs_rmlq_cancel(queue[0], known[0].handle) == 0 &&
		     mfs_rmlq_cancel(queue[1], known[0].handle) == 0);
		forget(0);
	}
	for (int q = 0; q < 2; q++) {
		for (uint64_t key = 1; key < 30; key++) {
			mfs_rmlq_request_end(queue[q], key);
			mfs_rmlq_batch_end(queue[q], key);
		}
		mfs_rmlq_stats(queue[q], &stats);
		MUST(!stats.requests && !stats.batches && !stats.in_flight_bytes && !stats.in_flight_tasks);
		MUST(mfs_rmlq_advance(queue[q], now) == MFS_TIME_NEVER);
	}
}

int main(int argc, char **argv)
{
	uint32_t count[5] = { 0 }, steps = argc == 3 ? (uint32_t)atoi(argv[2]) : 0;
	struct mfs_policy policy;

	state = argc == 3 ? strtoull(argv[1], NULL, 10) * 2654435761u + 1 : 1;
	mfs_policy_default(&policy, 5);
	paper = state % 2 == 0;
	policy.variant = paper ? MFS_VARIANT_PAPER : MFS_VARIANT_MFS;
	MUST(!mfs_rmlq_create(&policy, 1000000000, FLOWS_MAX, &queue[0]) &&
	     !mfs_rmlq_create(&policy, 1000000000, FLOWS_MAX, &queue[1]));
	for (int q = 0; q < 2 && state % 3 == 0; q++)
		mfs_rmlq_set_incoming(queue[q]);
	for (step = 0; step < steps; step++) {
		/* waves: some thousand steps in which the queue fills, then some in which it drains */
		uint32_t kind = (uint32_t)draw(step / 3000 % 2 ? 8 : 16);

		now += draw(20) ? draw(100000) : draw(1000000000);
		count[kind < 2 ? 0 : kind < 4 ? 1 : kind < 6 ? 2 : kind < 8 ? 3 : 4]++;
		if (!draw(8))
			close_or_open();
		if (!draw(30) && flows)
			take((uint32_t)draw(flows));
		if (kind < 2) {
			pick();
		} else if (kind < 4 && flows) {
			uint32_t i = (uint32_t)draw(flows);
			uint64_t bytes = draw(2) ? UINT64_MAX : draw(100000);
			int rc = mfs_rmlq_complete(queue[0], known[i].handle, bytes);

			MUST(rc >= 0 && mfs_rmlq_complete(queue[1], known[i].handle, bytes) == rc);
			if (rc == 1)
				forget(i);
		} else if (kind < 8) {
			tell();
		} else {
			submit();
		}
		MUST(mfs_rmlq_advance(queue[0], now) == mfs_rmlq_advance(queue[1], now));
		MUST(mfs_rmlq_advance(queue[0], now) > now);
		MUST(mfs_rmlq_waiting(queue[0]) == waiting);
		for (uint32_t i = 0; i < DESTINATIONS; i++)
			MUST(mfs_rmlq_waiting_at(queue[0], name(i)) == waiting_at[i]);
		if (flows)
			check_place(&known[draw(flows)]);
		if (step % 5000 == 4999)
			end_all();
	}
	end_all();
	mfs_rmlq_destroy(queue[0]);
	mfs_rmlq_destroy(queue[1]);
	printf("picks %u completes %u promotes-and-tells %u tells %u submits %u\n", count[0], count[1],
	       count[2], count[3], count[4]);
	return 0;
}
