/* What a program that floods the arbiter takes from another. A victim sends as much as it is permitted, as
 * in arbiter_virtual.c. A turn takes as long as what it has read, at COST_NS each.
 *
 * arbiter_floods SCENARIO [ATTACKERS] prints counts: the victim's permits, the messages received from the
 * attackers in all and at most in one turn, the requests that were read again, how many attackers were
 * given up, and the messages received from the attacker with the fewest. */
#include "virtual_arbiter.h"

#define END_NS 300000000ull
#define COST_NS 100      /* cost of a message and of reading a request */
#define CHANGE_NS 100000 /* time between changes of all contexts */
#define ATTACKERS_MAX 64

static struct program victim, attackers[ATTACKERS_MAX];
static struct program *attacker; /* the one whose turn it is */
static unsigned attackers_n = 1;
static uint64_t spent_ns, reread;

static void victim_step(void)
{
	permits_take(&victim, true);
	while (__builtin_popcountll(victim.busy) < DEPTH)
		submit(&victim, MESSAGE, 0, 1, 0);
}

static void push(uint32_t ring, struct mfs_message message)
{
	struct mfs_segment *segment = attacker->session->segment;

	message.submit_ns = now_ns;
	mfs_mpsc_push(&segment->submit[ring], segment->submit_slot[ring], MFS_SUBMIT_SLOTS, &message, 1);
}

/* True if the ring has room for two messages. */
static bool room(uint32_t ring)
{
	return attacker->session->segment->submit[ring].tail + 2 <= attacker->session->reader.ring[ring].head + MFS_SUBMIT_SLOTS;
}

/* Puts the same message into all rings until they are full. */
static void flood(enum mfs_message_kind kind, uint64_t task)
{
	for (uint32_t ring = 0; ring < MFS_SUBMIT_RINGS; ring++)
		while (room(ring))
			push(ring, (struct mfs_message){.task = task, .kind = (uint8_t)kind});
}

static void alone(void)
{
}

/* Floods all rings with tasks that are cancelled at once. */
static void tasks(void)
{
	static uint64_t nexts[ATTACKERS_MAX];
	uint64_t next = nexts[attacker - attackers];

	for (uint32_t ring = 0; ring < MFS_SUBMIT_RINGS; ring++)
		while (room(ring)) {
			uint64_t task = (next / MFS_TASKS_MAX + 1) << 32 | next % MFS_TASKS_MAX;

			next++;
			push(ring, (struct mfs_message){.task = task,
							.bytes = MESSAGE,
							.peer = 5,
							.batch = MFS_NONE_U32,
							.kind = MFS_MESSAGE_SUBMIT,
							.stage = MFS_STAGE_BACKGROUND});
			push(ring, (struct mfs_message){.task = task, .kind = MFS_MESSAGE_CANCEL});
		}
	nexts[attacker - attackers] = next;
}

/* Each of eight programs submits as many small tasks as the link would carry. One alone does not flood the
 * arbiter, all of them together do. */
static void steady(void)
{
	static uint64_t nexts[ATTACKERS_MAX];
	uint64_t *next = &nexts[attacker - attackers];

	for (unsigned n = 0; n < 3; n++) {
		uint32_t ring = (uint32_t)(*next % MFS_SUBMIT_RINGS);
		uint64_t task = (*next / MFS_TASKS_MAX + 1) << 32 | *next % MFS_TASKS_MAX;

		if (!room(ring))
			return;
		++*next;
		push(ring, (struct mfs_message){.task = task,
						.bytes = 1,
						.peer = 5,
						.batch = MFS_NONE_U32,
						.kind = MFS_MESSAGE_SUBMIT,
						.stage = MFS_STAGE_BACKGROUND});
		push(ring, (struct mfs_message){.task = task, .kind = MFS_MESSAGE_CANCEL});
	}
}

/* Completions of tasks that never existed. */
static void ends(void)
{
	flood(MFS_MESSAGE_COMPLETE, 7);
}

static void requests(void)
{
	flood(MFS_MESSAGE_REQUEST, 7);
}

static void batches(void)
{
	flood(MFS_MESSAGE_BATCH, 0);
}

static void unknown(void)
{
	flood(UINT8_MAX, 0);
}

/* The most contexts that there may be, which change all the time, and messages that name each of them. */
static void rereads(void)
{
	static uint32_t versions[ATTACKERS_MAX][MFS_REQUESTS_MAX];
	static uint64_t changes_ns[ATTACKERS_MAX];
	uint32_t *version = versions[attacker - attackers];
	uint64_t *change_ns = &changes_ns[attacker - attackers];
	const uint32_t each = MFS_REQUESTS_MAX / MFS_BATCHES_MAX;

	for (uint32_t slot = 0; slot < MFS_BATCHES_MAX && room(slot % MFS_SUBMIT_RINGS); slot++)
		push(slot % MFS_SUBMIT_RINGS, (struct mfs_message){.batch = slot, .kind = MFS_MESSAGE_BATCH});
	if (now_ns < *change_ns)
		return;
	*change_ns = now_ns + CHANGE_NS;
	for (uint32_t i = 0; i < MFS_REQUESTS_MAX; i++) {
		bool read = attacker->session->request[i].version != version[i];

		version[i] = attacker->session->request[i].version;
		reread += read;
		spent_ns += read ? COST_NS : 0;
	}
	for (uint32_t slot = 0; slot < MFS_BATCHES_MAX; slot++)
		batch_write(attacker->session->segment, slot, slot * each, each);
}

static const struct scenario {
	const char *name;
	void (*step)(void);
	bool by_itself; /* without a victim */
} SCENARIOS[] = {
	{"alone", alone, false},     {"tasks", tasks, false},	  {"ends", ends, false},       {"requests", requests, false},
	{"steady", steady, false},   {"batches", batches, false}, {"unknown", unknown, false}, {"rereads", rereads, false}, {"by-itself", tasks, true},
};

/* Returns the number of messages read from the program. */
static uint64_t received_of(const struct program *program)
{
	uint64_t messages = 0;

	for (uint32_t ring = 0; ring < MFS_SUBMIT_RINGS; ring++)
		messages += program->session->reader.ring[ring].head;
	return messages;
}

static uint64_t received(void)
{
	uint64_t messages = 0;

	for (unsigned i = 0; i < attackers_n; i++)
		messages += received_of(&attackers[i]);
	return messages;
}

int main(int argc, char **argv)
{
	const struct scenario *scenario = SCENARIOS, *end = SCENARIOS + sizeof(SCENARIOS) / sizeof(*SCENARIOS);
	uint64_t end_ns, most = 0, least = UINT64_MAX;
	unsigned given_up = 0;

	must(argc == 2 || argc == 3, "usage: arbiter_floods SCENARIO [ATTACKERS]");
	if (argc == 3)
		attackers_n = (unsigned)atoi(argv[2]);
	must(attackers_n <= ATTACKERS_MAX, "so many attackers are there");
	while (scenario < end && strcmp(scenario->name, argv[1]))
		scenario++;
	must(scenario < end, "the scenario is known");
	arbiter_begin();
	if (!scenario->by_itself)
		attach(&victim);
	for (unsigned i = 0; i < attackers_n; i++)
		attach(&attackers[i]);
	end_ns = now_ns + END_NS;
	while (now_ns < end_ns) {
		uint64_t before = received(), messages = arbiter->messages;

		for (unsigned i = 0; i < attackers_n; i++) {
			attacker = &attackers[i];
			scenario->step();
		}
		if (victim.session)
			victim_step();
		turn(arbiter, true);
		most = received() - before > most ? received() - before : most;
		spent_ns += (arbiter->messages - messages) * COST_NS;
		do {
			wire_step();
			now_ns += STEP_NS;
			spent_ns -= spent_ns < STEP_NS ? spent_ns : STEP_NS;
		} while (spent_ns >= STEP_NS);
	}
	must(!victim.session || victim.session->state == MFS_SEGMENT_ACTIVE, "the victim was not given up");
	for (unsigned i = 0; i < attackers_n; i++) {
		given_up += attackers[i].session->state != MFS_SEGMENT_ACTIVE;
		least = received_of(&attackers[i]) < least ? received_of(&attackers[i]) : least;
	}
	printf("permits %llu\nreceived %llu\nmost %llu\nreread %llu\ngiven_up %u\nleast %llu\n",
	       (unsigned long long)(victim.session ? victim.session->grants : 0), (unsigned long long)received(),
	       (unsigned long long)most, (unsigned long long)reread, given_up, (unsigned long long)least);
	mfs_arbiter_destroy(arbiter);
	return 0;
}
