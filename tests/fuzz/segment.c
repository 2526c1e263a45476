/* Fuzzes everything that the arbiter reads from a client: the input writes anywhere in a client's segment, sends messages of
 * any content in its lanes, and lets time pass. An honest client beside it sends as much as it is permitted, over the link and
 * by the clock of tests/native/virtual_arbiter.h: it is not given up, and whatever the hostile one has done, it moves nearly
 * what it moves alone soon after. While the input is played again and again it moves nearly its fair share, half of that: in inputs
 * of an odd length, where the hostile one claims nothing that is believed (SECURITY.md): a better stage, a deadline, collectives, tasks
 * that are permitted for longer than the window.
 */
#include "../native/virtual_arbiter.h"
#include "input.h"

#define ROUND_NS 100000000ull	/* of which the victim's bytes are counted, after some input was used up */
#define SETTLE_NS 60000000ull	/* before: what the hostile one has in flight is found out to be late, or is over */
#define KEPT 0.9
#define HOSTILE_TASKS 64u
#define PAUSE_NS 100000ull /* before the input is played again */

static struct program victim, hostile;
static bool modest; /* the hostile one claims nothing that puts its bytes before the victim's */

/* Mostly near the truth, where the interesting mistakes are. */
static void message(struct input *in)
{
	struct mfs_segment *segment = hostile.session->segment;
	unsigned shape = (unsigned)take(in, 1), lane = (unsigned)take(in, 1) % MFS_SUBMIT_RINGS;
	struct mfs_message m;
	uint64_t *words = (uint64_t *)&m;

	if (shape == 255 && !modest) {
		for (unsigned i = 0; i < sizeof(m) / 8; i++)
			words[i] = take(in, 8);
	} else {
		static const enum mfs_message_kind kinds[] = {MFS_MESSAGE_SUBMIT, MFS_MESSAGE_SUBMIT, MFS_MESSAGE_SUBMIT,
							      MFS_MESSAGE_SUBMIT, MFS_MESSAGE_COMPLETE, MFS_MESSAGE_CANCEL,
							      MFS_MESSAGE_BATCH,  MFS_MESSAGE_REQUEST};
		uint32_t slot = (uint32_t)take(in, 1) % HOSTILE_TASKS;
		uint8_t kind = (uint8_t)kinds[take(in, 1) % 8];

		/* In order, or it is given up at once; a late or an early one now and then. */
		hostile.generation[slot] += kind == MFS_MESSAGE_SUBMIT && shape % 32 != 31;
		m = (struct mfs_message){
			.task = kind == MFS_MESSAGE_REQUEST ? slot % 8
							    : (uint64_t)(hostile.generation[slot] + (shape % 64 == 33)) << 32 | slot,
			.bytes = take(in, shape & 8 ? 5 : 3),
			.queue = take(in, 1) % 4,
			.peer = (uint32_t)take(in, 1) % 4, /* 1 is the victim's */
			.request_id = take(in, 1) % 8,
			.deadline_ns = shape & 2 ? take(in, 8) : 0,
			.submit_ns = now_ns - take(in, 2) * 1000,
			.batch = shape & 4 ? (uint32_t)(take(in, 1) % MFS_BATCHES_MAX) : MFS_NONE_U32,
			.layer = (uint16_t)take(in, 1),
			.kind = kind,
			.stage = (uint8_t)(take(in, 1) % 6),
			.flags = (uint8_t)(take(in, 1) & (MFS_TASK_CLASS_MARKED | MFS_TASK_INCOMING | MFS_TASK_TAKEN | MFS_TASK_BYPASSED)),
			.wire_class = (uint8_t)(take(in, 1) % 8),
		};
		if (modest) {
			m.deadline_ns = 0;
			if (!(m.flags & MFS_TASK_TAKEN))
				m.bytes %= MESSAGE + 1;
			m.stage = m.stage & 1 ? MFS_STAGE_P2D : MFS_STAGE_BACKGROUND;
		}
	}
	mfs_mpsc_push(&segment->submit[lane], segment->submit_slot[lane], MFS_SUBMIT_SLOTS, &m, 1);
}

/* A request with demands, a batch: what the words of a segment look like when they mean something. */
static void context(struct input *in)
{
	struct mfs_segment *segment = hostile.session->segment;
	struct mfs_request *request = &segment->request[take(in, 1) % 8];
	struct mfs_batch *batch = &segment->batch[take(in, 1) % 4];
	struct mfs_demand *demand = &segment->demand[take(in, 1) % 8];

	atomic_store(&demand->request, (uint32_t)take(in, 1) % 9);
	atomic_store(&demand->next, (uint32_t)take(in, 1) % 9);
	atomic_store(&demand->bytes, take(in, 5));
	atomic_store(&demand->stage, (uint8_t)take(in, 1) % 6);
	atomic_store(&demand->direction, (uint8_t)take(in, 1));
	atomic_store(&request->demand, (uint32_t)take(in, 1) % 9);
	atomic_store(&request->batch, (uint32_t)take(in, 1) % 5);
	atomic_store(&request->deadline_ns, now_ns + take(in, 4));
	atomic_store(&request->budget_ns, take(in, 4));
	atomic_fetch_add(&request->version, 1);
	atomic_store(&request->request_id, take(in, 1) % 8);
	atomic_store(&batch->layers, (uint32_t)take(in, 1));
	atomic_store(&batch->layer_current, (uint32_t)take(in, 1));
	atomic_store(&batch->deadline_ns, now_ns + take(in, 4));
	atomic_store(&batch->compute_ns, take(in, 4));
	atomic_store(&batch->requests, (uint32_t)take(in, 1));
	atomic_fetch_add(&batch->version, (uint32_t)take(in, 1) & 1);
	atomic_store(&batch->batch_id, take(in, 1) % 8);
}

static void count(struct input *in)
{
	struct mfs_usage *usage = &hostile.session->segment->usage[take(in, 1) % 2];
	struct mfs_usage_half *half = take(in, 1) & 1 ? &usage->completed : &usage->posted;

	unsigned stage = (unsigned)take(in, 1) % MFS_STAGES_MAX;

	if (modest && stage == MFS_STAGE_COLLECTIVE)
		stage = MFS_STAGE_CONTROL;
	atomic_fetch_add(&half->bytes[stage], take(in, 4));
}

static void scribble(struct input *in)
{
	struct mfs_segment *segment = hostile.session->segment;
	uint64_t offset = take(in, 4) % sizeof(*segment);
	size_t bytes = take(in, 1) % 64 + 1;

	if (take(in, 1) & 1) /* the tables that are read most */
		offset = (offset % (offsetof(struct mfs_segment, submit_slot) - offsetof(struct mfs_segment, report))) +
			 offsetof(struct mfs_segment, report);
	for (size_t i = 0; i < bytes && offset + i < sizeof(*segment); i++)
		((uint8_t *)segment)[offset + i] = (uint8_t)take(in, 1);
}

static void pass(uint64_t ns)
{
	for (uint64_t end_ns = now_ns + ns; now_ns < end_ns; now_ns += STEP_NS) {
		permits_take(&victim, true);
		while (__builtin_popcountll(victim.busy) < DEPTH)
			submit(&victim, MESSAGE, 0, 1, 0);
		turn(arbiter, true);
		wire_step();
	}
	if (victim.session->state != MFS_SEGMENT_ACTIVE)
		abort();
}

static uint64_t moved_in(uint64_t ns)
{
	uint64_t before = victim.bytes;

	pass(ns);
	return victim.bytes - before;
}

static void begin(void)
{
	memset(&victim, 0, sizeof(victim));
	memset(&hostile, 0, sizeof(hostile));
	wire_n = 0;
	arbiter_begin();
	attach(&victim);
	attach(&hostile);
}

static uint64_t alone(void)
{
	static uint64_t bytes;

	if (bytes)
		return bytes;
	begin();
	pass(SETTLE_NS);
	bytes = moved_in(ROUND_NS);
	mfs_arbiter_destroy(arbiter);
	return bytes;
}

static void play(struct input in)
{
	while (in.left) {
		unsigned what = (unsigned)take(&in, 1) % 16;

		switch (modest && (what == 0 || what == 2) ? 15 : what) {
		case 0:
			scribble(&in);
			break;
		case 1:
			pass((take(&in, 1) + 1) * STEP_NS);
			break;
		case 2:
			context(&in);
			break;
		case 3: /* takes its permits, and perhaps has nothing more in flight of the victim's bytes' kind */
			permits_take(&hostile, false);
			break;
		case 4:
			count(&in);
			break;
		default:
			message(&in);
		}
	}
}

/* Again and again: what the victim moves meanwhile, as if in the time of a round. */
static double moved_beside(struct input in)
{
	uint64_t before = victim.bytes, began_ns = now_ns;

	do {
		play(in);
		pass(PAUSE_NS);
	} while (now_ns - began_ns < ROUND_NS);
	return (double)(victim.bytes - before) * ROUND_NS / (double)(now_ns - began_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t due = (uint64_t)(KEPT * (double)alone());
	struct input in = {data, size};
	double moved;

	modest = size % 2;
	begin();
	play(in);
	moved = moved_beside(in);
	if (modest && moved < (double)due / 2)
		abort();
	pass(SETTLE_NS);
	if (moved_in(ROUND_NS) < due)
		abort();
	mfs_arbiter_client_remove(arbiter, hostile.session->client_id);
	if (moved_in(SETTLE_NS) < due / 2)
		abort();
	mfs_arbiter_destroy(arbiter);
	return 0;
}
