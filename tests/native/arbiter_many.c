/* Many clients under a clock of the test's own: which of them are polled, which have to ring, and that
 * nothing is lost. */
#include "arbiter_clock.h"

#define CLIENTS 300
#define MS 1000000ull

static struct mfs_arbiter *arbiter;
static struct session *client[CLIENTS];
static uint32_t generation[CLIENTS];

static enum mfs_asleep reported(const struct session *session)
{
	return atomic_load(&session->segment->header.arbiter_asleep);
}

static void turns(uint64_t for_ns, uint64_t step_ns)
{
	for (uint64_t end_ns = now_ns + for_ns; now_ns < end_ns; now_ns += step_ns)
		turn(arbiter, true);
}

static void send_submit(unsigned i, uint32_t ring)
{
	struct mfs_segment *segment = client[i]->segment;
	struct mfs_message message = {.task = (uint64_t)++generation[i] << 32,
				      .bytes = 1,
				      .submit_ns = now_ns,
				      .batch = MFS_NONE_U32,
				      .kind = MFS_MESSAGE_SUBMIT,
				      .stage = MFS_STAGE_P2D};

	must(mfs_mpsc_push(&segment->submit[ring], segment->submit_slot[ring], MFS_SUBMIT_SLOTS, &message, 1) == 1, "a ring has room");
}

/* Rings the doorbell as client.c does. */
static void ring(unsigned i)
{
	uint64_t one = 1;

	if (atomic_exchange(&client[i]->segment->header.arbiter_asleep, MFS_AWAKE))
		must(write(client[i]->doorbell, &one, sizeof(one)) == sizeof(one), "a bell rings");
}

static unsigned asleep_count(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < CLIENTS; i++)
		n += reported(client[i]) == MFS_ASLEEP;
	return n;
}

static unsigned left_out(void)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		if (!client[i]->active)
			return i;
	return CLIENTS;
}

int main(void)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10 * MS, .stale_after_ns = 40 * MS, .max_hold_ns = 250 * MS, .window_ns = 200000,
		.window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2 * MS, .spin_ns = 50000, .torn_slot_ns = 10 * MS,
		.load_time_constant_ns = 10 * MS, .rate_default_bytes_per_s = 1000000000, .tasks_max = 65536,
		.mode = MFS_MODE_ENFORCE,
	};
	struct mfs_gate *gate;
	uint64_t before;
	unsigned i;

	now_ns = arbiter_real_clock_ns() + 1000 * MS;
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "an arbiter is made");
	must(mfs_arbiter_nic(arbiter, "rdma0", 1, 0) == 0, "a NIC is made");
	for (i = 0; i < CLIENTS; i++) {
		int memfd, doorbell, rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);

		must(rc > 0, "a client is added");
		client[i] = session_find(arbiter, (uint32_t)rc);
		close(memfd);
		close(doorbell);
	}

	turns(10 * MS, 100000);
	must(arbiter->actives == 16, "of those that say nothing, few are polled");
	must(asleep_count() == CLIENTS - 16, "the others ring");

	i = left_out();
	before = client[i]->submits;
	send_submit(i, 2);
	ring(i);
	turns(100000, 10000);
	must(client[i]->submits == before + 1 && client[i]->active && reported(client[i]) == MFS_AWAKE, "a client that rings is polled");
	send_submit(i, 5);
	turns(100000, 10000);
	must(client[i]->submits == before + 2, "and on other rings without ringing");
	turns(10 * MS, 100000);
	must(arbiter->actives == 16, "until it says nothing for a while");

	i = left_out();
	before = client[i]->submits;
	send_submit(i, 3);
	turns(CLIENTS / 128 * 10 * MS + 20 * MS, 100000);
	must(client[i]->submits == before + 1, "a message whose bell did not ring is found");

	i = left_out(); /* a slot that was claimed but never filled, as by a thread that ended */
	before = client[i]->submits;
	atomic_fetch_add(&client[i]->segment->submit[MFS_SUBMIT_SHARED].tail, 1);
	send_submit(i, MFS_SUBMIT_SHARED);
	turns(CLIENTS / 128 * 10 * MS + 100 * MS, 100000);
	must(client[i]->submits == before + 1 && client[i]->reader.ring[MFS_SUBMIT_SHARED].torn_slots == 1,
	     "a torn slot is passed by");

	i = left_out(); /* a race: the client has just sent when the arbiter is about to stop polling it */
	ring(i);
	turns(100000, 10000);
	must(client[i]->active, "a bell alone is enough");
	now_ns += 5 * MS;
	send_submit(i, 1);
	arbiter->now_ns = now_ns;
	actives_review(arbiter);
	must(client[i]->active && reported(client[i]) == MFS_AWAKE, "a client that has sent is not left out");

	for (i = 0; i < CLIENTS; i++)
		must(client[i]->segment->gate[0].credit_class_marked[0] == 0 || client[i]->nic[0].direction[0].holder,
		     "a client that does not use a direction has no credit");
	i = left_out();
	before = client[i]->submits;
	send_submit(i, 0);
	ring(i);
	turns(50 * MS, 100000);
	gate = &client[i]->segment->gate[0];
	must(atomic_load(&gate->credit_class_marked[0]) > 0 && !atomic_load(&gate->credit_class_marked[1]), "a client that uses one has some there");
	turns(10500 * MS, 10 * MS);
	must(!atomic_load(&gate->credit_class_marked[0]), "until it does not use it for a while");

	for (i = 0; i < CLIENTS; i += 2)
		must(mfs_arbiter_client_remove(arbiter, client[i]->client_id) == 0, "clients leave");
	for (i = 1; i < CLIENTS; i += 2) {
		before = client[i]->submits;
		send_submit(i, i % MFS_SUBMIT_RINGS);
		ring(i);
		turns(100000, 10000);
		must(client[i]->submits == before + 1, "and the others are heard as before");
	}
	mfs_arbiter_destroy(arbiter);
	printf("ok\n");
	return 0;
}
