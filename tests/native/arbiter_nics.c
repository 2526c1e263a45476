/* A heartbeat measures the NICs in use, and of the others a few in turn: what goes through any of them is found in time, counted
 * to the byte, and no permit depends on it. Exits 0 when that holds. */
#include "arbiter_clock.h"

#define MS 1000000ull
#define NICS MFS_NICS_MAX
#define IN_TURN 4u
#define ROUND (NICS / IN_TURN) /* heartbeats */
#define RATE 1000000000ull
#define FORGOTTEN_MS 10000u
#define COLLECTIVES_MS 5000u /* a client counts for so long as one that has some */

static struct mfs_arbiter *arbiter;
static struct session *session;

/* As a heartbeat of an arbiter that has something in flight somewhere. Answers how many NICs it measured. */
static unsigned beat(bool all)
{
	unsigned n = 0;

	now_ns += 10 * MS;
	arbiter->now_ns = now_ns;
	nics_measure(arbiter, all);
	for (unsigned i = 0; i < NICS; i++)
		n += arbiter->nic[i].measured_ns == now_ns;
	return n;
}

static void forget_all(void)
{
	for (unsigned ms = 0; ms <= COLLECTIVES_MS + FORGOTTEN_MS; ms += 10)
		beat(false);
	must(beat(false) == IN_TURN, "what nothing went through for a while is measured in turn");
}

static void count(unsigned nic, uint64_t posted, uint64_t completed)
{
	struct mfs_usage *usage = mfs_usage_of(session->segment, nic);

	atomic_fetch_add(&usage->posted.bytes[MFS_STAGE_COLLECTIVE], posted);
	atomic_fetch_add(&usage->completed.bytes[MFS_STAGE_COLLECTIVE], completed);
}

static void submit(unsigned nic)
{
	struct mfs_segment *segment = session->segment;
	struct mfs_message message = {.task = 1ull << 32 | nic,
				      .bytes = 4096,
				      .submit_ns = now_ns,
				      .batch = MFS_NONE_U32,
				      .kind = MFS_MESSAGE_SUBMIT,
				      .stage = MFS_STAGE_BACKGROUND,
				      .nic = (uint8_t)nic};

	must(mfs_mpsc_push(&segment->submit[0], segment->submit_slot[0], MFS_SUBMIT_SLOTS, &message, 1) == 1,
	     "a ring has room");
}

/* The gate of a NIC that has not had its turn. */
static void gate_without_a_turn(unsigned n)
{
	count(n, RATE / 100, 0);
	submit(n);
	for (unsigned i = 0; i < MFS_SUBMIT_RINGS && !session->submits; i++, now_ns += 1000)
		turn(arbiter, true);
	must(session->submits == 1 && !session->grants, "a task waits for collectives that no heartbeat has seen");
	must(beat(false) >= IN_TURN && arbiter->nic[n].measured_ns == now_ns, "and its NIC is in use");
	for (unsigned i = 0; i < 1000 && !session->grants; i++, now_ns += 10000)
		turn(arbiter, true);
	must(session->grants == 1, "it goes when they have had their time");
}

int main(void)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 1000 * MS, .stale_after_ns = 4000 * MS, .max_hold_ns = 250 * MS, .window_ns = 200000,
		.window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2 * MS, .spin_ns = 50000, .torn_slot_ns = 10 * MS,
		.load_time_constant_ns = 10 * MS, .rate_default_bytes_per_s = RATE, .tasks_max = 1024, .mode = MFS_MODE_ENFORCE,
	};
	const uint64_t load[MFS_DIRECTIONS] = {RATE / 2, RATE / 2};
	const struct nic *nic;
	unsigned n;
	int memfd, doorbell, rc;

	now_ns = arbiter_real_clock_ns() + 1000 * MS;
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "an arbiter is made");
	for (unsigned i = 0; i < NICS; i++) {
		char name[16];

		snprintf(name, sizeof(name), "rdma%u", i);
		must(mfs_arbiter_nic(arbiter, name, 0, RATE) == (int)i, "a NIC is made");
	}
	rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);
	must(rc > 0, "a client is added");
	close(memfd);
	close(doorbell);
	session = session_find(arbiter, (uint32_t)rc);
	for (unsigned i = 0; i < 4; i++, now_ns += 1000)
		turn(arbiter, true);
	must(beat(false) == NICS, "new NICs are in use");
	forget_all();
	must(beat(true) == NICS, "all are measured where that is asked for");

	for (unsigned i = 0; i < ROUND; i++)
		beat(false);
	for (unsigned i = 0; i < NICS; i++)
		must(now_ns - arbiter->nic[i].measured_ns < ROUND * 10 * MS, "each has its turn");

	nic = &arbiter->nic[NICS - 1];
	for (n = 0; n < ROUND && !nic->unscheduled_carried_bytes; n++) {
		count(NICS - 1, RATE / 1000, RATE / 1000);
		beat(false);
	}
	must(nic->unscheduled_carried_bytes == n * (RATE / 1000), "collectives are found within a round, to the byte");
	for (unsigned i = 0; i < 20; i++) {
		count(NICS - 1, RATE / 1000, RATE / 1000);
		must(beat(false) >= IN_TURN && nic->measured_ns == now_ns, "from then on the NIC is measured each time");
	}
	must(nic->unscheduled_used > 0.099 && nic->unscheduled_used < 0.101, "a tenth of the link is a tenth of it");
	must(nic->unscheduled_carried_bytes == (n + 20) * (RATE / 1000), "and every byte is counted once");
	forget_all();

	nic = &arbiter->nic[40];
	must(mfs_arbiter_bypass(arbiter, 40, load, now_ns + (FORGOTTEN_MS + 5000) * MS) == 0, "a load is given");
	for (unsigned ms = 0; ms <= FORGOTTEN_MS + 4000; ms += 10) {
		beat(false);
		must(nic->measured_ns == now_ns, "a NIC that is bypassed is measured while that is valid");
	}
	forget_all();

	gate_without_a_turn((arbiter->nic_slice + NICS / 2) % NICS);
	mfs_arbiter_destroy(arbiter);
	return 0;
}
