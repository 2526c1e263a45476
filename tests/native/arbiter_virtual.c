/* The arbiter under a clock of the test's: programs that are written here, and a link that carries what they post, at its
 * rate and to destinations that may be slower. A victim sends as much as it is permitted; what another program does must
 * not take that from it. Nothing here depends on how fast this machine is.
 *
 * arbiter_virtual SCENARIO prints "victim BYTES" and what else the scenario has to say; `alone` is the victim's measure.
 */
#define _GNU_SOURCE
#define arbiter_clock_ns arbiter_real_clock_ns
#include "../../csrc/arbiter_command.c"
#undef arbiter_clock_ns
uint64_t arbiter_clock_ns(void);
#undef _GNU_SOURCE
#include "../../csrc/arbiter.c"

#include <stdio.h>

#define RATE 1000000000ull /* bytes a second */
#define STEP_NS 5000ull
#define END_NS 3000000000ull
#define MESSAGE (256u << 10)
#define DEPTH 8
#define SLOTS 64

static uint64_t now_ns; /* begins a second after the true time, which commands use before the first turn */

uint64_t arbiter_clock_ns(void)
{
	return now_ns;
}

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "not so: %s\n", what);
	_exit(1);
}

/* ---- the link: fair among what is posted, each destination at its own rate at most ------------------------------------ */

struct posted {
	struct program *program;
	double left;
	uint32_t slot;
	int destination;
	bool collective;
};

static struct posted wire[4096];
static unsigned wire_n;
static double destination_rate[8] = {RATE, RATE, RATE, RATE, RATE, RATE, RATE, RATE};

/* ---- programs ---------------------------------------------------------------------------------------------------------- */

struct program {
	struct session *session;
	uint32_t generation[SLOTS];
	uint64_t busy; /* slots, one bit each */
	uint64_t bytes;
	uint64_t moved[8]; /* by destination */
	uint32_t slot_bytes[SLOTS];
	int slot_destination[SLOTS];
};

static struct mfs_arbiter *arbiter;

static void attach(struct program *program)
{
	int memfd, doorbell, rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);

	must(rc > 0, "a client is added");
	program->session = session_find(arbiter, (uint32_t)rc);
	close(memfd);
	close(doorbell);
}

static void send_message(struct program *program, struct mfs_message message)
{
	struct mfs_segment *segment = program->session->segment;

	message.submit_ns = now_ns;
	mfs_mpsc_push(&segment->submit[MFS_LANE_SHARED], segment->submit_slot[MFS_LANE_SHARED], MFS_LANE_SLOTS, &message, 1);
}

/* Answers the slot, or -1 when all are in use. */
static int submit(struct program *program, uint32_t bytes, int destination, uint32_t peer, uint8_t flags)
{
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		if (program->busy >> slot & 1)
			continue;
		program->busy |= 1ull << slot;
		program->slot_bytes[slot] = bytes;
		program->slot_destination[slot] = destination;
		send_message(program, (struct mfs_message){.task = (uint64_t)++program->generation[slot] << 32 | slot,
							   .bytes = bytes,
							   .peer = peer,
							   .batch = MFS_NONE_U32,
							   .kind = MFS_MESSAGE_SUBMIT,
							   .stage = MFS_STAGE_P2D,
							   .flags = flags});
		return (int)slot;
	}
	return -1;
}

static void complete(struct program *program, uint32_t slot)
{
	program->busy &= ~(1ull << slot);
	send_message(program, (struct mfs_message){.task = (uint64_t)program->generation[slot] << 32 | slot,
						   .batch = MFS_NONE_U32,
						   .kind = MFS_MESSAGE_COMPLETE});
}

static void post(struct program *program, uint32_t slot)
{
	must(wire_n < sizeof(wire) / sizeof(*wire), "the wire has room");
	wire[wire_n++] = (struct posted){.program = program,
					 .left = program->slot_bytes[slot],
					 .slot = slot,
					 .destination = program->slot_destination[slot]};
}

static void permits_take(struct program *program, bool posts)
{
	struct mfs_segment *segment = program->session->segment;
	struct mfs_grant grant;

	while (mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, &grant, 1) == 1)
		if (posts)
			post(program, (uint32_t)grant.task);
}

static void collective_post(struct program *program, uint64_t bytes)
{
	atomic_fetch_add(&program->session->segment->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE], bytes);
	wire[wire_n++] = (struct posted){.program = program, .left = (double)bytes, .collective = true, .slot = (uint32_t)bytes};
}

static unsigned collectives_done;
static uint64_t collectives_ns, collective_began_ns;

/* Max-min fair: what a destination cannot take, the others share. */
static void wire_step(void)
{
	unsigned at_destination[8] = {0}, open = wire_n;
	bool settled[8] = {false}, again = true;
	double left = RATE, fair = 0;

	for (unsigned i = 0; i < wire_n; i++)
		at_destination[wire[i].destination]++;
	while (again) {
		again = false;
		fair = open ? left / open : 0;
		for (unsigned d = 0; d < 8; d++) {
			if (!at_destination[d] || settled[d] || destination_rate[d] / at_destination[d] >= fair)
				continue;
			settled[d] = again = true;
			left -= destination_rate[d];
			open -= at_destination[d];
		}
	}
	for (unsigned i = 0; i < wire_n; i++) {
		unsigned d = wire[i].destination;

		wire[i].left -= (settled[d] ? destination_rate[d] / at_destination[d] : fair) * STEP_NS / 1e9;
	}
	for (unsigned i = 0; i < wire_n; i++) {
		struct posted p = wire[i];

		if (p.left > 0)
			continue;
		wire[i--] = wire[--wire_n];
		if (p.collective) {
			atomic_fetch_add(&p.program->session->segment->usage[0].completed.bytes[MFS_STAGE_COLLECTIVE], p.slot);
			for (uint32_t way = 0; way < ways_count(arbiter) && arbiter->nic[0].bell; way++)
				way_at(arbiter, way)->dirty |= way_at(arbiter, way)->waits; /* as when the bell is heard */
			collectives_done++;
			collectives_ns += now_ns - collective_began_ns;
			continue;
		}
		p.program->moved[p.destination] += p.program->slot_bytes[p.slot];
		p.program->bytes += p.program->slot_bytes[p.slot];
		complete(p.program, p.slot);
	}
}

/* ---- scenarios ----------------------------------------------------------------------------------------------------------- */

static struct program victim, other;

static void victim_step(uint32_t peer)
{
	permits_take(&victim, true);
	while (__builtin_popcountll(victim.busy) < DEPTH)
		submit(&victim, MESSAGE, 0, peer, 0);
}

static void batch_write(uint32_t requests)
{
	struct mfs_segment *segment = other.session->segment;

	for (uint32_t i = 0; i < requests; i++) {
		atomic_store(&segment->request[i].batch, 0);
		atomic_store(&segment->request[i].deadline_ns, now_ns + 1000000000);
		atomic_fetch_add(&segment->request[i].version, 1);
		atomic_store(&segment->request[i].request_id, i + 1);
	}
	atomic_store(&segment->batch[0].layers, 32);
	atomic_store(&segment->batch[0].requests, requests);
	atomic_fetch_add(&segment->batch[0].version, 1);
	atomic_store(&segment->batch[0].batch_id, 7);
}

static void other_step(const char *scenario, uint64_t step)
{
	uint64_t elapsed_ns = step * STEP_NS;
	_Atomic uint64_t *control = &other.session->segment->usage[0].posted.bytes[MFS_STAGE_CONTROL];
	_Atomic uint64_t *collective = &other.session->segment->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE];

	if (!strcmp(scenario, "dead-peer") || !strcmp(scenario, "dead-peer-shared")) {
		/* much that never ends, and small things that do */
		permits_take(&other, false);
		if (step == 0)
			for (unsigned i = 0; i < 10; i++)
				submit(&other, 240000, 1, !strcmp(scenario, "dead-peer") ? 77 : 1, 0);
		if (step % 20 == 1) {
			int slot = submit(&other, 1024, 2, 0, MFS_TASK_TAKEN);

			if (slot >= 0)
				complete(&other, (uint32_t)slot);
		}
	} else if (!strcmp(scenario, "late")) {
		/* asks at the victim's destination, and tells of each end 40 ms late */
		permits_take(&other, false);
		if (elapsed_ns % 40000000 == 0) {
			for (uint32_t slot = 0; slot < SLOTS; slot++)
				if (other.busy >> slot & 1)
					complete(&other, slot);
			for (unsigned i = 0; i < 8; i++)
				submit(&other, MESSAGE, 1, 1, 0);
		}
	} else if (!strcmp(scenario, "byte-now-and-then")) {
		if (elapsed_ns % 30000000 == 0)
			atomic_fetch_add(collective, 1);
	} else if (!strcmp(scenario, "byte-always")) {
		if (elapsed_ns % 100000 == 0)
			atomic_fetch_add(collective, 1);
	} else if (!strcmp(scenario, "gigabyte-on-credit")) {
		if (step == 0)
			submit(&other, 1u << 30, 1, 1, MFS_TASK_TAKEN);
		if (elapsed_ns % 100000000 == 0)
			atomic_fetch_add(collective, 1);
	} else if (!strcmp(scenario, "clear-to-send")) {
		if (elapsed_ns % 1000000 == 0)
			atomic_fetch_add(control, 64);
	} else if (!strcmp(scenario, "batches")) {
		for (unsigned i = 0; i < 64; i++) {
			if (step % 200 == 0)
				batch_write(MFS_REQUESTS_MAX);
			send_message(&other, (struct mfs_message){.batch = 0, .kind = MFS_MESSAGE_BATCH});
		}
	} else if (!strcmp(scenario, "slow")) {
		permits_take(&other, true);
		while (__builtin_popcountll(other.busy) < DEPTH)
			submit(&other, MESSAGE, 1, 2, 0);
	} else if (!strcmp(scenario, "collectives")) {
		if (elapsed_ns % 5000000 == 0) {
			collective_began_ns = now_ns;
			collective_post(&other, 1000000);
		}
	} else if (!strcmp(scenario, "collectives-back-to-back")) {
		bool moving = false;

		for (unsigned i = 0; i < wire_n; i++)
			moving |= wire[i].collective;
		if (!moving) {
			collective_began_ns = now_ns;
			collective_post(&other, 1000000);
		}
	} else {
		must(!strcmp(scenario, "alone"), "the scenario is known");
	}
}

int main(int argc, char **argv)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10000000, .stale_after_ns = 40000000, .max_hold_ns = 250000000, .window_ns = 200000,
		.window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2000000, .spin_ns = 50000, .torn_slot_ns = 10000000,
		.load_time_constant_ns = 10000000, .rate_default_bytes_per_s = RATE, .tasks_max = 65536, .mode = MFS_MODE_ENFORCE,
	};
	uint64_t longest_ns = 0, waited_ns = 0, bytes = 0;

	must(argc == 2, "usage: arbiter_virtual SCENARIO");
	now_ns = arbiter_real_clock_ns() / STEP_NS * STEP_NS + 1000000000;
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "an arbiter is made");
	attach(&victim);
	attach(&other);
	must(mfs_arbiter_nic(arbiter, "rdma0", 1, RATE) == 0, "a NIC is made");
	destination_rate[1] = RATE / 20.0;
	for (uint64_t step = 0; step * STEP_NS < END_NS; step++) {
		other_step(argv[1], step);
		victim_step(1);
		turn(arbiter, true);
		wire_step();
		now_ns += STEP_NS;
		waited_ns = victim.bytes == bytes ? waited_ns + STEP_NS : 0;
		bytes = victim.bytes;
		if (waited_ns > longest_ns)
			longest_ns = waited_ns;
	}
	must(victim.session->state == MFS_SEGMENT_ACTIVE && other.session->state == MFS_SEGMENT_ACTIVE, "nobody was given up");
	printf("victim %llu\nlongest_us %llu\nslow %llu\ncollectives %u\ncollective_us %llu\nread %llu\n",
	       (unsigned long long)victim.bytes, (unsigned long long)(longest_ns / 1000), (unsigned long long)other.moved[1],
	       collectives_done, (unsigned long long)(collectives_done ? collectives_ns / collectives_done / 1000 : 0),
	       (unsigned long long)arbiter->messages);
	mfs_arbiter_destroy(arbiter);
	return 0;
}
