/* A request that is in two batches, as between two chunks, is one request to the queues: what they know of
 * it stays until it has ended in both. Exits 0 if that holds. */
#include "virtual_arbiter.h"

#define REQUEST 5
#define CHUNK (4u << 20)
#define TASK 1000000u

static struct program program, other;

/* Passes enough turns to read all rings: a turn polls only one of those that were silent. */
static void pass(void)
{
	for (unsigned i = 0; i <= MFS_SUBMIT_RINGS; i++) {
		now_ns += 1000;
		turn(arbiter, true);
	}
}

static void send_request(uint32_t slot)
{
	send_message(&program, (struct mfs_message){.task = slot, .batch = MFS_NONE_U32, .kind = MFS_MESSAGE_REQUEST});
}

static void request_begin(uint32_t slot, uint64_t bytes)
{
	struct mfs_segment *segment = program.session->segment;

	request_write(segment, slot, MFS_NONE_U32, 1);
	PUT(&segment->demand[slot].bytes, bytes);
	PUT(&segment->request[slot].request_id, REQUEST);
	send_request(slot);
}

static void request_end(uint32_t slot)
{
	PUT(&program.session->segment->request[slot].request_id, 0);
	send_request(slot);
}

static uint32_t judgement(uint32_t slot)
{
	return GET(&program.session->segment->request[slot].judgement);
}

static void prune(bool pruned)
{
	must(mfs_arbiter_request_prune(arbiter, program.session->client_id, REQUEST, pruned) == 0, "it is known");
}

/* Returns what the queue knows of the request, by a task of it that waits. */
static struct mfs_rmlq_snapshot known(void)
{
	int slot = submit_message(&program, (struct mfs_message){.bytes = TASK, .request_id = REQUEST}, 0);
	struct task *task = &program.session->task[slot];
	struct mfs_rmlq_snapshot why;

	pass();
	must(task->phase == TASK_WAITING, "it waits");
	must(mfs_rmlq_snapshot(direction_at(arbiter, task->direction)->queue, task->handle, now_ns, &why) == 0, "the queue has it");
	send_message(&program, (struct mfs_message){.task = (uint64_t)program.generation[slot] << 32 | (uint32_t)slot,
						    .batch = MFS_NONE_U32,
						    .kind = MFS_MESSAGE_CANCEL});
	pass();
	program.busy = 0;
	return why;
}

static void begin(void)
{
	arbiter_begin_two(&program, &other);
	for (unsigned n = 0; n < 4; n++) /* so that the others wait */
		submit(&other, TASK, 0, 1, 0);
	pass();
}

static void end(void)
{
	struct mfs_rmlq_stats stats;

	pass();
	mfs_arbiter_client_remove(arbiter, other.session->client_id); /* its tasks count as requests, too */
	for (uint32_t i = 0; i < directions_count(arbiter); i++) {
		mfs_rmlq_stats_begin(direction_at(arbiter, i)->queue, &stats);
		must(stats.requests == 0, "no queue knows it any more");
	}
	mfs_arbiter_destroy(arbiter);
}

/* Both messages are read in one turn, in which ends are processed last. */
static void the_next_chunk_is_to_come(void)
{
	begin();
	request_begin(0, TASK);
	pass();
	request_end(0);
	request_begin(1, CHUNK);
	pass();
	must(!program.session->request[0].id, "the first has ended");
	must(known().bytes_ahead == CHUNK - TASK, "the bytes of the next are to come");
	request_end(1);
	end();
}

static void a_chunk_that_is_given_up_is_not_to_come(void)
{
	begin();
	request_begin(0, TASK);
	pass();
	request_begin(1, CHUNK);
	pass();
	request_end(1);
	pass();
	must(known().bytes_ahead == 0, "nothing more is to come");
	request_end(0);
	end();
}

static void it_is_pruned_until_it_is_not(bool before)
{
	begin();
	request_begin(0, TASK);
	pass();
	if (before)
		prune(true);
	request_begin(1, CHUNK);
	pass();
	if (!before)
		prune(true);
	must(judgement(0) == MFS_REQUEST_PRUNED && judgement(1) == MFS_REQUEST_PRUNED, "both entries say so");
	request_end(0);
	pass();
	must(known().pruned, "it is pruned still");
	request_begin(0, TASK);
	pass();
	must(judgement(0) == MFS_REQUEST_PRUNED, "and in its next chunk");
	prune(false);
	must(judgement(0) == 0 && judgement(1) == 0, "neither entry says so any more");
	must(!known().pruned, "it is pruned no more");
	request_end(1);
	request_end(0);
	end();
}

int main(void)
{
	the_next_chunk_is_to_come();
	a_chunk_that_is_given_up_is_not_to_come();
	it_is_pruned_until_it_is_not(true);
	it_is_pruned_until_it_is_not(false);
	return 0;
}
