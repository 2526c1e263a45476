/* The ring of events. The arbiter's thread writes, one thread of the daemon reads.
 *
 * Memory order: `tail` is stored with release after its event, and loaded with acquire by the reader.
 * `head` is stored with release after an event was copied, and loaded with acquire by the writer before it
 * uses the slot again. `lost` is meaningful alone. The writer keeps the last head that it saw, so it reads
 * the reader's cache line once per round. Attaching and detaching are commands, so they happen between two
 * turns of the writer. */
#include "trace.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct trace {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t tail; /* the writer's line */
	uint64_t head_seen;
	_Atomic uint64_t lost;
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t head; /* the reader's line */
	_Alignas(MFS_CACHE_LINE) uint64_t slots;        /* constant */
	struct mfs_event event[];
};

static void trace_push(struct trace *trace, const struct mfs_event *event)
{
	uint64_t tail = atomic_load_explicit(&trace->tail, memory_order_relaxed);

	if (tail - trace->head_seen == trace->slots)
		trace->head_seen = atomic_load_explicit(&trace->head, memory_order_acquire);
	if (tail - trace->head_seen == trace->slots) {
		atomic_store_explicit(&trace->lost,
				      atomic_load_explicit(&trace->lost, memory_order_relaxed) + 1,
				      memory_order_relaxed);
		return;
	}
	trace->event[tail & (trace->slots - 1)] = *event;
	atomic_store_explicit(&trace->tail, tail + 1, memory_order_release);
}

/* ---- what is written --------------------------------------------------------------------------------------------- */

void trace_task(struct mfs_arbiter *arbiter, const struct task *task, enum mfs_event_kind kind,
		const struct mfs_pick *pick, uint64_t time_ns)
{
	const struct session *session = task->session;
	const struct mfs_event event = {
		.time_ns = time_ns,
		.task = (uint64_t)task->generation << 32 | (uint32_t)(task - session->task),
		.bytes = task->bytes,
		.request_id = task->request_id,
		.batch_id = task->batch < MFS_BATCHES_MAX ? session->batch[task->batch].id : 0,
		.deadline_ns = task->deadline_ns,
		.client_id = session->client_id,
		.layer = task->layer,
		.kind = (uint8_t)kind,
		.stage = task->stage,
		.direction = task->direction,
		.wire_class = pick ? pick->wire_class : task->wire_class,
		.level = pick ? pick->level : 0,
		.tier = pick ? pick->tier : 0,
	};

	trace_push(arbiter->watch->trace, &event);
}

void trace_batch(struct mfs_arbiter *arbiter, const struct session *session, const struct batch *batch,
		 enum mfs_event_kind kind)
{
	const struct mfs_event event = {
		.time_ns = arbiter->now_ns,
		.batch_id = batch->id,
		.deadline_ns = batch->deadline_ns,
		.client_id = session->client_id,
		.value = batch->layers,
		.layer = (uint16_t)(batch->layer_current < UINT16_MAX ? batch->layer_current : UINT16_MAX),
		.kind = (uint8_t)kind,
	};

	trace_push(arbiter->watch->trace, &event);
}

void trace_request(struct mfs_arbiter *arbiter, const struct session *session, const struct request *request,
		   enum mfs_event_kind kind, uint32_t value)
{
	const struct mfs_event event = {
		.time_ns = arbiter->now_ns,
		.request_id = request->id,
		.batch_id = request->batch < MFS_BATCHES_MAX ? session->batch[request->batch].id : 0,
		.deadline_ns = request->deadline_ns,
		.client_id = session->client_id,
		.value = value,
		.kind = (uint8_t)kind,
	};

	trace_push(arbiter->watch->trace, &event);
}

void trace_client(struct mfs_arbiter *arbiter, const struct session *session, enum mfs_open_reason why)
{
	const struct mfs_event event = {
		.time_ns = arbiter->now_ns,
		.client_id = session->client_id,
		.value = why,
		.kind = MFS_EVENT_FAIL_OPEN,
	};

	trace_push(arbiter->watch->trace, &event);
}

/* ---- attaching, reading, detaching ------------------------------------------------------------------------------- */

static int run_swap(struct mfs_arbiter *arbiter, void *argument)
{
	struct trace **trace = argument, *before = arbiter->watch->trace;

	if (before && *trace)
		return -EBUSY;
	if (!before && !*trace)
		return -ENOENT;
	arbiter->watch->trace = *trace;
	*trace = before;
	return 0;
}

int mfs_arbiter_trace_attach(struct mfs_arbiter *arbiter, uint32_t slots)
{
	size_t size = sizeof(struct trace) + (size_t)slots * sizeof(struct mfs_event);
	struct trace *trace;
	int rc;

	if (slots == 0 || slots > MFS_EVENT_SLOTS_MAX || (slots & (slots - 1)))
		return -EINVAL;
	trace = aligned_alloc(MFS_CACHE_LINE, (size + MFS_CACHE_LINE - 1) / MFS_CACHE_LINE * MFS_CACHE_LINE);
	if (!trace)
		return -ENOMEM;
	memset(trace, 0, size); /* so its pages exist before the arbiter's thread writes to them */
	trace->slots = slots;
	rc = arbiter_command(arbiter, run_swap, &trace);
	if (rc < 0)
		free(trace);
	return rc;
}

int mfs_arbiter_trace_detach(struct mfs_arbiter *arbiter)
{
	struct trace *trace = NULL;
	int rc = arbiter_command(arbiter, run_swap, &trace);

	free(trace);
	return rc;
}

int mfs_arbiter_trace_read(struct mfs_arbiter *arbiter, struct mfs_event *events, int n, uint64_t *lost)
{
	struct trace *trace = arbiter->watch->trace; /* changed only by commands of this thread */
	uint64_t head, tail;
	int taken = 0;

	if (!trace)
		return -ENOENT;
	head = atomic_load_explicit(&trace->head, memory_order_relaxed);
	tail = atomic_load_explicit(&trace->tail, memory_order_acquire);
	while (taken < n && head != tail)
		events[taken++] = trace->event[head++ & (trace->slots - 1)];
	atomic_store_explicit(&trace->head, head, memory_order_release);
	*lost = atomic_load_explicit(&trace->lost, memory_order_relaxed);
	return taken;
}
