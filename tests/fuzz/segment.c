/* Fuzzes everything that the arbiter reads from a client: the input writes anywhere in a client's segment, sends messages of
 * any content in its lanes, and lets the arbiter take turns. An honest client beside it must be served all the while. */
#include "../../csrc/arbiter.c"
#include "input.h"

#include <mfs/ring.h>
#include <sys/mman.h>

static struct mfs_segment *map(int memfd, int doorbell)
{
	struct mfs_segment *segment = mmap(NULL, sizeof(*segment), PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);

	if (segment == MAP_FAILED)
		abort();
	close(memfd);
	close(doorbell);
	return segment;
}

/* Mostly near the truth, where the interesting mistakes are. */
static void message(struct input *in, struct mfs_segment *segment)
{
	struct mfs_message m;
	unsigned shape = (unsigned)take(in, 1), lane = (unsigned)take(in, 1) % MFS_LANES;
	uint64_t *words = (uint64_t *)&m;

	if (shape & 1) {
		for (unsigned i = 0; i < sizeof(m) / 8; i++)
			words[i] = take(in, 8);
	} else {
		m = (struct mfs_message){
			.task = (uint64_t)(take(in, 1) % 4 + 1) << 32 | take(in, 1) % 8,
			.bytes = take(in, 3),
			.request_id = take(in, 1) % 8,
			.deadline_ns = shape & 2 ? take(in, 8) : 0,
			.batch = shape & 4 ? (uint32_t)(take(in, 1) % (MFS_BATCHES_MAX + 1)) : MFS_NONE_U32,
			.layer = (uint16_t)take(in, 1),
			.kind = (uint8_t)(take(in, 1) % 7),
			.stage = (uint8_t)(take(in, 1) % 6),
			.flags = (uint8_t)(take(in, 1) & 1),
		};
	}
	mfs_mpsc_push(&segment->submit[lane], segment->submit_slot[lane], MFS_LANE_SLOTS, &m, 1);
}

static void scribble(struct input *in, struct mfs_segment *segment)
{
	uint64_t offset = take(in, 4) % sizeof(*segment);
	size_t bytes = take(in, 1) % 64 + 1;

	if (take(in, 1) & 1) /* the tables that are read most */
		offset = (offset % (offsetof(struct mfs_segment, submit_slot) - offsetof(struct mfs_segment, report))) +
			 offsetof(struct mfs_segment, report);
	for (size_t i = 0; i < bytes && offset + i < sizeof(*segment); i++)
		((uint8_t *)segment)[offset + i] = (uint8_t)take(in, 1);
}

static void honest_is_served(struct mfs_arbiter *arbiter, struct mfs_segment *honest)
{
	static uint64_t generation;
	struct mfs_message m = {
		.task = ++generation << 32,
		.bytes = 1000,
		.batch = MFS_NONE_U32,
		.kind = MFS_MESSAGE_SUBMIT,
		.stage = MFS_STAGE_P2D,
	};
	uint64_t before = atomic_load(&honest->grant.tail);

	if (mfs_mpsc_push(&honest->submit[0], honest->submit_slot[0], MFS_LANE_SLOTS, &m, 1) != 1)
		abort();
	m.kind = MFS_MESSAGE_CANCEL; /* whether or not the hostile one fills the window: the daemon must take both */
	if (mfs_mpsc_push(&honest->submit[0], honest->submit_slot[0], MFS_LANE_SLOTS, &m, 1) != 1)
		abort();
	turn(arbiter, true);
	if (atomic_load(&honest->header.state) != MFS_SEGMENT_ACTIVE ||
	    atomic_load(&honest->submit[0].head) != atomic_load(&honest->submit[0].tail) ||
	    atomic_load(&honest->grant.tail) < before)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mfs_arbiter_config config = {.epoch = 1};
	struct mfs_arbiter *arbiter;
	struct mfs_segment *hostile, *honest;
	struct input in = {data, size};
	int memfd, doorbell, hostile_id;

	mfs_policy_default(&config.policy, 8);
	config.heartbeat_ns = 10000000;
	config.stale_after_ns = 40000000;
	config.max_hold_ns = 1000000000;
	config.window_ns = 200000;
	config.window_bytes_min = 131072;
	config.torn_slot_ns = 1; /* at the second look */
	config.gate_max_ns = 2000000;
	config.load_time_constant_ns = 10000000;
	config.rate_default_bytes_per_s = 125000000;
	config.tasks_max = 4096;
	config.mode = MFS_MODE_ENFORCE;
	if (mfs_arbiter_create(&config, &arbiter) || mfs_arbiter_nic(arbiter, "rdma0", 1, 0) != 0)
		abort();
	hostile_id = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);
	if (hostile_id < 0)
		abort();
	hostile = map(memfd, doorbell);
	if (mfs_arbiter_client_add(arbiter, &memfd, &doorbell) < 0)
		abort();
	honest = map(memfd, doorbell);
	while (in.left) {
		switch (take(&in, 1) % 8) {
		case 0:
			scribble(&in, hostile);
			break;
		case 1:
			turn(arbiter, true);
			break;
		case 2:
			honest_is_served(arbiter, honest);
			break;
		default:
			message(&in, hostile);
		}
	}
	turn(arbiter, true);
	honest_is_served(arbiter, honest);
	mfs_arbiter_client_remove(arbiter, (uint32_t)hostile_id);
	honest_is_served(arbiter, honest);
	mfs_arbiter_destroy(arbiter);
	munmap(hostile, sizeof(*hostile));
	munmap(honest, sizeof(*honest));
	return 0;
}
