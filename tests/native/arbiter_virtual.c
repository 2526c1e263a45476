/* What other programs may take from one that does nothing wrong. A victim sends as much as it is
 * permitted, on the link and by the clock of virtual_arbiter.h. Meanwhile the programs of a scenario
 * attack it, or have bad luck.
 *
 * arbiter_virtual SCENARIO prints "victim BYTES" and other results of the scenario; `alone` is the
 * reference for the victim. */
#include "virtual_arbiter.h"

#define END_NS 1500000000ull
#define ATTACKERS_MAX 4

static struct program victim, attacker[ATTACKERS_MAX];
static bool victim_wanders; /* names a new peer with every message */
static bool victim_sleeps;
static uint64_t victim_still;    /* slots of its tasks for a peer that is stopped */
static bool victim_sends_slowly; /* also sends to a slow destination */

static int slow_in_flight(void)
{
	int n = 0;

	for (uint32_t slot = 0; slot < SLOTS; slot++)
		n += victim.busy >> slot & 1 && victim.slot_destination[slot] == 1;
	return n;
}

static void victim_step(void)
{
	static uint32_t peers;

	permits_take(&victim, true);
	for (unsigned n = 0; victim_sends_slowly && n < 2 && slow_in_flight() < DEPTH; n++)
		submit(&victim, MESSAGE, 1, 2, 0);
	while (!victim_sleeps && __builtin_popcountll(victim.busy & ~victim_still) - slow_in_flight() < DEPTH)
		submit(&victim, MESSAGE, 0, victim_wanders ? 1000000000 + ++peers : 1, 0);
}

static bool every(uint64_t step, uint64_t period_ns)
{
	return step * STEP_NS % period_ns == 0;
}

static void count(struct program *program, enum mfs_stage stage, uint64_t bytes)
{
	atomic_fetch_add(&program->session->segment->usage[0].posted.bytes[stage], bytes);
}

/* ---- peers and programs that do not answer --------------------------------------------------------------------------- */

/* Large tasks that never end, and small ones that do. */
static void dead_peer_of(struct program *program, uint64_t step, uint32_t peer)
{
	permits_take(program, false);
	if (step == 0)
		for (unsigned i = 0; i < 10; i++)
			submit(program, 240000, 1, peer, 0);
	if (step % 20 == 1) {
		int slot = submit(program, 1024, 2, 0, MFS_TASK_TAKEN);

		if (slot >= 0)
			complete(program, (uint32_t)slot);
	}
}

static void dead_peer(uint64_t step)
{
	dead_peer_of(&attacker[0], step, 77);
}

static void dead_peer_shared(uint64_t step)
{
	dead_peer_of(&attacker[0], step, 1);
}

/* Large tasks that never end. Those that waited when the first was written off do not go faster for that. */
static void dead_peer_large(uint64_t step)
{
	permits_take(&attacker[0], false);
	while (__builtin_popcountll(attacker[0].busy) < SLOTS && step % 10 == 0)
		submit(&attacker[0], 4u << 20, 1, 77, 0);
}

/* Keeps each permit for `hold_ns`, moves nothing, and then reports the task as complete. */
static void permits_keep(struct program *program, uint64_t hold_ns)
{
	static uint64_t permitted_ns[ATTACKERS_MAX][SLOTS];
	uint64_t *since_ns = permitted_ns[program - attacker];
	struct mfs_segment *segment = program->session->segment;
	struct mfs_grant grant;

	while (mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, &grant, 1) == 1)
		since_ns[(uint32_t)grant.task] = now_ns;
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		if (since_ns[slot] && now_ns - since_ns[slot] >= hold_ns) {
			since_ns[slot] = 0;
			complete(program, slot);
		}
}

/* Claims permits and moves nothing. Each task names a peer of its own. */
static void claims_at(uint32_t bytes, uint64_t hold_ns, enum mfs_stage stage)
{
	permits_keep(&attacker[0], hold_ns);
	for (uint32_t slot = 0; slot < SLOTS; slot++)
		if (!(attacker[0].busy >> slot & 1))
			submit_message(&attacker[0],
				       (struct mfs_message){.bytes = bytes,
							    .peer = 100 + slot,
							    .stage = (uint8_t)stage},
				       1);
}

static void claims(uint32_t bytes)
{
	claims_at(bytes, 40000000, MFS_STAGE_P2D);
}

static void claims_small(uint64_t step)
{
	(void)step;
	claims(MESSAGE);
}

static void claims_2mb(uint64_t step)
{
	(void)step;
	claims(2000000);
}

/* Claims of background traffic, which goes after everything else. Each is complete when its bytes would be
 * through: a byte takes a nanosecond. */
static void claims_background_message(uint64_t step)
{
	(void)step;
	claims_at(MESSAGE, MESSAGE, MFS_STAGE_BACKGROUND);
}

static void claims_background_two_windows(uint64_t step)
{
	(void)step;
	claims_at(400000, 400000, MFS_STAGE_BACKGROUND);
}

static void claims_background_2mb(uint64_t step)
{
	(void)step;
	claims_at(2000000, 2000000, MFS_STAGE_BACKGROUND);
}

static void claims_4mib(uint64_t step)
{
	(void)step;
	claims(4u << 20);
}

static void claims_1gib(uint64_t step)
{
	(void)step;
	claims(1u << 30);
}

/* The victim itself always has tasks for a peer that is stopped, and cancels each after 250 ms. */
static void own_peer_stopped(uint64_t step)
{
	static uint64_t since_ns[SLOTS];
	(void)step;

	for (uint32_t slot = 0; slot < SLOTS; slot++)
		if (victim_still >> slot & 1 && now_ns - since_ns[slot] >= 250000000) {
			victim_still &= ~(1ull << slot);
			victim.busy &= ~(1ull << slot);
			send_message(&victim,
				     (struct mfs_message){.task = (uint64_t)victim.generation[slot] << 32 |
								  slot,
							  .batch = MFS_NONE_U32,
							  .kind = MFS_MESSAGE_CANCEL});
		}
	while (__builtin_popcountll(victim_still) < 2 * DEPTH) {
		int slot = submit(&victim, MESSAGE, STOPPED, 77, 0);

		victim_still |= 1ull << slot;
		since_ns[slot] = now_ns;
	}
}

/* Claims at the victim's destination, with more tasks always waiting. */
static void cycle(struct program *program, uint32_t bytes, uint64_t hold_ns)
{
	permits_keep(program, hold_ns);
	while (__builtin_popcountll(program->busy) < 16)
		submit(program, bytes, 0, 1, 0);
}

static void cycle_60ms(uint64_t step)
{
	(void)step;
	cycle(&attacker[0], MESSAGE, 60000000);
}

static void cycle_40ms(uint64_t step)
{
	(void)step;
	cycle(&attacker[0], MESSAGE, 40000000);
}

static void cycle_small(uint64_t step)
{
	(void)step;
	cycle(&attacker[0], 1, 40000000);
}

static void slow(uint64_t step)
{
	(void)step;
	permits_take(&attacker[0], true);
	while (__builtin_popcountll(attacker[0].busy) < DEPTH)
		submit(&attacker[0], MESSAGE, 1, 2, 0);
}

/* ---- counters ---------------------------------------------------------------------------------------------------------- */

static void byte_now_and_then(uint64_t step)
{
	if (every(step, 30000000))
		count(&attacker[0], MFS_STAGE_COLLECTIVE, 1);
}

static void byte_always(uint64_t step)
{
	if (every(step, 100000))
		count(&attacker[0], MFS_STAGE_COLLECTIVE, 1);
}

static void gigabyte_on_credit(uint64_t step)
{
	if (step == 0)
		submit(&attacker[0], 1u << 30, 1, 1, MFS_TASK_TAKEN);
	if (every(step, 100000000))
		count(&attacker[0], MFS_STAGE_COLLECTIVE, 1);
}

/* A message about a task in a slot that `struct program` does not track. */
static void taken_message(struct program *program, uint32_t slot, uint32_t generation,
			  enum mfs_message_kind kind, uint32_t bytes)
{
	send_message(program, (struct mfs_message){.task = (uint64_t)generation << 32 | slot,
						   .bytes = bytes,
						   .peer = 5 + slot,
						   .batch = MFS_NONE_U32,
						   .kind = (uint8_t)kind,
						   .stage = MFS_STAGE_P2D,
						   .flags = MFS_TASK_TAKEN});
}

/* Claims a hundred times the credit, without end. Nothing of it moves, and each task is complete 40 ms
 * later. */
static void credit_stream(uint64_t step)
{
	const uint32_t each = 10, periods = 41;
	uint32_t period = (uint32_t)(step / 200), slot = period % periods * each,
		 generation = period / periods + 1;

	if (step % 200)
		return;
	for (uint32_t i = 0; i < each; i++) {
		uint32_t late = (period + 1) % periods * each + i; /* submitted 40 periods ago */

		if (period + 1 >= periods)
			taken_message(&attacker[0], late, (period + 1) / periods, MFS_MESSAGE_COMPLETE, 0);
		taken_message(&attacker[0], slot + i, generation, MFS_MESSAGE_SUBMIT, 100000);
	}
}

/* Tasks that are complete at once. The victim has bytes in flight that take long. While these are under
 * way, bytes that are claimed to have gone in between must not seem to be still in the NIC. */
static void credit_churn(uint64_t step)
{
	victim_sends_slowly = true;
	for (uint32_t i = 0; i < 4; i++) {
		taken_message(&attacker[0], i, (uint32_t)step + 1, MFS_MESSAGE_SUBMIT, 100000);
		taken_message(&attacker[0], i, (uint32_t)step + 1, MFS_MESSAGE_COMPLETE, 0);
	}
}

static void alone_slowly(uint64_t step)
{
	(void)step;
	victim_sends_slowly = true;
}

static void clear_to_send(uint64_t step)
{
	if (every(step, 1000000))
		count(&attacker[0], MFS_STAGE_CONTROL, 64);
}

/* This looks the same as collectives that need all of the link. */
static void link_claimed(uint64_t step)
{
	(void)step;
	count(&attacker[0], MFS_STAGE_COLLECTIVE, RATE * STEP_NS / 1000000000);
}

static void counters_jump(uint64_t step)
{
	struct mfs_usage *usage = &attacker[0].session->segment->usage[0];

	if (every(step, 50000))
		atomic_store(&usage->posted.bytes[MFS_STAGE_COLLECTIVE], step % 3 ? UINT64_MAX - step : step);
	if (every(step, 70000))
		atomic_store(&usage->completed.bytes[MFS_STAGE_COLLECTIVE],
			     step % 2 ? 1ull << 43 : UINT64_MAX);
}

static void collectives(uint64_t step)
{
	if (every(step, 5000000)) {
		collective_began_ns = now_ns;
		collective_post(&attacker[0], 1000000);
	}
}

static void collectives_apart(uint64_t step)
{
	if (every(step, 5000000)) {
		collective_began_ns = now_ns;
		collective_post(&attacker[0], 250000);
	}
}

/* Sixteen messages, each a tenth of a millisecond after the previous one has arrived, then nothing for ten
 * milliseconds. */
static void collectives_in_rings(uint64_t step)
{
	static uint64_t at_ns;
	static unsigned done, posted;

	(void)step;
	if (collectives_done != done) {
		done = collectives_done;
		at_ns = now_ns + (done % 16 ? 100000 : 10000000);
	}
	if (posted != done || now_ns < at_ns)
		return;
	posted++;
	collective_began_ns = now_ns;
	collective_post(&attacker[0], 250000);
}

/* Collectives that begin at any moment of the traffic of others: `others` programs with 64 messages each,
 * to the slow destination, too. */
static void collectives_beside(uint64_t step, unsigned others, uint32_t bytes)
{
	static unsigned next;

	if (step % 1009 == 0) {
		collective_began_ns = now_ns;
		collective_post(&attacker[0], 250000);
	}
	for (unsigned i = 1; i <= others; i++) {
		permits_take(&attacker[i], true);
		for (; __builtin_popcountll(attacker[i].busy) < SLOTS; next++)
			submit(&attacker[i], bytes, (int)(next % DESTINATIONS), 100 * i + next % DESTINATIONS, 0);
	}
}

static void collectives_beside_small(uint64_t step)
{
	collectives_beside(step, 3, 10000);
}

static void collectives_beside_messages(uint64_t step)
{
	collectives_beside(step, 3, MESSAGE);
}

static void collectives_beside_large(uint64_t step)
{
	collectives_beside(step, 3, 1500000);
}

static void collectives_back_to_back(uint64_t step)
{
	(void)step;
	for (unsigned i = 0; i < wire_n; i++)
		if (wire[i].collective)
			return;
	collective_began_ns = now_ns;
	collective_post(&attacker[0], 1000000);
}

/* The attacker is given up while it has collectives, leaves, and comes back. */
static void comes_and_goes(uint64_t step)
{
	if (every(step, 100000000))
		count(&attacker[0], MFS_STAGE_COLLECTIVE, 1000);
	if (every(step + 15000, 100000000))
		send_message(&attacker[0], (struct mfs_message){.kind = UINT8_MAX});
	if (every(step + 9000, 100000000)) {
		mfs_arbiter_client_remove(arbiter, attacker[0].session->client_id);
		memset(&attacker[0], 0, sizeof(attacker[0]));
	}
	if (every(step + 5000, 100000000))
		attach(&attacker[0]);
}

/* ---- work for the arbiter ---------------------------------------------------------------------------------------------- */

static void batches(uint64_t step)
{
	if (step % 200 == 0)
		batch_write(attacker[0].session->segment, 0, 0, MFS_REQUESTS_MAX);
	for (unsigned i = 0; i < 64; i++)
		send_message(&attacker[0], (struct mfs_message){.batch = 0, .kind = MFS_MESSAGE_BATCH});
}

/* Changes all batches at each snapshot. A task names each of them, so that the queues know them. */
static void batches_change(uint64_t step)
{
	struct mfs_segment *segment = attacker[0].session->segment;

	permits_take(&attacker[0], false);
	for (uint32_t slot = 0; slot < MFS_BATCHES_MAX && step % 20 == 0; slot++) {
		batch_write(segment, slot, slot * 16, 16);
		if (step % 2000 == 0)
			send_message(&attacker[0],
				     (struct mfs_message){.task = (step / 2000 + 1) << 32 | slot,
							  .bytes = 1,
							  .peer = 5,
							  .batch = slot,
							  .kind = MFS_MESSAGE_SUBMIT,
							  .stage = MFS_STAGE_REUSE});
	}
}

static void demands_change(uint64_t step)
{
	for (uint32_t i = 0; i < MFS_DEMANDS_MAX / MFS_REQUEST_DEMANDS_MAX; i++) {
		if (step % 20 == 0)
			request_write(attacker[0].session->segment, i, MFS_NONE_U32, MFS_REQUEST_DEMANDS_MAX);
		send_message(&attacker[0], (struct mfs_message){.task = i, .kind = MFS_MESSAGE_REQUEST});
	}
}

/* ---- tables --------------------------------------------------------------------------------------------------------------- */

/* Keeps as many tasks waiting as there may be, with these properties. One after the other is cancelled and
 * submitted again. */
static void crowd(struct program *program, uint64_t step, enum mfs_stage stage, uint32_t peer, uint32_t queue,
		  uint64_t age_ns)
{
	static uint32_t next[ATTACKERS_MAX];
	uint32_t at = next[program - attacker]++, slot = at % (MFS_TASKS_MAX - SLOTS) + SLOTS;
	uint32_t generation = at / (MFS_TASKS_MAX - SLOTS) + 1;
	(void)step;

	if (generation > 1)
		send_message(program, (struct mfs_message){.task = (uint64_t)(generation - 1) << 32 | slot,
							   .kind = MFS_MESSAGE_CANCEL});
	send_message(program, (struct mfs_message){.task = (uint64_t)generation << 32 | slot,
						   .bytes = MESSAGE,
						   .peer = peer,
						   .queue = queue,
						   .submit_ns = now_ns - age_ns,
						   .batch = MFS_NONE_U32,
						   .kind = MFS_MESSAGE_SUBMIT,
						   .stage = (uint8_t)stage});
}

/* Names more peers than the table holds. Small tasks are permitted, too, and occupy the destinations that
 * they get. */
static void peers(uint64_t step)
{
	victim_wanders = true;
	victim_sleeps = step < 4000; /* until the attackers have filled the table */
	permits_take(&attacker[0], false);
	if (step % 100 == 0) {
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			if (attacker[0].busy >> slot & 1)
				complete(&attacker[0], slot);
		submit(&attacker[0], 1, 0, (uint32_t)step + 3000000, 0);
	}
	for (unsigned i = 0; i < ATTACKERS_MAX; i++)
		for (unsigned n = 0; n < 4; n++)
			crowd(&attacker[i], step, MFS_STAGE_BACKGROUND, (uint32_t)(step * 16 + i * 4 + n + 2),
			      0, 0);
}

static void queues(uint64_t step)
{
	for (unsigned n = 0; n < 8; n++)
		crowd(&attacker[0], step, MFS_STAGE_BACKGROUND, 5,
		      (uint32_t)(step * 8 + n) % MFS_TASK_QUEUE_MAX * 1024 % MFS_TASK_QUEUE_MAX + 1, 0);
}

/* Each task is reported as sent before all that wait. */
static void queue_backwards(uint64_t step)
{
	for (unsigned n = 0; n < 32; n++)
		crowd(&attacker[0], step, MFS_STAGE_BACKGROUND, 5, 9, (step * 32 + n) * 500 % 50000000000);
}

/* One queue pair to two peers: the tasks before a task in its queue pair have to go with it. */
static void queue_pair_split(uint64_t step)
{
	(void)step;
	permits_take(&attacker[0], false);
	while (__builtin_popcountll(attacker[0].busy) < SLOTS) {
		bool last = __builtin_popcountll(attacker[0].busy) == SLOTS - 1;

		submit_message(&attacker[0],
			       (struct mfs_message){.bytes = 4u << 20,
						    .peer = last ? 6 : 5,
						    .queue = 9,
						    .stage = last ? MFS_STAGE_REUSE : MFS_STAGE_P2D},
			       1);
	}
}

/* Reads and writes on one queue pair. */
static void queue_pair_both_ways(uint64_t step)
{
	(void)step;
	permits_take(&attacker[0], false);
	while (__builtin_popcountll(attacker[0].busy) < SLOTS) {
		bool last = __builtin_popcountll(attacker[0].busy) == SLOTS - 1;

		submit_message(&attacker[0],
			       (struct mfs_message){.bytes = 4u << 20,
						    .peer = 5,
						    .queue = 9,
						    .flags = last ? MFS_TASK_INCOMING : 0,
						    .stage = last ? MFS_STAGE_REUSE : MFS_STAGE_P2D},
			       1);
	}
}

static void several(uint64_t step)
{
	cycle(&attacker[0], MESSAGE, 40000000);
	dead_peer_of(&attacker[1], step, 1);
	if (every(step, 100000))
		count(&attacker[2], MFS_STAGE_COLLECTIVE, 1);
	for (unsigned n = 0; n < 4; n++)
		crowd(&attacker[3], step, MFS_STAGE_BACKGROUND, (uint32_t)(step * 4 + n + 2), 9,
		      step * 100 % 1000000000);
}

/* ---- */

static void alone(uint64_t step)
{
	(void)step;
}

static void alone_wandering(uint64_t step)
{
	(void)step;
	victim_wanders = true;
}

static const struct scenario {
	const char *name;
	void (*step)(uint64_t step);
} SCENARIOS[] = {
	{"alone", alone},
	{"alone-wandering", alone_wandering},
	{"dead-peer", dead_peer},
	{"dead-peer-shared", dead_peer_shared},
	{"dead-peer-large", dead_peer_large},
	{"claims-small", claims_small},
	{"claims-2mb", claims_2mb},
	{"claims-4mib", claims_4mib},
	{"claims-background-message", claims_background_message},
	{"claims-background-two-windows", claims_background_two_windows},
	{"claims-background-2mb", claims_background_2mb},
	{"claims-1gib", claims_1gib},
	{"own-peer-stopped", own_peer_stopped},
	{"cycle-60ms", cycle_60ms},
	{"cycle-40ms", cycle_40ms},
	{"cycle-small", cycle_small},
	{"slow", slow},
	{"byte-now-and-then", byte_now_and_then},
	{"byte-always", byte_always},
	{"gigabyte-on-credit", gigabyte_on_credit},
	{"credit-stream", credit_stream},
	{"credit-churn", credit_churn},
	{"alone-slowly", alone_slowly},
	{"clear-to-send", clear_to_send},
	{"link-claimed", link_claimed},
	{"counters-jump", counters_jump},
	{"collectives", collectives},
	{"collectives-apart", collectives_apart},
	{"collectives-in-rings", collectives_in_rings},
	{"collectives-beside-small", collectives_beside_small},
	{"collectives-beside-messages", collectives_beside_messages},
	{"collectives-beside-large", collectives_beside_large},
	{"collectives-back-to-back", collectives_back_to_back},
	{"comes-and-goes", comes_and_goes},
	{"batches", batches},
	{"batches-change", batches_change},
	{"demands-change", demands_change},
	{"peers", peers},
	{"queues", queues},
	{"queue-backwards", queue_backwards},
	{"queue-pair-split", queue_pair_split},
	{"queue-pair-both-ways", queue_pair_both_ways},
	{"several", several},
};

int main(int argc, char **argv)
{
	uint64_t longest_ns = 0, waited_ns = 0, bytes = 0, shared = 0;
	const struct scenario *scenario = SCENARIOS;
	uint32_t given_up = 0;

	must(argc == 2, "usage: arbiter_virtual SCENARIO");
	while (scenario < SCENARIOS + sizeof(SCENARIOS) / sizeof(*SCENARIOS) &&
	       strcmp(scenario->name, argv[1]))
		scenario++;
	must(scenario < SCENARIOS + sizeof(SCENARIOS) / sizeof(*SCENARIOS), "the scenario is known");
	arbiter_begin();
	attach(&victim);
	for (unsigned i = 0; i < ATTACKERS_MAX; i++)
		attach(&attacker[i]);
	destination_rate[1] = RATE / 20.0;
	for (uint64_t step = 0; step * STEP_NS < END_NS; step++) {
		scenario->step(step);
		victim_step();
		turn(arbiter, true);
		wire_step();
		for (uint32_t slot = 0; slot < SLOTS; slot++)
			shared += victim.session->task[slot].placed &&
				  victim.session->task[slot].destination == MFS_DESTINATION_SHARED;
		now_ns += STEP_NS;
		waited_ns = victim.bytes == bytes ? waited_ns + STEP_NS : 0;
		bytes = victim.bytes;
		longest_ns = waited_ns > longest_ns ? waited_ns : longest_ns;
	}
	must(victim.session->state == MFS_SEGMENT_ACTIVE, "the victim was not given up");
	for (unsigned i = 0; i < ATTACKERS_MAX; i++)
		given_up += attacker[i].session->state != MFS_SEGMENT_ACTIVE;
	printf("victim %llu\nlongest_us %llu\nslow %llu\ncollectives %u\ncollective_us %llu\nahead %llu\nread %llu\ngiven_up %u\nshared %llu\n",
	       (unsigned long long)victim.bytes, (unsigned long long)(longest_ns / 1000),
	       (unsigned long long)(attacker[0].moved[1] + victim.moved[1]), collectives_done,
	       (unsigned long long)(collectives_done ? collectives_ns / collectives_done / 1000 : 0),
	       (unsigned long long)collective_ahead_most,
	       (unsigned long long)arbiter->messages, given_up, (unsigned long long)shared);
	mfs_arbiter_destroy(arbiter);
	return 0;
}
