/* Credit. While nothing waits for a NIC, its arbiter has nothing to decide, and a task need not ask for a
 * permit and wait for it. Each client may then have some bytes in flight that it reports without asking.
 * The arbiter reads the report when it gets to it, and withdraws the credit as soon as anything waits. The
 * arbiter sets the amount (arbiter/credit.c); only the client counts how much of it is in use.
 *
 * A task that goes on credit has the class of a flow that is neither critical nor due soon nor pruned.
 * Where the class depends on something that the client does not know, the task asks for a permit. */
#include "credit.h"

#include "../base/clock.h"

#include <errno.h>

static bool collectives_in_flight(const struct mfs_segment *segment, uint32_t nic)
{
	return mfs_usage_posted(segment, nic, MFS_STAGE_COLLECTIVE) !=
	       mfs_usage_completed(segment, nic, MFS_STAGE_COLLECTIVE);
}

static unsigned class_of_reuse(const struct mfs_segment *segment, const struct mfs_task *task)
{
	const struct mfs_segment_header *header = &segment->header;
	uint32_t current, wire_class;

	if (task->batch >= MFS_BATCHES_MAX)
		return task->request_id ? MFS_CLASS_ASK : header->class_reuse_least;
	current = atomic_load_explicit(&segment->batch[task->batch].layer_current, memory_order_relaxed);
	wire_class = header->class_reuse + (task->layer > current ? task->layer - current : 0);
	return wire_class < header->class_reuse_least ? wire_class : header->class_reuse_least;
}

static bool due_soon(const struct mfs_segment *segment, const struct mfs_task *task)
{
	uint64_t soon_ns = atomic_load_explicit(&segment->header.soon_ns, memory_order_relaxed);

	return soon_ns && task->deadline_ns && task->deadline_ns < mfs_clock_ns() + soon_ns;
}

static unsigned class_of(const struct mfs_segment *segment, const struct mfs_task *task)
{
	switch (task->stage) {
	case MFS_STAGE_CONTROL:
	case MFS_STAGE_COLLECTIVE:
		return MFS_CLASS_ASK;
	case MFS_STAGE_REUSE:
		return class_of_reuse(segment, task);
	case MFS_STAGE_P2D:
		return due_soon(segment, task) ? MFS_CLASS_ASK : segment->header.class_last;
	default:
		return segment->header.classes - 1;
	}
}

int credit_take(struct mfs_client *client, const struct mfs_task *task)
{
	struct mfs_segment *segment = client->segment;
	const struct mfs_gate *gate;
	unsigned direction = (unsigned)(task->nic * MFS_DIRECTIONS + task->incoming), wire_class;
	uint64_t credit;

	if (client->minor < MINOR_CREDIT || task->nic >= client_nics(client))
		return -EAGAIN;
	gate = mfs_gate_of(segment, task->nic);
	if (!atomic_load_explicit(&gate->credit_class_marked[task->incoming], memory_order_relaxed))
		return -EAGAIN;
	wire_class = class_of(segment, task);
	if (wire_class >= segment->header.classes)
		return -EAGAIN;
	if (task->class_marked &&
	    atomic_load_explicit(&segment->header.apart, memory_order_relaxed) >> wire_class & 1)
		credit = atomic_load_explicit(&gate->credit_class_marked[task->incoming],
					      memory_order_relaxed);
	else if (!collectives_in_flight(segment, task->nic))
		credit = atomic_load_explicit(&gate->credit[task->incoming], memory_order_relaxed);
	else
		return -EAGAIN;
	/* As with the window: while any credit is left, it admits one more task, however large. */
	if (atomic_fetch_add_explicit(&client->taken_bytes[direction], task->bytes, memory_order_relaxed) <
	    credit)
		return (int)wire_class;
	credit_give(client, direction, task->bytes);
	return -EAGAIN;
}
