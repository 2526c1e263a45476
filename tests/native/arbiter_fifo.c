/* Permits on one queue pair. A permit for a task releases everything that its program posted there before
 * it. So the first of these tasks is permitted, in the place and the class of the best one behind it.
 * Exits 0 if that holds. */
#include "virtual_arbiter.h"

#define OTHER_QUEUE 77

static struct program program, other;
static uint64_t sent; /* gives each message its own time */

/* Submits a task through the given ring, as another thread would. Returns the slot. */
static uint32_t send_on_ring(struct program *from, unsigned ring, struct mfs_message message)
{
	struct mfs_segment *segment = from->session->segment;
	uint32_t slot = (uint32_t)__builtin_ctzll(~from->busy);

	must(~from->busy, "a slot is free");
	from->busy |= 1ull << slot;
	from->slot_bytes[slot] = (uint32_t)message.bytes;
	message.task = (uint64_t)++from->generation[slot] << 32 | slot;
	message.kind = MFS_MESSAGE_SUBMIT;
	message.batch = MFS_NONE_U32;
	message.submit_ns = now_ns - 1000000 + ++sent;
	must(mfs_mpsc_push(&segment->submit[ring], segment->submit_slot[ring], MFS_SUBMIT_SLOTS, &message, 1) == 1, "a ring has room");
	return slot;
}

static uint32_t ask(unsigned ring, uint32_t queue, enum mfs_stage stage, uint8_t flags)
{
	return send_on_ring(&program, ring,
			    (struct mfs_message){.bytes = 100000, .queue = queue, .peer = 1, .stage = (uint8_t)stage, .flags = flags});
}

static void pass(uint64_t ns)
{
	now_ns += ns;
	turn(arbiter, true);
}

/* Returns the slot that is permitted next and its class; -1: none. */
static int permitted(struct program *whose, unsigned *wire_class)
{
	struct mfs_segment *segment = whose->session->segment;
	struct mfs_grant grant;

	if (mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, &grant, 1) != 1)
		return -1;
	*wire_class = (uint32_t)grant.class_epoch;
	return (int)(uint32_t)grant.task;
}

/* Occupies the link with another client's bytes, so that what is asked for next waits. Returns the slot. */
static uint32_t occupy(uint8_t flags)
{
	unsigned wire_class;
	uint32_t slot = send_on_ring(&other, MFS_SUBMIT_SHARED,
				     (struct mfs_message){.bytes = 1000000, .peer = 2, .stage = MFS_STAGE_P2D, .flags = flags});

	pass(1000);
	must(permitted(&other, &wire_class) == (int)slot, "the link is taken");
	return slot;
}

static void begin(void)
{
	arbiter_begin_two(&program, &other);
}

static void end(void)
{
	must(program.session->state == MFS_SEGMENT_ACTIVE && other.session->state == MFS_SEGMENT_ACTIVE, "no client was given up");
	mfs_arbiter_destroy(arbiter);
}

/* The class of a task that names no batch, so that no layer is near. */
static unsigned class_of(enum mfs_stage stage)
{
	return mfs_policy_class(&arbiter->config.policy, stage, UINT32_MAX);
}

/* The last of three tasks is the best. All three go before another program's task that was asked for
 * earlier, and in the class of the best. */
static void first_takes_the_place_of_the_best(void)
{
	unsigned wire_class = 99;
	uint32_t blocker, others, slot[3];

	begin();
	blocker = occupy(0);
	others = send_on_ring(&other, 0, (struct mfs_message){.bytes = 100000, .peer = 1, .queue = 5, .stage = MFS_STAGE_P2D});
	pass(1000);
	for (unsigned i = 0; i < 3; i++)
		slot[i] = ask(0, 5, i == 2 ? MFS_STAGE_REUSE : MFS_STAGE_P2D, 0);
	pass(1000);
	must(permitted(&program, &wire_class) == -1 && permitted(&other, &wire_class) == -1, "all wait");
	complete(&other, blocker);
	for (unsigned i = 0; i < 3; i++) {
		must(permitted(&other, &wire_class) == -1, "another program's that was asked for before goes after them");
		for (unsigned n = 0; n < 100 && permitted(&program, &wire_class) != (int)slot[i]; n++)
			pass(5000);
		must(wire_class == class_of(MFS_STAGE_REUSE), "each goes in the class of the best behind it");
		complete(&program, slot[i]);
		wire_class = 99;
	}
	for (unsigned n = 0; n < 100 && permitted(&other, &wire_class) != (int)others; n++)
		pass(5000);
	must(wire_class == class_of(MFS_STAGE_P2D), "and the other's in its own");
	end();
}

/* Tasks go in the order of sending, although the later one is in the ring that is read first. */
static void the_order_is_that_of_sending(void)
{
	unsigned wire_class;
	uint32_t blocker, first, second;

	begin();
	blocker = occupy(0);
	first = ask(MFS_SUBMIT_SHARED, 5, MFS_STAGE_P2D, 0);
	second = ask(0, 5, MFS_STAGE_REUSE, 0);
	program.session->reader.first = 0;
	for (unsigned n = 0; n < 100 && (program.session->task[first].phase != TASK_WAITING ||
					 program.session->task[second].phase != TASK_WAITING); n++)
		pass(1000);
	must(program.session->task[second].fifo_prev == first + 1, "the first is before the second, though it was read later");
	complete(&other, blocker);
	pass(5000);
	must(permitted(&program, &wire_class) == (int)first, "the first goes first");
	must(wire_class == class_of(MFS_STAGE_REUSE), "in the class of the second");
	end();
}

/* Passes turns until the program has a permit. Returns true if that is for `slot`. */
static bool comes(struct program *whose, uint32_t slot)
{
	unsigned wire_class;
	int found = -1;

	for (unsigned n = 0; n < 100 && found < 0; n++) {
		pass(5000);
		found = permitted(whose, &wire_class);
	}
	return found == (int)slot;
}

/* A read before a write on one queue pair waits only for the incoming direction. When the write is chosen,
 * the read goes first, whatever room there is for it. */
static void a_read_before_a_write(void)
{
	uint32_t blocker, read, write, others;

	begin();
	blocker = occupy(0);
	read = ask(0, 5, MFS_STAGE_P2D, MFS_TASK_INCOMING);
	write = ask(0, 5, MFS_STAGE_REUSE, 0);
	must(comes(&program, read), "the direction in is free: the read does not wait for the direction out");
	complete(&other, blocker);
	must(comes(&program, write), "then the write");
	complete(&program, read);
	complete(&program, write);
	pass(5000);

	occupy(MFS_TASK_INCOMING);
	blocker = occupy(0);
	read = ask(0, 5, MFS_STAGE_P2D, MFS_TASK_INCOMING);
	write = ask(0, 5, MFS_STAGE_REUSE, 0);
	others = send_on_ring(&other, 0, (struct mfs_message){.bytes = 100000, .peer = 3, .stage = MFS_STAGE_P2D});
	complete(&other, blocker);
	must(comes(&program, read), "the read goes when the write is chosen");
	must(comes(&program, write), "and then the write");
	must(comes(&other, others), "others' writes do not wait for them");
	end();
}

static uint64_t random_state = 0x9e3779b97f4a7c15ull;

static uint32_t chance(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 20) % n;
}

static uint32_t ask_and_read(uint32_t queue, enum mfs_stage stage)
{
	uint32_t slot = ask(0, queue, stage, 0);

	for (unsigned n = 0; n < 100 && program.session->task[slot].phase != TASK_WAITING; n++)
		pass(1000);
	return slot;
}

/* When tasks of a client were written off, its later tasks get a destination of their own. Those that
 * waited before that go first. */
static void since_others_were_written_off(void)
{
	uint32_t blocker, first, second;

	begin();
	blocker = occupy(0);
	first = ask_and_read(5, MFS_STAGE_P2D);
	session_direction_at(program.session, MFS_DIRECTION_OUT)->overdue_ns = now_ns;
	second = ask_and_read(5, MFS_STAGE_REUSE);
	must(program.session->task[first].destination != program.session->task[second].destination, "one peer, two destinations");
	complete(&other, blocker);
	must(comes(&program, first), "the first goes first");
	complete(&program, first);
	must(comes(&program, second), "then the second");
	end();
}

/* Queue pairs with both directions, any ring, any stage, cancelled tasks, late completions: permits come
 * in order, and no task is forgotten. */
static void never_out_of_order(void)
{
	uint64_t number[SLOTS] = {0}, waiting = 0, flying = 0, asked = 0, permits = 0;
	uint32_t queue[SLOTS] = {0};
	unsigned wire_class;
	int slot;

	begin();
	for (unsigned step = 0; step < 200000; step++) {
		for (unsigned n = chance(3); step < 190000 && n && ~program.busy; n--) {
			static const enum mfs_stage stages[] = {MFS_STAGE_P2D, MFS_STAGE_REUSE, MFS_STAGE_BACKGROUND};
			uint32_t q = chance(5), s = ask(chance(MFS_SUBMIT_RINGS), q, stages[chance(3)], chance(2) ? MFS_TASK_INCOMING : 0);

			number[s] = ++asked;
			queue[s] = q;
			waiting |= 1ull << s;
		}
		if (chance(1000) == 0)
			session_direction_at(program.session, chance(MFS_DIRECTIONS))->overdue_ns = chance(2) ? now_ns : 0;
		pass(5000);
		while ((slot = permitted(&program, &wire_class)) >= 0) {
			for (unsigned s = 0; s < SLOTS; s++)
				must(!(waiting >> s & 1) || !queue[slot] || queue[s] != queue[slot] || number[s] >= number[slot],
				     "no permit goes past an earlier task of its queue pair");
			waiting &= ~(1ull << slot);
			flying |= 1ull << slot;
			permits++;
		}
		for (unsigned s = 0; s < SLOTS; s++)
			if (flying >> s & 1 && chance(20) == 0) {
				flying &= ~(1ull << s);
				complete(&program, s);
			} else if (waiting >> s & 1 && chance(2000) == 0) {
				waiting &= ~(1ull << s);
				program.busy &= ~(1ull << s);
				send_message(&program, (struct mfs_message){.task = (uint64_t)program.generation[s] << 32 | s,
									    .kind = MFS_MESSAGE_CANCEL});
			}
	}
	must(asked > 10000 && permits > asked / 2 && !waiting, "all that was asked for and not given up was permitted");
	end();
}

int main(void)
{
	first_takes_the_place_of_the_best();
	the_order_is_that_of_sending();
	a_read_before_a_write();
	since_others_were_written_off();
	never_out_of_order();
	return 0;
}
