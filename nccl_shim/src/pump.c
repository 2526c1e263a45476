/* From the queue to the NIC: forms tasks of what is held, asks for permits, posts in order what may go.
 *
 * Only the owner of the queue pair does any of this. Whoever wants it done and finds another owner leaves: the owner looks
 * again after letting go (shim_owner_leave), and the fence there pairs with the one in shim_pump, so that one of both
 * sees the work.
 */
#include "ledger.h"
#include "owner.h"

#include <errno.h>
#include <sched.h>
#include <string.h>

void shim_acquire_slow(_Atomic uint32_t *flag)
{
	for (unsigned spins = 0; !shim_try(flag); spins++) {
		shim_pause();
		if (spins % 64 == 63)
			sched_yield();
	}
}

/* The bound is for a thread that was cancelled inside: nobody may wait for it for ever. */
bool shim_acquire_for(_Atomic uint32_t *flag, uint64_t ns)
{
	uint64_t until;

	if (shim_try(flag))
		return true;
	until = shim_now_ns() + ns;
	for (unsigned spins = 0; shim_now_ns() < until; spins++) {
		if (shim_try(flag))
			return true;
		shim_pause();
		if (spins % 16 == 15)
			sched_yield();
	}
	return false;
}

/* ---- what may go ----------------------------------------------------------------------------------------------------------- */

/* Tasks are numbered from 1; `posted` tasks have gone. Says whether the next one may go. */
static bool next_may_go(struct shim_qp *q, uint64_t posted)
{
	return atomic_load_explicit(&q->permitted_sequence, memory_order_acquire) > posted ||
	       atomic_load_explicit(&q->force, memory_order_acquire) ||
	       !atomic_load_explicit(&shim.enforcing, memory_order_acquire) || shim_budget_over(q);
}

static bool stuck(struct shim_qp *q)
{
	return atomic_load(&q->blocked) || atomic_load(&q->failed);
}

/* What needs no slot does not wait for one. */
static bool waits_for_slot(struct shim_qp *q)
{
	return atomic_load(&q->starved) && !atomic_load(&q->force) && atomic_load(&shim.enforcing) && !shim_budget_over(q);
}

static uint32_t waiting_max(void)
{
	uint32_t listed = atomic_load_explicit(&shim.listed, memory_order_relaxed);
	uint32_t share = listed ? MFS_TASKS_MAX / 2 / listed : SHIM_TASKS_WAITING_MAX;

	return share > SHIM_TASKS_WAITING_MAX	? SHIM_TASKS_WAITING_MAX
	       : share < SHIM_TASKS_WAITING_MIN ? SHIM_TASKS_WAITING_MIN
						: share;
}

static bool work_is_ready(struct shim_qp *q)
{
	uint64_t formed = atomic_load(&q->wr_formed);
	uint64_t task_formed = atomic_load(&q->task_formed), task_posted = atomic_load(&q->task_posted);

	if (!atomic_load(&q->holds) || !atomic_load(&q->live) || stuck(q))
		return false;
	if (task_formed != task_posted && next_may_go(q, task_posted))
		return true;
	return atomic_load(&shim_held_at(q, formed)->published) == formed + 1 && !waits_for_slot(q) &&
	       task_formed - task_posted < waiting_max();
}

void shim_owner_leave(struct shim_qp *q)
{
	shim_owner_release(q);
	if (!atomic_load_explicit(&q->holds, memory_order_relaxed))
		return;
	atomic_thread_fence(memory_order_seq_cst);
	if (unlikely(work_is_ready(q)))
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
	} while (work_is_ready(q));
}

/* Posts everything held, without waiting for permits. */
void shim_flush(struct shim_qp *q)
{
	if (!q->fifo || atomic_load(&q->wr_posted) == atomic_load(&q->wr_next))
		return;
	atomic_store(&q->force, 1);
	shim_pump(q);
}

/* ---- tasks ------------------------------------------------------------------------------------------------------------------- */

/* Whoever takes permits says so, and the owner for what goes on credit. */
static void permitted_set(struct shim_qp *q, struct shim_task *t)
{
	uint64_t before = atomic_load(&q->permitted_sequence);

	atomic_store_explicit(&t->permitted, 1, memory_order_release);
	while (before < t->sequence && !atomic_compare_exchange_weak(&q->permitted_sequence, &before, t->sequence))
		;
}

/* Whether the wire keeps what the queue pair sends apart from collectives: its own class is below theirs. What it reads
 * comes with the class of the other end's queue pair, which is not known. */
static bool apart(const struct shim_qp *q)
{
	const struct mfs_segment_header *header = &mfs_client_segment(q->client)->header;
	uint8_t dscp = atomic_load_explicit(&q->wire_dscp, memory_order_relaxed);
	uint8_t classes = atomic_load_explicit(&header->apart, memory_order_relaxed);

	for (unsigned c = 0; classes && dscp != MFS_DSCP_KEEP && c < MFS_CLASSES_MAX; c++)
		if (classes >> c & 1 && atomic_load_explicit(&header->dscp[c], memory_order_relaxed) == dscp)
			return true;
	return false;
}

/* False: there is no slot now. The task is formed again when the thread looks, or goes when the hold budget is used up. */
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
				.at_once = true,
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
	if (!mfs_client_alive(q->client, shim_now_ns())) {
		shim_wake();
		return true;
	}
	task.nic = (uint8_t)nic;
	task.class_marked = !t->incoming && apart(q);
	t->bypass = 0;
	rc = mfs_client_submit(q->client, &task, t, &id);
	if (rc >= 0) {
		atomic_store_explicit(&t->id, id, memory_order_release);
		if (rc > 0)
			permitted_set(q, t);
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

/* Its bytes come here. */
static bool reads(const struct shim_held *held)
{
	return !held->hole && held->wr.opcode == IBV_WR_RDMA_READ;
}

/* A task is of one tag and one direction. */
static void form_tasks(struct shim_qp *q)
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
				   (!held->hole && (reads(held) != t->incoming || memcmp(&held->tag, &t->tag, sizeof(t->tag))))) {
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

/* The last work request of a task gets a signal of the shim's own if the caller asked for none, so that the arbiter learns
 * in time when the task has left. Only where the completion queue certainly has room and nobody sleeps on it; poll_cq
 * takes the extra completion out again, known by its wr_id, the address of the held copy. */
static bool may_force_signal(const struct shim_qp *q)
{
	struct ibv_cq *cq = q->send_cq_native;

	return q->send_cq && !q->send_cq->channel && !q->shared_receive && cq->cqe > 0 &&
	       atomic_load_explicit(&q->send_cq->claimed, memory_order_relaxed) <= (uint64_t)cq->cqe;
}

static void note_permit(struct shim_qp *q, struct shim_task *t)
{
	uint64_t now_ns = shim_now_ns(), none = 0;

	atomic_compare_exchange_strong(&q->flight_since_ns, &none, now_ns);
	if (atomic_load_explicit(&t->permitted, memory_order_acquire)) {
		t->owed = true;
		shim_count(&q->report->permits, 1);
	} else {
		if (!t->bypass && q->client)
			mfs_client_cancel(q->client, atomic_load(&t->id), true);
		if (!atomic_load(&shim.enforcing))
			shim_count(&q->report->bypassed_stale, 1);
		else if (shim_budget_over(q))
			shim_count(&q->report->bypassed_hold, 1);
	}
	shim_count(&q->report->hold_ns, now_ns - t->enqueued_ns);
}

/* A deferred post was refused for good. In the error state providers flush without judging, so it is tried there; what is
 * refused even there becomes flushed completions that poll_cq hands out. */
static int refused(struct shim_qp *q, int error)
{
	if (atomic_load(&q->state) != IBV_QPS_ERR) {
		shim_log(SHIM_REASON_POST,
			 "the device refused a held work request (error %d): its queue pair goes to the error state",
			 error);
		atomic_store(&q->force, 1);
		if (!shim_qp_to_error(q))
			return 0;
	}
	q->failed_ns = shim_now_ns();
	if (!atomic_exchange(&q->failed, 1))
		atomic_fetch_add(&shim.failures, 1);
	return -EIO;
}

/* The held work requests [first, end) went to the NIC or became completions. */
void shim_held_left(struct shim_qp *q, uint64_t first, uint64_t end)
{
	uint64_t bytes = 0;

	for (uint64_t i = first; i != end; i++)
		bytes += shim_held_at(q, i)->hole ? 0 : shim_held_at(q, i)->bytes;
	shim_count(&shim.held_bytes, -bytes);
	shim_count(&shim.attention, -(end - first));
	atomic_store(&q->wr_posted, end);
}

/* Owner held, so the segment stays mapped. For people only: the last of two threads wins. */
void shim_report_held(struct shim_qp *q)
{
	atomic_store_explicit(&q->report->held_bytes, atomic_load_explicit(&shim.held_bytes, memory_order_relaxed),
			      memory_order_relaxed);
	atomic_store_explicit(&q->report->held_work_requests,
			      atomic_load_explicit(&shim.attention, memory_order_relaxed), memory_order_relaxed);
}

static void account_held(struct shim_qp *q, struct shim_ledger *ledger, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i != end; i++) {
		struct shim_held *held = shim_held_at(q, i);

		if (!held->hole)
			shim_ledger_add(q, ledger, held->bytes, held->wr.send_flags & IBV_SEND_SIGNALED, i + 1,
					held->wr.wr_id == (uintptr_t)held);
	}
}

/* Posts what is left of the task as one chain. */
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
		if (i + 1 == t->end && t->owed && !(held->wr.send_flags & IBV_SEND_SIGNALED) && may_force_signal(q)) {
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
		end = first; /* the provider did not say where it stopped */
	struct shim_ledger after = before;

	account_held(q, &after, first, end);
	shim_ledger_publish(q, ledger.bytes, &after, false);
	shim_held_left(q, first, end);
	if (rc != ENOMEM && rc != -ENOMEM) /* some say it so */
		return refused(q, rc);
	atomic_store(&q->blocked, 1);
	return -EAGAIN;
}

/* Owner held. 0, or -EAGAIN when the provider has no room now, or -EIO when it refuses. */
int shim_pump_owned(struct shim_qp *q)
{
	int rc = 0;

	if (!q->fifo)
		return 0;
	while (!stuck(q)) {
		uint64_t posted = atomic_load(&q->task_posted);
		struct shim_task *t;

		form_tasks(q);
		if (posted && atomic_load(&q->wr_posted) < q->tasks[(posted - 1) & q->ring_mask].end) {
			t = &q->tasks[(posted - 1) & q->ring_mask]; /* it was posted in part */
		} else if (posted == atomic_load(&q->task_formed)) {
			break;
		} else {
			t = &q->tasks[posted & q->ring_mask];
			if (!t->bypass && !next_may_go(q, posted))
				break;
			note_permit(q, t);
			atomic_store(&q->task_posted, posted + 1);
		}
		rc = post_task(q, t);
		if (!rc && !t->done_at)
			shim_complete(q, 0); /* nothing will tell when it is complete: count it so now */
	}
	if (atomic_load(&q->wr_posted) == atomic_load(&q->wr_next)) {
		atomic_store(&q->force, 0);
		atomic_store(&q->held_since_ns, 0);
	} else if (atomic_load(&q->task_posted) != atomic_load(&q->task_formed)) {
		atomic_store(&q->held_since_ns,
			     q->tasks[atomic_load(&q->task_posted) & q->ring_mask].enqueued_ns);
	}
	shim_report_held(q);
	if (stuck(q))
		rc = atomic_load(&q->failed) ? -EIO : -EAGAIN;
	return rc;
}

/* ---- permits ----------------------------------------------------------------------------------------------------------------- */

/* Waits until nobody hands out a permit that was taken before. False: somebody has been at it for too long, and may be dead. */
bool shim_permits_settle(void)
{
	if (!shim_acquire_for(&shim.draining, 1000000000))
		return false;
	shim_release(&shim.draining);
	return true;
}

/* Takes the permits that have arrived and posts what they allow. A permit for a later task of a queue pair lets the
 * earlier ones go first: they are ahead of it in any case, and it would keep its share of the window while it waits. */
void shim_permits(void)
{
	struct mfs_permit permits[32];
	struct shim_qp *pump[32];
	int n, queue_pairs;

	do {
		if (!shim_try(&shim.draining))
			return;
		struct mfs_client *client = atomic_load(&shim.client);

		n = client && mfs_client_permits_pending(client) ? mfs_client_permits(client, permits, 32) : 0;
		queue_pairs = 0;
		for (int i = 0; i < n; i++) {
			struct shim_task *t = permits[i].cookie;
			struct shim_qp *q = t->q;
			uint64_t id = atomic_load_explicit(&t->id, memory_order_acquire);

			if (!q || (id && id != permits[i].task_id)) /* a task of long ago; see shim_hold_trim */
				continue;
			permitted_set(q, t);
			if (!queue_pairs || pump[queue_pairs - 1] != q)
				pump[queue_pairs++] = q;
		}
		shim_release(&shim.draining);
		for (int i = 0; i < queue_pairs; i++)
			shim_pump(pump[i]);
	} while (n == 32);
}
