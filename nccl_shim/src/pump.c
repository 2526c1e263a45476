/* Posts held work requests to the NIC, in order, as far as they may go.
 *
 * Only the owner of the queue pair does this. A thread that finds another owner goes on with its own work:
 * the owner checks for work after it has cleared the flag (shim_owner_leave). The fence there pairs with
 * the one in shim_pump, so one of the two sees the work. */
#include "pump.h"

#include "../../csrc/base/clock.h"
#include "budget.h"
#include "complete.h"
#include "gate.h"
#include "hold.h"
#include "ledger.h"
#include "log.h"
#include "owner.h"
#include "process.h"
#include "symbols.h"
#include "task.h"

#include <errno.h>
#include <mfs/client.h>

void shim_owner_leave(struct shim_qp *q)
{
	shim_owner_release(q);
	if (!atomic_load_explicit(&q->holds, memory_order_relaxed))
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (unlikely(shim_tasks_ready(q)))
		shim_pump(q);
}

void shim_pump(struct shim_qp *q)
{
	do {
		atomic_thread_fence(memory_order_seq_cst);
		if (!shim_owner_try(q))
			return;
		if (atomic_load(&q->live))
			shim_pump_owned(q);
		shim_owner_release(q);
		atomic_thread_fence(memory_order_seq_cst);
	} while (shim_tasks_ready(q));
}

/* True if the shim may request a completion of its own. The last work request of a task gets one if the
 * caller requested none, so that the arbiter learns in time when the task has left. This is done only if
 * the completion queue certainly has room and no thread sleeps on it. poll_cq removes the extra
 * completion; its wr_id is the address of the held copy. */
static bool may_force_signal(const struct shim_qp *q)
{
	struct ibv_cq *cq = q->send_cq_native;

	return q->send_cq && !q->send_cq->channel && !q->shared_receive && cq->cqe > 0 &&
	       atomic_load_explicit(&q->send_cq->claimed, memory_order_relaxed) <= (uint64_t)cq->cqe;
}

static void note_permit(struct shim_qp *q, struct shim_task *t)
{
	uint64_t now_ns = mfs_clock_ns(), none = 0;

	atomic_compare_exchange_strong(&q->flight_since_ns, &none, now_ns);
	if (atomic_load_explicit(&t->permitted, memory_order_acquire)) {
		t->owed = true;
		shim_count(&q->report->permits, 1);
	} else {
		if (!t->bypass && q->client)
			mfs_client_cancel(q->client, atomic_load(&t->id), true);
		if (!atomic_load(&shim.enforcing))
			shim_count(&q->report->bypassed_stale, 1);
		else if (shim_budget_over(q) || atomic_load(&q->force) == SHIM_FORCE_TIME)
			shim_count(&q->report->bypassed_hold, 1);
	}
	shim_count(&q->report->hold_ns, now_ns - t->enqueued_ns);
}

static int to_error(struct shim_qp *q)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	int rc = atomic_load(&q->context)->verbs->modify_qp(atomic_load(&q->qp), &attr, IBV_QP_STATE);

	atomic_store(&q->broken, 1);
	if (!rc)
		atomic_store(&q->state, IBV_QPS_ERR);
	return rc;
}

/* The provider has refused a deferred post for good. In the error state providers flush posts without
 * checking them, so it is tried again there. What is refused even in that state becomes flushed
 * completions that poll_cq returns. */
static int refused(struct shim_qp *q, int error)
{
	if (atomic_load(&q->state) != IBV_QPS_ERR) {
		shim_log(
			SHIM_REASON_POST,
			"the device refused a held work request (error %d): its queue pair goes to the error state",
			error);
		atomic_store(&q->force, 1);
		if (!to_error(q))
			return 0;
	}
	q->failed_ns = mfs_clock_ns();
	if (!atomic_exchange(&q->failed, 1))
		atomic_fetch_add(&shim.failures, 1);
	return -EIO;
}

static void account_held(struct shim_qp *q, struct shim_ledger *ledger, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i != end; i++) {
		struct shim_held *held = shim_held_at(q, i);

		if (!held->hole)
			shim_ledger_add(q, ledger, held->bytes, held->wr.send_flags & IBV_SEND_SIGNALED,
					i + 1, held->wr.wr_id == (uintptr_t)held);
	}
}

/* Posts the rest of the task as one chain. */
static int post_task(struct shim_qp *q, struct shim_task *t)
{
	uint64_t first = atomic_load(&q->wr_posted), done_at = 0, end;
	struct ibv_send_wr *head = NULL, **link = &head, *bad = NULL;
	struct shim_ledger ledger, before;
	struct shim_held *last = NULL;
	int rc = 0;

	for (uint64_t i = first; i != t->end; i++) {
		struct shim_held *held = shim_held_at(q, i);

		if (held->hole)
			continue;
		if (i + 1 == t->end && t->owed && !(held->wr.send_flags & IBV_SEND_SIGNALED) &&
		    may_force_signal(q)) {
			held->wr.send_flags |= IBV_SEND_SIGNALED;
			held->wr.wr_id = (uintptr_t)held;
		}
		if (held->wr.send_flags & IBV_SEND_SIGNALED)
			done_at = i + 1;
		held->wr.next = NULL;
		*link = &held->wr;
		link = &held->wr.next;
		last = held;
	}
	if (done_at)
		t->done_at = done_at;
	if (last) {
		before = shim_ledger_open(q, shim_stage_of(q, &t->tag));
		ledger = before;
		account_held(q, &ledger, first, t->end);
		shim_ledger_publish(q, before.bytes, &ledger, false);
		rc = q->post_send(atomic_load_explicit(&q->qp, memory_order_relaxed), head, &bad);
	}
	if (!rc) {
		shim_held_left(q, first, t->end);
		return 0;
	}
	for (end = first; end != t->end && &shim_held_at(q, end)->wr != bad; end++)
		;
	if (end == t->end)
		end = first; /* the provider did not report where it stopped */
	struct shim_ledger after = before;

	account_held(q, &after, first, end);
	shim_ledger_publish(q, ledger.bytes, &after, false);
	shim_held_left(q, first, end);
	if (rc != ENOMEM && rc != -ENOMEM) /* some providers return it negated */
		return refused(q, rc);
	atomic_store(&q->blocked, 1);
	return -EAGAIN;
}

/* Owner flag held. Returns 0, -EAGAIN when the provider has no room now, or -EIO when it refuses. */
int shim_pump_owned(struct shim_qp *q)
{
	int rc = 0;

	if (!q->fifo)
		return 0;
	while (!shim_stuck(q)) {
		uint64_t posted = atomic_load(&q->task_posted);
		struct shim_task *t;

		shim_tasks_form(q);
		if (posted && atomic_load(&q->wr_posted) < q->tasks[(posted - 1) & q->ring_mask].end) {
			t = &q->tasks[(posted - 1) & q->ring_mask]; /* part of it was posted before */
		} else if (posted == atomic_load(&q->task_formed)) {
			break;
		} else {
			t = &q->tasks[posted & q->ring_mask];
			if (!t->bypass && !shim_task_may_go(q, posted))
				break;
			note_permit(q, t);
			atomic_store(&q->task_posted, posted + 1);
		}
		rc = post_task(q, t);
		if (!rc && !t->done_at)
			shim_complete(q, 0); /* its completion will not be seen: count it as complete now */
	}
	if (atomic_load(&q->wr_posted) == atomic_load(&q->wr_next)) {
		atomic_store(&q->force, 0);
		atomic_store(&q->held_since_ns, 0);
	} else if (atomic_load(&q->task_posted) != atomic_load(&q->task_formed)) {
		atomic_store(&q->held_since_ns,
			     q->tasks[atomic_load(&q->task_posted) & q->ring_mask].enqueued_ns);
	}
	shim_report_held(q);
	if (shim_stuck(q))
		rc = atomic_load(&q->failed) ? -EIO : -EAGAIN;
	return rc;
}
