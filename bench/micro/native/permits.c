/* Measures what one permit costs the arbiter's thread. Prints JSON.
 *
 *   permits NICS IDLE_NICS ACTIVE ATTACHED QUEUE_PAIRS HELD TASKS ROUNDS
 *
 * The arbiter's own code runs in turns that are called from here. Between two turns the clients, which are
 * implemented here, take their permits, complete those tasks and submit the next. A round has TASKS tasks,
 * spread over the ACTIVE clients, the NICs and the queue pairs. The other ATTACHED clients send nothing,
 * and no task uses an IDLE_NIC. HELD tasks wait for collectives all the time; the measured tasks go beside
 * them, on lanes. Only the processor time of the turns is measured. It includes heartbeats, reviews and
 * load readings. There are more of these per permit than in a daemon, since time passes in the clients' own
 * work, too.
 */
#define _GNU_SOURCE
#include "../../../csrc/arbiter/arbiter.c"

#include <stdio.h>
#include <sys/mman.h>

#define TASKS_MOST 1000u
#define TASK_BYTES 1024u
#define PEERS 16u
#define RATE 50000000000ull /* bytes per second */
#define WARM_ROUNDS 20u
#define TURNS_MAX 1000u

struct client {
	struct session *session;
	uint32_t tasks; /* tasks of one round */
	uint32_t held;
	uint32_t generation[MFS_TASKS_MAX];
};

static struct mfs_arbiter *arbiter;
static struct client *clients;
static uint32_t nics, idle_nics, active, attached, queue_pairs, held, tasks;
static uint64_t turns, clock_ns; /* clock_ns: what reading the processor time costs */

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "permits: %s\n", what);
	_exit(1);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void clock_measure(void)
{
	clock_ns = UINT64_MAX;
	for (unsigned n = 0; n < 1000; n++) {
		uint64_t start_ns = cpu_ns(), ns = cpu_ns() - start_ns;

		clock_ns = ns < clock_ns ? ns : clock_ns;
	}
}

static void say(struct client *client, const struct mfs_message *message)
{
	struct mfs_segment *segment = client->session->segment;
	uint64_t one = 1;

	must(mfs_mpsc_push_owned(&segment->submit[0], segment->submit_slot[0], MFS_SUBMIT_SLOTS, message, 1) == 1,
	     "a client's ring is full");
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load(&segment->header.arbiter_asleep) && atomic_exchange(&segment->header.arbiter_asleep, MFS_AWAKE))
		must(write(client->session->doorbell, &one, sizeof(one)) == sizeof(one), "a bell does not ring");
}

static void submit(struct client *client, uint32_t slot, uint32_t number, uint64_t now_ns, bool waits)
{
	say(client, &(struct mfs_message){
			    .task = (uint64_t)++client->generation[slot] << 32 | slot,
			    .bytes = TASK_BYTES,
			    .queue = waits ? 0 : 1 + number % queue_pairs,
			    .request_id = 1 + (uint64_t)slot,
			    .submit_ns = now_ns,
			    .batch = MFS_NONE_U32,
			    .kind = MFS_MESSAGE_SUBMIT,
			    .stage = waits ? MFS_STAGE_BACKGROUND : MFS_STAGE_P2D,
			    .nic = (uint8_t)(number % nics),
			    .flags = waits ? 0 : MFS_TASK_CLASS_MARKED,
			    .peer = 1 + number % PEERS,
		    });
}

static void permits_drop(struct client *client)
{
	struct mfs_segment *segment = client->session->segment;
	struct mfs_grant grants[64];

	while (mfs_spmc_pop(&segment->grant, segment->grant_slot, MFS_GRANT_SLOTS, grants, 64) > 0)
		;
}

/* Posts collectives that never end, if tasks are to wait for them. */
static void collectives_post(void)
{
	for (uint32_t nic = 0; nic < nics && held; nic++)
		atomic_fetch_add_explicit(&mfs_usage_of(clients[0].session->segment, nic)->posted.bytes[MFS_STAGE_COLLECTIVE],
					  RATE / 20, memory_order_relaxed);
}

static uint64_t turns_until(uint64_t messages, uint64_t grants)
{
	uint64_t took_ns = 0;

	for (unsigned n = 0; arbiter->messages < messages || arbiter->grants < grants; n++) {
		uint64_t start_ns = cpu_ns();

		must(n < TURNS_MAX, "permits do not come");
		turn(arbiter, true);
		took_ns += cpu_ns() - start_ns - clock_ns;
		turns++;
	}
	return took_ns;
}

static uint64_t round_run(bool first)
{
	uint64_t messages = arbiter->messages + tasks * (first ? 1 : 2), now_ns = arbiter_clock_ns();
	uint64_t grants = arbiter->grants + tasks;
	uint32_t number = 0;

	collectives_post();
	for (uint32_t slot = 0; number < tasks; slot++) {
		for (uint32_t i = 0; i < active && number < tasks; i++, number++) {
			struct client *client = &clients[i];

			if (!first)
				say(client, &(struct mfs_message){
						    .task = (uint64_t)client->generation[slot] << 32 | slot,
						    .submit_ns = now_ns,
						    .batch = MFS_NONE_U32,
						    .kind = MFS_MESSAGE_COMPLETE,
					    });
			submit(client, slot, number, now_ns, false);
		}
	}
	return turns_until(messages, grants);
}

static void held_submit(void)
{
	uint32_t slot = TASKS_MOST / active + 1;

	for (uint32_t n = 0; n < held;) {
		uint64_t before = arbiter->messages;
		uint32_t some = 0;

		must(slot < MFS_TASKS_MAX, "more held tasks than the active clients have room for");
		collectives_post();
		for (uint32_t i = 0; i < active && n < held; i++, n++, some++)
			submit(&clients[i], slot, n, arbiter_clock_ns(), true);
		turns_until(before + some, 0);
		slot++;
	}
}

/* Touches all pages of a client's ring in advance, since page faults are no part of a permit's cost. */
static void populate(const void *from, size_t bytes)
{
	uintptr_t page = (uintptr_t)from & ~(uintptr_t)4095;

	madvise((void *)page, (uintptr_t)from + bytes - page, MADV_POPULATE_WRITE);
}

static uint32_t waiting(void)
{
	uint32_t n = 0;

	for (uint32_t direction = 0; direction < directions_count(arbiter); direction++)
		n += mfs_rmlq_waiting(direction_at(arbiter, direction)->queue);
	return n;
}

int main(int argc, char **argv)
{
	static const uint8_t dscp[MFS_CLASSES_MAX] = {48, 40, 34, 26, 18, 10, 8, 1};
	/* gate_max is long, so that posted collectives last even if this process waits for a core */
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10000000, .stale_after_ns = 40000000, .max_hold_ns = 250000000,
		.window_ns = 200000, .window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 10000000000,
		.spin_ns = 50000, .torn_slot_ns = 10000000, .load_time_constant_ns = 10000000,
		.rate_default_bytes_per_s = RATE, .tasks_max = 262144, .mode = MFS_MODE_ENFORCE,
	};
	uint64_t took_ns = 0, grants, turns_before;
	uint32_t rounds;

	must(argc == 9, "usage: permits NICS IDLE_NICS ACTIVE ATTACHED QUEUE_PAIRS HELD TASKS ROUNDS");
	nics = (uint32_t)atoi(argv[1]);
	idle_nics = (uint32_t)atoi(argv[2]);
	active = (uint32_t)atoi(argv[3]);
	attached = (uint32_t)atoi(argv[4]);
	queue_pairs = (uint32_t)atoi(argv[5]);
	held = (uint32_t)atoi(argv[6]);
	tasks = (uint32_t)atoi(argv[7]);
	rounds = (uint32_t)atoi(argv[8]);
	must(nics && nics + idle_nics <= MFS_NICS_MAX && active && active <= tasks && tasks <= TASKS_MOST && attached >= active && attached <= MFS_CLIENTS_MAX &&
		     queue_pairs && queue_pairs <= MFS_TASK_QUEUE_MAX && rounds,
	     "a number is out of range");
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "no arbiter could be made");
	must(mfs_arbiter_wire(arbiter, dscp) == 0, "classes could not be set");
	for (uint32_t i = 0; i < nics + idle_nics; i++) {
		char name[16];

		snprintf(name, sizeof(name), "rdma%u", i);
		must(mfs_arbiter_nic(arbiter, name, 0, RATE) == (int)i, "a NIC could not be made");
	}
	clients = calloc(attached, sizeof(*clients));
	must(clients, "no memory");
	for (uint32_t i = 0; i < attached; i++) {
		int memfd, doorbell, rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);

		must(rc > 0, "no memory for that many clients, or no descriptors");
		clients[i].session = session_find(arbiter, (uint32_t)rc);
		close(memfd);
		close(doorbell);
		populate(clients[i].session->segment->submit_slot[0], sizeof(clients[i].session->segment->submit_slot[0]));
		populate(clients[i].session->segment->grant_slot, sizeof(clients[i].session->segment->grant_slot));
	}
	clock_measure();
	round_run(true);
	held_submit();
	for (uint32_t i = 0; i < WARM_ROUNDS; i++) {
		for (uint32_t c = 0; c < active; c++)
			permits_drop(&clients[c]);
		round_run(false);
	}
	grants = arbiter->grants;
	turns_before = turns;
	for (uint32_t i = 0; i < rounds; i++) {
		for (uint32_t c = 0; c < active; c++)
			permits_drop(&clients[c]);
		took_ns += round_run(false);
	}
	must(waiting() >= held * 99ull / 100, "what was to be held was permitted");
	printf("{\"permit_cpu_ns\": %.1f, \"permits\": %llu, \"turns\": %llu, \"active\": %u, \"waiting\": %u}\n",
	       (double)took_ns / (double)(arbiter->grants - grants), (unsigned long long)(arbiter->grants - grants),
	       (unsigned long long)(turns - turns_before), arbiter->actives, waiting());
	mfs_arbiter_destroy(arbiter);
	return 0;
}
