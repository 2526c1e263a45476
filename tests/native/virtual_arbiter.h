/* The arbiter under a clock of the test's own, with programs that are written here and a link. The link
 * carries what they post, at its rate and to destinations that may be slower. */
#ifndef VIRTUAL_ARBITER_H
#define VIRTUAL_ARBITER_H

#include "arbiter_clock.h"

#define RATE 1000000000ull /* bytes a second */
#define STEP_NS 5000ull
#define MESSAGE (256u << 10)
#define DEPTH 8
#define SLOTS 64 /* of the task table: those that a program here uses */
#define DESTINATIONS 8
#define STOPPED -1 /* a destination that takes nothing: no byte to it is seen on the link */

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
static double destination_rate[DESTINATIONS] = {RATE, RATE, RATE, RATE, RATE, RATE, RATE, RATE};

/* ---- programs ---------------------------------------------------------------------------------------------------------- */

struct program {
	struct session *session;
	uint32_t generation[SLOTS];
	uint64_t busy; /* slots, one bit each */
	uint64_t bytes;
	uint64_t moved[DESTINATIONS]; /* by destination */
	uint32_t slot_bytes[SLOTS];
	int slot_destination[SLOTS];
};

static struct mfs_arbiter *arbiter;

static inline void attach(struct program *program)
{
	int memfd, doorbell, rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);

	must(rc > 0, "a client is added");
	program->session = session_find(arbiter, (uint32_t)rc);
	close(memfd);
	close(doorbell);
}

/* Sends through the ring that threads share, which must have room. */
static inline void send_message(struct program *program, struct mfs_message message)
{
	struct mfs_segment *segment = program->session->segment;

	if (!message.submit_ns)
		message.submit_ns = now_ns;
	mfs_mpsc_push(&segment->submit[MFS_SUBMIT_SHARED], segment->submit_slot[MFS_SUBMIT_SHARED], MFS_SUBMIT_SLOTS, &message, 1);
}

/* Submits a task. Returns its slot, or -1 if all are in use. Fills in what the message leaves open. */
static inline int submit_message(struct program *program, struct mfs_message message, int destination)
{
	for (uint32_t slot = 0; slot < SLOTS; slot++) {
		if (program->busy >> slot & 1)
			continue;
		program->busy |= 1ull << slot;
		program->slot_bytes[slot] = (uint32_t)message.bytes;
		program->slot_destination[slot] = destination;
		message.task = (uint64_t)++program->generation[slot] << 32 | slot;
		message.batch = MFS_NONE_U32;
		message.kind = MFS_MESSAGE_SUBMIT;
		if (!message.stage)
			message.stage = MFS_STAGE_P2D;
		send_message(program, message);
		return (int)slot;
	}
	return -1;
}

static inline int submit(struct program *program, uint32_t bytes, int destination, uint32_t peer, uint8_t flags)
{
	return submit_message(program, (struct mfs_message){.bytes = bytes, .peer = peer, .flags = flags}, destination);
}

static inline void complete(struct program *program, uint32_t slot)
{
	program->busy &= ~(1ull << slot);
	send_message(program, (struct mfs_message){.task = (uint64_t)program->generation[slot] << 32 | slot,
						   .batch = MFS_NONE_U32,
						   .kind = MFS_MESSAGE_COMPLETE});
}

static inline void post(struct program *program, uint32_t slot)
{
	must(wire_n < sizeof(wire) / sizeof(*wire), "the wire has room");
	wire[wire_n++] = (struct posted){.program = program,
					 .left = program->slot_bytes[slot],
					 .slot = slot,
					 .destination = program->slot_destination[slot]};
}

static inline void permits_take(struct program *program, bool posts)
{
	struct mfs_segment *segment = program->session->segment;
	struct mfs_grant grant;

	while (mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, &grant, 1) == 1)
		if (posts && program->slot_destination[(uint32_t)grant.task] != STOPPED)
			post(program, (uint32_t)grant.task);
}

/* Returns the bytes that a collective finds ahead of it. Those that wait for a slow destination are not in
 * its way. */
static inline uint64_t wire_ahead(void)
{
	double bytes = 0;

	for (unsigned i = 0; i < wire_n; i++)
		if (!wire[i].collective && destination_rate[wire[i].destination] >= RATE)
			bytes += wire[i].left;
	return (uint64_t)bytes;
}

static uint64_t collective_ahead_most;

static inline void collective_post(struct program *program, uint64_t bytes)
{
	uint64_t ahead = wire_ahead();

	collective_ahead_most = ahead > collective_ahead_most ? ahead : collective_ahead_most;
	atomic_fetch_add(&program->session->segment->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE], bytes);
	wire[wire_n++] = (struct posted){.program = program, .left = (double)bytes, .collective = true, .slot = (uint32_t)bytes};
}

static unsigned collectives_done;
static uint64_t collectives_ns, collective_began_ns;

/* Max-min fair: what a destination cannot take, the others share. */
static inline void wire_step(void)
{
	unsigned at_destination[DESTINATIONS] = {0}, open = wire_n;
	bool settled[DESTINATIONS] = {false}, again = true;
	double left = RATE, fair = 0;

	for (unsigned i = 0; i < wire_n; i++)
		at_destination[wire[i].destination]++;
	while (again) {
		again = false;
		fair = open ? left / open : 0;
		for (unsigned d = 0; d < DESTINATIONS; d++) {
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
			for (uint32_t direction = 0; direction < directions_count(arbiter) && arbiter->nic[0].bell; direction++)
				direction_at(arbiter, direction)->dirty |= direction_at(arbiter, direction)->waits; /* as when the bell rings */
			collectives_done++;
			collectives_ns += now_ns - collective_began_ns;
			continue;
		}
		p.program->moved[p.destination] += p.program->slot_bytes[p.slot];
		p.program->bytes += p.program->slot_bytes[p.slot];
		complete(p.program, p.slot);
	}
}

/* ---- contexts: written anew each time ------------------------------------------------------------------------------------ */

/* One thread does everything here, so no memory order is needed. Its price would be most of a scenario's
 * time. */
#define PUT(place, value) atomic_store_explicit(place, value, memory_order_relaxed)
#define GET(place) atomic_load_explicit(place, memory_order_relaxed)

static inline void request_write(struct mfs_segment *segment, uint32_t i, uint32_t batch, uint32_t demands)
{
	for (uint32_t d = 0; d < demands; d++) {
		struct mfs_demand *demand = &segment->demand[i * demands + d];

		PUT(&demand->request, i + 1);
		PUT(&demand->next, d + 1 < demands ? i * demands + d + 2 : 0);
		PUT(&demand->bytes, 1 << 20);
		PUT(&demand->stage, MFS_STAGE_P2D);
	}
	PUT(&segment->request[i].demand, demands ? i * demands + 1 : 0);
	PUT(&segment->request[i].batch, batch);
	PUT(&segment->request[i].deadline_ns, now_ns + 1000000000);
	PUT(&segment->request[i].version, GET(&segment->request[i].version) + 1);
	PUT(&segment->request[i].request_id, i + 1);
}

static inline void batch_write(struct mfs_segment *segment, uint32_t slot, uint32_t first, uint32_t requests)
{
	for (uint32_t i = first; i < first + requests; i++)
		request_write(segment, i, slot, 0);
	PUT(&segment->batch[slot].layers, 32);
	PUT(&segment->batch[slot].requests, requests);
	PUT(&segment->batch[slot].version, GET(&segment->batch[slot].version) + 1);
	PUT(&segment->batch[slot].batch_id, slot + 7);
}

/* ---- the arbiter --------------------------------------------------------------------------------------------------------- */

static inline void arbiter_begin(void)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10000000, .stale_after_ns = 40000000, .max_hold_ns = 250000000, .window_ns = 200000,
		.window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2000000, .spin_ns = 50000, .torn_slot_ns = 10000000,
		.load_time_constant_ns = 10000000, .rate_default_bytes_per_s = RATE, .tasks_max = 65536, .mode = MFS_MODE_ENFORCE,
	};

	now_ns = arbiter_real_clock_ns() / STEP_NS * STEP_NS + 1000000000;
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "an arbiter is made");
	must(mfs_arbiter_nic(arbiter, "rdma0", 1, RATE) == 0, "a NIC is made");
}

/* Begins with two new programs. */
static inline void arbiter_begin_two(struct program *program, struct program *other)
{
	arbiter_begin();
	memset(program, 0, sizeof(*program));
	memset(other, 0, sizeof(*other));
	attach(program);
	attach(other);
}

#endif
