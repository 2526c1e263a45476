/* A turn visits only the directions that are in use. Random programs use many NICs: every direction at
 * which something may happen is visited, and none at which nothing is left to do. argv: seed. Exits 0 if
 * that holds. */
#include "arbiter_clock.h"

#define MS 1000000ull
#define NICS 40u /* their directions have bits in both halves of a set */
#define PROGRAMS 6u
#define SLOTS 128u
#define STEPS 20000u

enum life { FREE, WAITS, FLIES };

static struct program {
	struct session *session;
	uint32_t generation[SLOTS];
	uint8_t life[SLOTS];
	bool granted[SLOTS];
} program[PROGRAMS];

static struct mfs_arbiter *arbiter;
static uint64_t random_state, submitted, granted;

static uint32_t random_below(uint32_t n)
{
	random_state += 0x9e3779b97f4a7c15ull;
	return (uint32_t)(mfs_mix64(random_state) % n);
}

static void attach(struct program *p)
{
	int memfd, doorbell, rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);

	must(rc > 0, "a client is added");
	*p = (struct program){.session = session_find(arbiter, (uint32_t)rc)};
	close(memfd);
	close(doorbell);
}

static void detach(struct program *p)
{
	must(mfs_arbiter_client_remove(arbiter, p->session->client_id) == 0, "a client is removed");
	attach(p);
}

static bool say(struct program *p, struct mfs_message message)
{
	struct mfs_segment *segment = p->session->segment;

	message.submit_ns = now_ns;
	message.batch = MFS_NONE_U32;
	return mfs_mpsc_push(&segment->submit[0], segment->submit_slot[0], MFS_SUBMIT_SLOTS, &message, 1) == 1;
}

static void submit(struct program *p, uint32_t slot)
{
	static const uint8_t stages[] = {MFS_STAGE_REUSE, MFS_STAGE_P2D, MFS_STAGE_P2D, MFS_STAGE_BACKGROUND};
	/* most tasks use a few NICs */
	uint32_t nic = random_below(4) ? random_below(3) * (NICS - 1) / 2 : random_below(NICS);
	struct mfs_message message = {
		.task = (uint64_t)++p->generation[slot] << 32 | slot,
		.bytes = 1 + random_below(300000),
		.queue = random_below(3),
		.request_id = random_below(8),
		.kind = MFS_MESSAGE_SUBMIT,
		.stage = stages[random_below(4)],
		.nic = (uint8_t)nic,
		.flags = random_below(2) ? MFS_TASK_INCOMING : 0,
		.peer = random_below(5),
		.wire_class = 5,
	};

	if (random_below(3) == 0)
		message.flags |= MFS_TASK_TAKEN;
	if (!say(p, message))
		return;
	submitted++;
	p->life[slot] = message.flags & MFS_TASK_TAKEN ? FLIES : WAITS;
}

static void end(struct program *p, uint32_t slot, uint8_t kind)
{
	if (say(p, (struct mfs_message){.task = (uint64_t)p->generation[slot] << 32 | slot,
					.kind = kind,
					.flags = kind == MFS_MESSAGE_CANCEL && random_below(2) ? MFS_TASK_BYPASSED : 0}))
		p->life[slot] = FREE;
}

static void permits_take(struct program *p)
{
	struct mfs_segment *segment = p->session->segment;
	struct mfs_grant grant;

	while (mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, &grant, 1) == 1) {
		uint32_t slot = (uint32_t)grant.task;

		if (p->generation[slot] == (uint32_t)(grant.task >> 32) && p->life[slot] == WAITS) {
			p->life[slot] = FLIES;
			granted++;
		}
	}
}

static bool is_active(uint32_t direction)
{
	return arbiter->active_directions >> direction & 1;
}

/* Checks that a turn over all directions would find nothing to do at those that are not visited. */
static void none_is_left_out(void)
{
	for (uint32_t i = 0; i < directions_count(arbiter); i++) {
		const struct direction *direction = direction_at(arbiter, i);
		bool idle = mfs_rmlq_waiting(direction->queue) == 0;
		bool open = arbiter->config.mode == MFS_MODE_ENFORCE && idle;

		must(is_active(i) || !direction->dirty, "one that was touched is visited");
		must(is_active(i) || direction->evaluate_ns == MFS_TIME_NEVER, "one with a time is visited");
		must(is_active(i) || idle, "one where something waits is visited");
		must(is_active(i) || (!direction->flight_first && !mfs_window_in_flight(direction->window)),
		     "one with something in flight is visited");
		must(is_active(i) || open == direction->open, "one whose credit is to change is visited");
		must(!(arbiter->used_directions >> i & 1) == !direction->holders, "those with holders are known");
	}
	must(!(arbiter->active_directions >> (directions_count(arbiter) - 1) >> 1), "there are no others");
}

static void pass(uint64_t ns)
{
	now_ns += ns;
	none_is_left_out();
	turn(arbiter, true);
	none_is_left_out();
	for (uint32_t i = 0; i < PROGRAMS; i++)
		permits_take(&program[i]);
}

static void collectives(struct program *p)
{
	struct mfs_usage *usage = mfs_usage_of(p->session->segment, random_below(NICS));
	uint64_t posted = atomic_load(&usage->posted.bytes[MFS_STAGE_COLLECTIVE]);

	if (random_below(2))
		atomic_store(&usage->posted.bytes[MFS_STAGE_COLLECTIVE], posted + random_below(5000000));
	else
		atomic_store(&usage->completed.bytes[MFS_STAGE_COLLECTIVE], posted);
}

static void change(void)
{
	static const enum mfs_mode modes[] = {MFS_MODE_ENFORCE, MFS_MODE_OBSERVE, MFS_MODE_ENFORCE};
	struct program *p = &program[random_below(PROGRAMS)];
	char name[16];

	switch (random_below(5)) {
	case 0:
		must(mfs_arbiter_mode(arbiter, modes[random_below(3)]) == 0, "the mode is changed");
		break;
	case 1:
		snprintf(name, sizeof(name), "rdma%u", random_below(NICS));
		must(mfs_arbiter_nic(arbiter, name, 1, 500000000 + random_below(1000000000)) >= 0, "a rate is changed");
		break;
	case 2:
		detach(p);
		break;
	default:
		collectives(p);
	}
	none_is_left_out();
}

static void step(void)
{
	struct program *p = &program[random_below(PROGRAMS)];

	for (uint32_t n = random_below(4); n > 0; n--) {
		uint32_t slot = random_below(SLOTS);

		if (p->life[slot] == FREE)
			submit(p, slot);
		else if (p->life[slot] == FLIES)
			end(p, slot, MFS_MESSAGE_COMPLETE);
		else if (random_below(4) == 0)
			end(p, slot, MFS_MESSAGE_CANCEL);
	}
	if (random_below(50) == 0)
		change();
	pass(random_below(100) ? random_below(random_below(2) ? 1000 : 20000) : random_below(20) * MS);
}

static bool all_are_free(void)
{
	bool free = true;

	for (uint32_t i = 0; i < PROGRAMS; i++)
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			free &= program[i].life[slot] == FREE;
	return free;
}

/* Everything that waits is permitted without another message about it. In the end no direction is visited. */
static void drain(void)
{
	must(mfs_arbiter_mode(arbiter, MFS_MODE_ENFORCE) == 0, "the mode is changed");
	for (unsigned n = 0; !all_are_free(); n++) {
		must(n < 100000, "what waits is permitted");
		for (uint32_t i = 0; i < PROGRAMS; i++)
			for (uint32_t slot = 0; slot < SLOTS; slot++)
				if (program[i].life[slot] == FLIES)
					end(&program[i], slot, MFS_MESSAGE_COMPLETE);
		pass(100000);
	}
	for (unsigned n = 0; n < 100; n++)
		pass(MS);
	must(!arbiter->active_directions, "none is visited where nothing goes on");
	must(arbiter->used_directions, "some have credit yet");
	for (unsigned n = 0; n < 1200; n++)
		pass(10 * MS);
	must(!arbiter->used_directions && !arbiter->active_directions, "and lose it when they are not used");
}

/* If there are more permits than one turn gives, the thread does not sleep before it has given them. */
static void a_turn_that_did_not_give_all(void)
{
	must(mfs_arbiter_mode(arbiter, MFS_MODE_OBSERVE) == 0, "the mode is changed");
	for (uint32_t i = 0; i < PROGRAMS; i++) {
		program[i].session->rings = RINGS_ALL; /* so that one turn reads all */
		for (uint32_t slot = 0; slot < MESSAGES_PER_TURN; slot++)
			must(say(&program[i], (struct mfs_message){.task = (uint64_t)++program[i].generation[slot] << 32 | slot,
								   .bytes = 1,
								   .kind = MFS_MESSAGE_SUBMIT,
								   .stage = MFS_STAGE_P2D,
								   .nic = NICS - 1}),
			     "a ring has room");
	}
	granted = arbiter->grants;
	pass(1);
	must(arbiter->grants > granted && arbiter->grants < granted + PROGRAMS * MESSAGES_PER_TURN, "one turn does not give all");
	heartbeats_due(arbiter, now_ns + 3600000 * MS);
	alarm(30);
	must(!sleep_until_event(arbiter), "the thread goes on at once"); /* otherwise it sleeps until the alarm */
	alarm(0);
	pass(1);
	must(arbiter->grants == granted + PROGRAMS * MESSAGES_PER_TURN, "and gives the rest");
}

int main(int argc, char **argv)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10 * MS, .stale_after_ns = 40 * MS, .max_hold_ns = 250 * MS, .window_ns = 200000,
		.window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2 * MS, .spin_ns = 50000, .torn_slot_ns = 10 * MS,
		.load_time_constant_ns = 10 * MS, .rate_default_bytes_per_s = 1000000000, .tasks_max = 4096,
		.mode = MFS_MODE_ENFORCE,
	};

	random_state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
	now_ns = arbiter_real_clock_ns() + 1000 * MS;
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "an arbiter is made");
	for (uint32_t i = 0; i < NICS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "rdma%u", i);
		must(mfs_arbiter_nic(arbiter, name, 1, 0) == (int)i, "a NIC is made");
	}
	for (uint32_t i = 0; i < PROGRAMS; i++)
		attach(&program[i]);
	for (unsigned n = 0; n < STEPS; n++)
		step();
	must(submitted > STEPS / 4 && granted > STEPS / 20, "much goes on");
	drain();
	a_turn_that_did_not_give_all();
	mfs_arbiter_destroy(arbiter);
	return 0;
}
