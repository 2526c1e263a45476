/* Forms tasks from held work requests, and asks for their permits. */
#include "task.h"

#include "../../csrc/base/clock.h"
#include "budget.h"
#include "compiler.h"
#include "counter.h"
#include "gate.h"
#include "hold.h"
#include "process.h"
#include "wake.h"

#include <errno.h>
#include <mfs/client.h>
#include <string.h>

/* ---- what may go ----------------------------------------------------------------------------------------------------------- */

bool shim_task_may_go(struct shim_qp *q, uint64_t posted)
{
	return atomic_load_explicit(&q->permitted_sequence, memory_order_acquire) > posted ||
	       atomic_load_explicit(&q->force, memory_order_acquire) ||
	       !atomic_load_explicit(&shim.enforcing, memory_order_acquire) || shim_budget_over(q);
}

/* Tasks that need no slot must not wait for one. */
static bool waits_for_slot(struct shim_qp *q)
{
	return atomic_load(&q->starved) && !atomic_load(&q->force) && atomic_load(&shim.enforcing) &&
	       !shim_budget_over(q);
}

static uint32_t waiting_max(void)
{
	uint32_t listed = atomic_load_explicit(&shim.listed, memory_order_relaxed);
	uint32_t share = listed ? MFS_TASKS_MAX / 2 / listed : SHIM_TASKS_WAITING_MAX;

	return share > SHIM_TASKS_WAITING_MAX   ? SHIM_TASKS_WAITING_MAX
	       : share < SHIM_TASKS_WAITING_MIN ? SHIM_TASKS_WAITING_MIN
						: share;
}

bool shim_tasks_ready(struct shim_qp *q)
{
	uint64_t formed = atomic_load(&q->wr_formed);
	uint64_t task_formed = atomic_load(&q->task_formed), task_posted = atomic_load(&q->task_posted);

	if (!atomic_load(&q->holds) || !atomic_load(&q->live) || shim_stuck(q))
		return false;
	if (task_formed != task_posted && shim_task_may_go(q, task_posted))
		return true;
	return atomic_load(&shim_held_at(q, formed)->published) == formed + 1 && !waits_for_slot(q) &&
	       task_formed - task_posted < waiting_max();
}

/* Called by the thread that takes permits, and by the owner for a task that goes on credit. */
void shim_task_permit(struct shim_qp *q, struct shim_task *t)
{
	uint64_t before = atomic_load(&q->permitted_sequence);

	atomic_store_explicit(&t->permitted, 1, memory_order_release);
	while (before < t->sequence &&
	       !atomic_compare_exchange_weak(&q->permitted_sequence, &before, t->sequence))
		;
}

/* ---- tasks ------------------------------------------------------------------------------------------------------------------- */

/* True if the wire keeps what the queue pair sends apart from collectives: its class is lower than theirs.
 * What it reads comes in the class of the other end's queue pair, which is not known here. */
static bool class_apart(const struct shim_qp *q)
{
	const struct mfs_segment_header *header = &mfs_client_segment(q->client)->header;
	uint8_t dscp = atomic_load_explicit(&q->wire_dscp, memory_order_relaxed);
	uint8_t classes = atomic_load_explicit(&header->apart, memory_order_relaxed);

	for (unsigned c = 0; classes && dscp != MFS_DSCP_KEEP && c < MFS_CLASSES_MAX; c++)
		if (classes >> c & 1 && atomic_load_explicit(&header->dscp[c], memory_order_relaxed) == dscp)
			return true;
	return false;
}

/* True if all tasks ahead of it may go. Tasks of a queue pair leave in order: credit for one behind a
 * waiting task would let the waiting task go without its permit. */
static bool next_to_go(const struct shim_qp *q, const struct shim_task *t)
{
	return atomic_load_explicit(&q->permitted_sequence, memory_order_relaxed) + 1 >= t->sequence ||
	       atomic_load_explicit(&q->task_posted, memory_order_relaxed) + 1 >= t->sequence;
}

/* Returns false when there is no slot now. The task is then formed again at the next sweep, or goes when
 * the hold budget is used up. */
static bool submit(struct shim_qp *q, struct shim_task *t)
{
	struct mfs_task task = {.bytes = t->bytes,
				.request_id = t->tag.request_id,
				.deadline_ns = t->tag.deadline_ns,
				.batch = t->tag.batch,
				.layer = t->tag.layer,
				.stage = shim_stage_of(q, &t->tag),
				.role = q->role,
				.incoming = t->incoming,
				.at_once = next_to_go(q, t),
				.peer = q->peer_hash,
				.queue = atomic_load_explicit(&q->number, memory_order_relaxed)};
	int nic = atomic_load(&q->context)->nic;
	uint64_t id = 0;
	int rc;

	t->bypass = 1;
	if (unlikely(shim_budget_over(q)))
		return true;
	if (!q->client || nic < 0 || !t->bytes || atomic_load(&q->force) || !shim_must_hold(q, task.stage))
		return true;
	if (!mfs_client_alive(q->client, mfs_clock_ns())) {
		shim_wake();
		return true;
	}
	task.nic = (uint8_t)nic;
	task.class_marked = !t->incoming && class_apart(q);
	t->bypass = 0;
	rc = mfs_client_submit(q->client, &task, t, &id);
	if (rc >= 0) {
		atomic_store_explicit(&t->id, id, memory_order_release);
		if (rc > 0)
			shim_task_permit(q, t);
		return true;
	}
	if (rc == -EAGAIN) {
		atomic_store(&q->starved, 1);
		return false;
	}
	t->bypass = 1;
	shim_count(rc == -EINVAL ? &q->report->bypassed_overflow : &q->report->bypassed_stale, 1);
	return true;
}

/* True if its bytes come to this node. */
static bool reads(const struct shim_held *held)
{
	return !held->hole && held->wr.opcode == IBV_WR_RDMA_READ;
}

/* All work requests of a task have one tag and one direction. */
void shim_tasks_form(struct shim_qp *q)
{
	uint64_t index = atomic_load(&q->wr_formed), formed = atomic_load(&q->task_formed);

	while (formed - atomic_load(&q->task_posted) < waiting_max() && !waits_for_slot(q) &&
	       formed - atomic_load(&q->task_done) <= q->ring_mask) {
		struct shim_task *t = &q->tasks[formed & q->ring_mask];
		uint64_t first = index, bytes = 0, enqueued_ns = 0;

		while (bytes < q->quantum_bytes) {
			struct shim_held *held = shim_held_at(q, index);

			if (atomic_load_explicit(&held->published, memory_order_acquire) != index + 1)
				break;
			if (first == index) {
				enqueued_ns = held->enqueued_ns;
				t->tag = held->tag;
				t->incoming = reads(held);
			} else if (bytes + held->bytes > q->quantum_bytes ||
				   (!held->hole && (reads(held) != t->incoming ||
						    memcmp(&held->tag, &t->tag, sizeof(t->tag))))) {
				break;
			}
			bytes += held->bytes;
			index++;
		}
		if (first == index)
			return;
		t->q = q;
		t->sequence = formed + 1;
		t->end = index;
		t->done_at = 0;
		t->bytes = bytes;
		t->enqueued_ns = enqueued_ns;
		t->owed = false;
		atomic_store_explicit(&t->permitted, 0, memory_order_relaxed);
		atomic_store_explicit(&t->id, 0, memory_order_relaxed);
		if (!submit(q, t))
			return;
		atomic_store(&q->wr_formed, index);
		atomic_store(&q->task_formed, ++formed);
	}
}
