/* The held work requests of one queue pair: deep copies in a ring that is allocated beforehand.
 *
 * A work request has an index that never repeats. A posting thread reserves indices by compare-and-swap,
 * never more than the caller's slots (cap.max_send_wr, counted from `retired`). The ring has twice as many
 * slots: the provider may complete the first work requests of a chain, and another thread may reserve again,
 * before the owner's post of that chain has returned. At most twice the caller's slots are thus reserved and
 * not yet returned from a post, so the slot of a new index is always free. The thread fills the slot and
 * publishes it; the owner takes published slots in order. A reservation that is not used becomes a hole. */
#include "hold.h"

#include "../../csrc/base/clock.h"
#include "budget.h"
#include "compiler.h"
#include "complete.h"
#include "counter.h"
#include "gate.h"
#include "log.h"
#include "metadata.h"
#include "process.h"

#include <errno.h>
#include <mfs/client.h>
#include <string.h>
#include <sys/mman.h>

bool shim_hold_allocate(struct shim_qp *q)
{
	uint64_t slots = (uint64_t)q->ring_mask + 1, task_bytes = slots * sizeof(struct shim_task);
	void *memory;

	q->fifo_stride = (sizeof(struct shim_held) + q->cap.max_send_sge * sizeof(struct ibv_sge) +
			  q->cap.max_inline_data + 15) &
			 ~15ULL;
	q->fifo_bytes = slots * q->fifo_stride;
	memory = mmap(NULL, q->fifo_bytes + task_bytes, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory == MAP_FAILED) {
		shim_log(SHIM_REASON_MEMORY,
			 "no memory to hold work requests of a queue pair: it passes through");
		return false;
	}
	q->tasks = (struct shim_task *)((char *)memory + q->fifo_bytes);
	q->fifo = memory;
	return true;
}

void shim_hold_free(struct shim_qp *q)
{
	if (q->fifo)
		munmap(q->fifo, q->fifo_bytes + ((uint64_t)q->ring_mask + 1) * sizeof(struct shim_task));
	q->fifo = NULL;
	q->tasks = NULL;
}

/* True if the work request can be held: only what every provider accepts is. The rest (bad or rare ones)
 * is posted natively behind what is held, so that the provider itself returns the result. */
static bool holdable(const struct shim_qp *q, const struct ibv_send_wr *wr)
{
	uint64_t bytes = 0;

	switch (wr->opcode) {
	case IBV_WR_RDMA_READ:
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		if (wr->send_flags & IBV_SEND_INLINE)
			return false;
		break;
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		break;
	default:
		return false;
	}
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_send_sge || (wr->num_sge && !wr->sg_list))
		return false;
	if (wr->send_flags & IBV_SEND_INLINE)
		for (int i = 0; i < wr->num_sge; i++)
			bytes += wr->sg_list[i].length;
	return bytes <= q->cap.max_inline_data;
}

/* `retired` is read first. What other threads reserve and retire in between can then only make fewer slots
 * seem free. */
static uint64_t slots_free(struct shim_qp *q, uint64_t *next)
{
	uint64_t retired = atomic_load_explicit(&q->retired, memory_order_acquire), used;

	*next = atomic_load_explicit(&q->wr_next, memory_order_relaxed);
	used = *next - retired;
	return used >= q->cap.max_send_wr ? 0 : q->cap.max_send_wr - used;
}

/* Reserves up to `wanted` indices. Returns false when no slot is free. */
bool shim_hold_reserve(struct shim_qp *q, uint64_t wanted, uint64_t *first, uint64_t *count)
{
	uint64_t next, free = slots_free(q, &next);

	if (unlikely(free < wanted)) {
		shim_settle(q);
		free = slots_free(q, &next);
	}
	for (;; free = slots_free(q, &next)) {
		if (!free)
			return false;
		*count = free < wanted ? free : wanted;
		if (atomic_compare_exchange_weak_explicit(&q->wr_next, &next, next + *count,
							  memory_order_acq_rel, memory_order_relaxed))
			break;
	}
	*first = next;
	shim_count(&shim.held_requests, *count);
	return true;
}

void shim_hold_publish(struct shim_qp *q, uint64_t index, uint64_t now_ns)
{
	struct shim_held *held = shim_held_at(q, index);
	uint64_t none = 0, hold_until_ns;

	if (unlikely(MFS_STAGES_UNSCHEDULED >> shim_stage_of(q, &held->tag) & 1))
		atomic_store(&q->force, 1); /* it never waits, so what is ahead of it must not wait either */
	held->enqueued_ns = now_ns;
	held->hole = false;
	hold_until_ns = shim_hold_until_ns(q, held);
	if (unlikely(hold_until_ns && now_ns >= hold_until_ns))
		atomic_store(&q->force, SHIM_FORCE_TIME);
	shim_count(&shim.held_bytes, held->bytes);
	atomic_compare_exchange_strong(&q->held_since_ns, &none, now_ns);
	atomic_store_explicit(&held->published, index + 1, memory_order_release);
	if (hold_until_ns)
		shim_lease_note(q, hold_until_ns);
	shim_list(q);
}

void shim_hold_void(struct shim_qp *q, uint64_t index)
{
	struct shim_held *held = shim_held_at(q, index);

	held->hole = true;
	held->bytes = 0;
	held->tag = shim_untagged;
	atomic_store_explicit(&held->published, index + 1, memory_order_release);
}

static void copy(struct shim_qp *q, struct shim_held *held, const struct ibv_send_wr *wr,
		 const struct shim_tag *tag)
{
	char *payload = (char *)(held->sge + q->cap.max_send_sge);

	held->tag = *tag;
	held->wr = *wr;
	held->caller_wr_id = wr->wr_id;
	held->wr.sg_list = held->sge;
	held->bytes = 0;
	for (int i = 0; i < wr->num_sge; i++) {
		held->sge[i] = wr->sg_list[i];
		held->bytes += wr->sg_list[i].length;
		if (wr->send_flags & IBV_SEND_INLINE) {
			memcpy(payload, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
			held->sge[i].addr = (uintptr_t)payload;
			payload += wr->sg_list[i].length;
		}
	}
	if (q->sq_sig_all)
		held->wr.send_flags |= IBV_SEND_SIGNALED;
}

/* Takes the work requests of the chain in order. Stops with ENOMEM when the slots are used up, or with 0 at
 * the first one that cannot be held; *rest is the first one not taken. *rest is NULL when all were taken. */
int shim_hold_chain(struct shim_qp *q, struct ibv_send_wr *wr, const struct shim_tag *tag,
		    struct ibv_send_wr **rest)
{
	uint64_t wanted = 0, first, count, now_ns = mfs_clock_ns();
	struct ibv_send_wr *w;

	for (w = wr; w && holdable(q, w); w = w->next)
		wanted++;
	*rest = wr;
	if (!wanted)
		return 0;
	if (!shim_hold_reserve(q, wanted, &first, &count))
		return ENOMEM;
	for (uint64_t i = 0; i < count; i++, wr = wr->next) {
		copy(q, shim_held_at(q, first + i), wr, tag);
		shim_hold_publish(q, first + i, now_ns);
	}
	*rest = wr;
	return count < wanted ? ENOMEM : 0;
}

/* Both flags held. Drops what is held, as a provider does on RESET and destroy. */
void shim_hold_drop(struct shim_qp *q)
{
	uint64_t next = atomic_load(&q->wr_next), posted = atomic_load(&q->wr_posted);

	if (!q->fifo)
		return;
	for (uint64_t i = atomic_load(&q->task_posted); i != atomic_load(&q->task_formed); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];

		if (!t->bypass && q->client)
			mfs_client_cancel(q->client, atomic_load(&t->id), false);
	}
	atomic_store(&q->task_posted, atomic_load(&q->task_formed));
	for (uint64_t i = posted; i != next; i++) {
		struct shim_held *held = shim_held_at(q, i);

		if (atomic_load(&held->published) != i + 1 || held->hole)
			continue;
		shim_count(&shim.held_bytes, -held->bytes);
	}
	shim_count(&shim.held_requests, -(next - posted));
	atomic_store(&q->wr_posted, next);
	atomic_store(&q->wr_formed, next);
	atomic_store(&q->held_since_ns, 0);
	shim_report_held(q);
}

/* The held work requests [first, end) went to the NIC or became completions: takes them off the counters. */
void shim_held_left(struct shim_qp *q, uint64_t first, uint64_t end)
{
	uint64_t bytes = 0;

	for (uint64_t i = first; i != end; i++)
		bytes += shim_held_at(q, i)->hole ? 0 : shim_held_at(q, i)->bytes;
	shim_count(&shim.held_bytes, -bytes);
	shim_count(&shim.held_requests, -(end - first));
	atomic_store(&q->wr_posted, end);
}

/* Owner flag held, so the segment stays mapped. For display only: of two threads, the last one wins. */
void shim_report_held(struct shim_qp *q)
{
	atomic_store_explicit(&q->report->held_bytes,
			      atomic_load_explicit(&shim.held_bytes, memory_order_relaxed),
			      memory_order_relaxed);
	atomic_store_explicit(&q->report->held_work_requests,
			      atomic_load_explicit(&shim.held_requests, memory_order_relaxed),
			      memory_order_relaxed);
}
