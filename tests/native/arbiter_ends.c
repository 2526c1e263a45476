/* A batch that has ended in its segment keeps the tasks that were submitted before its end and are read
 * after it. Exits 0 if that holds. */
#include "virtual_arbiter.h"

#define BATCH_ID 77

static struct program program, other;

static void send_batch(uint64_t id)
{
	atomic_store_explicit(&program.session->segment->batch[0].batch_id, id, memory_order_release);
	send_message(&program, (struct mfs_message){.batch = 0, .kind = MFS_MESSAGE_BATCH});
}

static void send_task(struct program *from, uint32_t slot, uint32_t batch)
{
	send_message(from, (struct mfs_message){.task = 1ull << 32 | slot,
						.bytes = 1000000,
						.batch = batch,
						.stage = MFS_STAGE_P2D,
						.kind = MFS_MESSAGE_SUBMIT});
}

static void pass(uint64_t ns)
{
	now_ns += ns;
	turn(arbiter, true);
}

static bool in_batch(void)
{
	return program.session->batch[0].id == BATCH_ID && program.session->batch[0].announced_directions;
}

/* `heartbeats`: a heartbeat is due while the ring still has messages, so that the arbiter reads the
 * contexts by itself. */
static void ended_before_it_is_read(bool heartbeats)
{
	arbiter_begin_two(&program, &other);
	send_task(&other, 0, MFS_NONE_U32); /* so that the others wait */
	send_batch(BATCH_ID);
	for (unsigned i = 0; i < MFS_SUBMIT_RINGS; i++) /* a turn polls only one of the rings that were silent */
		pass(1000);
	must(other.session->task[0].phase == TASK_IN_FLIGHT, "the link is taken");
	must(program.session->batch[0].id == BATCH_ID, "the batch is known");
	send_task(&program, 0, 0);
	send_batch(0);
	for (uint32_t slot = 1; slot < 3 * MESSAGES_PER_TURN; slot++) /* more messages than a turn reads */
		send_task(&program, slot, MFS_NONE_U32);
	pass(heartbeats ? arbiter->config.heartbeat_ns + 1 : 1000);
	must(program.session->task[0].phase != TASK_FREE && in_batch(), "its task was read, and is the batch's");
	for (unsigned i = 0; i < 8; i++)
		pass(heartbeats ? arbiter->config.heartbeat_ns + 1 : 1000);
	must(!program.session->batch[0].id, "it has ended when all is read");
	mfs_arbiter_destroy(arbiter);
}

int main(void)
{
	ended_before_it_is_read(false);
	ended_before_it_is_read(true);
	return 0;
}
