/* The ibv_wr_* interface: functions in struct ibv_qp_ex, one set for each queue pair.
 *
 * A queue pair that never holds builds in the provider as before, and is counted. A queue pair that holds
 * builds into the ring and is posted from there with post_send, which providers also accept on such queue
 * pairs. Queue pairs that asked for rarer operations (memory windows, TSO, atomic write, and operations
 * newer than our headers) are left alone. */
#include "builders.h"

#include "../../csrc/base/clock.h"
#include "gate.h"
#include "hold.h"
#include "ledger.h"
#include "metadata.h"
#include "owner.h"
#include "process.h"
#include "pump.h"
#include "table.h"
#include "wake.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define KNOWN_OPS                                                                                      \
	(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |        \
	 IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
	 IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)

bool shim_builder_can_hold(uint64_t ops)
{
	return !(ops & ~(uint64_t)KNOWN_OPS);
}

static struct shim_qp *queue_pair(struct ibv_qp_ex *qpx)
{
	struct shim_qp *q = shim_qp_first(&qpx->qp_base);

	return likely(q != NULL) ? q : shim_qp_find(&qpx->qp_base);
}

/* ---- start, complete, abort ------------------------------------------------------------------------------------------------ */

/* Counts the previous work request, whose length is known now. */
static void count_current(struct shim_qp *q, struct shim_builder *b)
{
	if (b->current)
		shim_ledger_add(q, &b->now, b->bytes, b->signaled, ++b->end, false);
	b->current = false;
}

static bool builds_held(struct shim_qp *q)
{
	uint8_t state = atomic_load_explicit(&q->state, memory_order_relaxed);

	return atomic_load_explicit(&q->holds, memory_order_acquire) &&
	       (state == IBV_QPS_RTS || state == IBV_QPS_SQD) && !atomic_load(&q->broken);
}

static void wr_start(struct ibv_qp_ex *qpx)
{
	struct shim_qp *q = queue_pair(qpx);
	struct shim_builder *b = &q->builder;
	struct shim_tag tag;

	shim_acquire(&b->busy); /* providers lock here as well */
	b->error = 0;
	b->current = false;
	b->count = 0;
	b->held = builds_held(q);
	if (b->held)
		return;
	b->entered = shim_owner_enter(q);
	if (unlikely(!b->entered)) {
		shim_owner_acquire(q);
		b->held = builds_held(q); /* it may have begun to hold just now */
		if (b->held) {
			shim_owner_leave(q);
			return;
		}
		if (atomic_load_explicit(&q->holds, memory_order_relaxed)) {
			atomic_store(&q->force, 1);
			shim_pump_owned(q);
		} else {
			shim_owner_give(q);
		}
	}
	tag = shim_tag_find(false, 0);
	b->named = false;
	b->before = b->now = shim_ledger_open(q, shim_stage_of(q, &tag));
	b->end = atomic_load_explicit(&q->wr_posted, memory_order_relaxed);
	b->real.wr_start(qpx);
}

static void finish_native(struct shim_qp *q, struct shim_builder *b, bool posted)
{
	uint64_t first = atomic_load(&q->wr_posted), expected = first;

	if (likely(b->entered)) { /* such a queue pair does not hold: no other thread gives out indices */
		if (posted) {
			atomic_store_explicit(&q->wr_posted, b->end, memory_order_relaxed);
			atomic_store_explicit(&q->wr_next, b->end, memory_order_relaxed);
		}
		shim_owner_exit(q);
		shim_release(&b->busy);
		return;
	}
	if (posted && atomic_compare_exchange_strong(&q->wr_next, &expected, b->end)) {
		atomic_store(&q->wr_posted, b->end);
		atomic_store(&q->wr_formed, b->end);
	} else if (posted && b->end != first) {
		/* another thread has meanwhile begun to hold here, on a queue pair that fails or changes
		 * its state: what was built has no indices, so nothing can be accounted any more, and what
		 * is held goes behind it */
		atomic_store(&q->broken, 1);
		atomic_store(&q->force, 1);
	}
	shim_owner_leave(q);
	shim_release(&b->busy);
}

/* Gives back the reservations of what was built. If others have reserved behind them, they become holes. */
static void undo_held(struct shim_qp *q, struct shim_builder *b)
{
	uint64_t expected = b->last + 1;

	if (!b->count)
		return;
	if (b->last - b->first + 1 == b->count &&
	    atomic_compare_exchange_strong(&q->wr_next, &expected, b->first)) {
		shim_count(&shim.held_requests, -b->count);
		return;
	}
	for (uint64_t i = b->first, n = b->count; n; n--) {
		uint64_t next = shim_held_at(q, i)->built_next;

		shim_hold_void(q, i);
		i = next;
	}
	shim_pump(q);
}

static int wr_complete(struct ibv_qp_ex *qpx)
{
	struct shim_qp *q = queue_pair(qpx);
	struct shim_builder *b = &q->builder;
	int rc = b->error;

	if (!b->held) {
		count_current(q, b);
		shim_ledger_publish(q, b->before.bytes, &b->now, b->entered);
		rc = b->real.wr_complete(qpx);
		if (rc)
			shim_ledger_publish(q, b->now.bytes, &b->before, b->entered);
		finish_native(q, b, !rc);
		return rc;
	}
	if (rc) {
		undo_held(q, b);
	} else if (b->count) {
		uint64_t now_ns = mfs_clock_ns();

		for (uint64_t i = b->first, n = b->count; n; n--) {
			uint64_t next = shim_held_at(q, i)->built_next;

			shim_hold_publish(q, i, now_ns);
			i = next;
		}
		shim_pump(q);
		shim_wake();
	}
	shim_release(&b->busy);
	return rc;
}

static void wr_abort(struct ibv_qp_ex *qpx)
{
	struct shim_qp *q = queue_pair(qpx);
	struct shim_builder *b = &q->builder;

	if (b->held) {
		undo_held(q, b);
		shim_release(&b->busy);
	} else {
		b->real.wr_abort(qpx);
		finish_native(q, b, false);
	}
}

/* ---- operations ------------------------------------------------------------------------------------------------------------ */

/* Begins a work request. Returns it if it is to be filled here, or NULL if the provider builds it or there
 * is no slot for it. */
static struct ibv_send_wr *begin(struct shim_qp *q, struct ibv_qp_ex *qpx, enum ibv_wr_opcode opcode)
{
	struct shim_builder *b = &q->builder;
	struct shim_held *held;
	uint64_t index, count;

	if (!b->held) {
		b->named |= b->current;
		count_current(q, b);
		b->current = true;
		b->bytes = 0;
		b->signaled = q->sq_sig_all || qpx->wr_flags & IBV_SEND_SIGNALED;
		return NULL;
	}
	b->current = false;
	if (b->error)
		return NULL;
	if (!shim_hold_reserve(q, 1, &index, &count)) {
		b->error = ENOMEM;
		return NULL;
	}
	held = shim_held_at(q, index);
	memset(&held->wr, 0, sizeof(held->wr));
	held->wr.wr_id = held->caller_wr_id = qpx->wr_id;
	held->wr.opcode = opcode;
	held->wr.send_flags = qpx->wr_flags & ~(unsigned)IBV_SEND_INLINE;
	if (q->sq_sig_all)
		held->wr.send_flags |= IBV_SEND_SIGNALED;
	held->wr.sg_list = held->sge;
	held->bytes = 0;
	held->tag = shim_tag_find(false, 0);
	if (b->count++)
		shim_held_at(q, b->last)->built_next = index;
	else
		b->first = index;
	b->last = index;
	b->current = true;
	return &held->wr;
}

static void wr_rdma_write(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr)
{
	struct shim_qp *q = queue_pair(qpx);
	struct ibv_send_wr *wr = begin(q, qpx, IBV_WR_RDMA_WRITE);

	if (!q->builder.held) {
		q->builder.real.wr_rdma_write(qpx, rkey, remote_addr);
	} else if (wr) {
		wr->wr.rdma.rkey = rkey;
		wr->wr.rdma.remote_addr = remote_addr;
	}
}

static void wr_rdma_write_imm(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, __be32 imm_data)
{
	struct shim_qp *q = queue_pair(qpx);
	struct ibv_send_wr *wr = begin(q, qpx, IBV_WR_RDMA_WRITE_WITH_IMM);

	if (!q->builder.held) {
		q->builder.real.wr_rdma_write_imm(qpx, rkey, remote_addr, imm_data);
	} else if (wr) {
		wr->wr.rdma.rkey = rkey;
		wr->wr.rdma.remote_addr = remote_addr;
		wr->imm_data = imm_data;
	}
}

static void wr_rdma_read(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr)
{
	struct shim_qp *q = queue_pair(qpx);
	struct ibv_send_wr *wr = begin(q, qpx, IBV_WR_RDMA_READ);

	if (!q->builder.held) {
		q->builder.real.wr_rdma_read(qpx, rkey, remote_addr);
	} else if (wr) {
		wr->wr.rdma.rkey = rkey;
		wr->wr.rdma.remote_addr = remote_addr;
	}
}

static void wr_send(struct ibv_qp_ex *qpx)
{
	struct shim_qp *q = queue_pair(qpx);

	begin(q, qpx, IBV_WR_SEND);
	if (!q->builder.held)
		q->builder.real.wr_send(qpx);
}

static void wr_send_imm(struct ibv_qp_ex *qpx, __be32 imm_data)
{
	struct shim_qp *q = queue_pair(qpx);
	struct ibv_send_wr *wr = begin(q, qpx, IBV_WR_SEND_WITH_IMM);

	if (!q->builder.held)
		q->builder.real.wr_send_imm(qpx, imm_data);
	else if (wr)
		wr->imm_data = imm_data;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, uint64_t compare,
			      uint64_t swap)
{
	struct shim_qp *q = queue_pair(qpx);
	struct ibv_send_wr *wr = begin(q, qpx, IBV_WR_ATOMIC_CMP_AND_SWP);

	if (!q->builder.held) {
		q->builder.real.wr_atomic_cmp_swp(qpx, rkey, remote_addr, compare, swap);
	} else if (wr) {
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.remote_addr = remote_addr;
		wr->wr.atomic.compare_add = compare;
		wr->wr.atomic.swap = swap;
	}
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t remote_addr, uint64_t add)
{
	struct shim_qp *q = queue_pair(qpx);
	struct ibv_send_wr *wr = begin(q, qpx, IBV_WR_ATOMIC_FETCH_AND_ADD);

	if (!q->builder.held) {
		q->builder.real.wr_atomic_fetch_add(qpx, rkey, remote_addr, add);
	} else if (wr) {
		wr->wr.atomic.rkey = rkey;
		wr->wr.atomic.remote_addr = remote_addr;
		wr->wr.atomic.compare_add = add;
	}
}

/* ---- data ------------------------------------------------------------------------------------------------------------------ */

/* What the provider builds in one go is counted as one, in the stage of its first work request. */
static void native_named(struct shim_qp *q, uint64_t address)
{
	struct shim_builder *b = &q->builder;
	struct shim_tag tag;

	if (likely(!shim_tags_exist()) || b->named)
		return;
	b->named = true;
	tag = shim_tag_find(true, address);
	b->before = b->now = shim_ledger_open(q, shim_stage_of(q, &tag));
}

static void held_sges(struct shim_qp *q, size_t n, const struct ibv_sge *sges)
{
	struct shim_builder *b = &q->builder;
	struct shim_held *held;

	if (b->error || !b->current)
		return;
	if (n > q->cap.max_send_sge) {
		b->error = ENOMEM;
		return;
	}
	held = shim_held_at(q, b->last);
	held->wr.num_sge = (int)n;
	if (n)
		held->tag = shim_tag_find(true, sges[0].addr);
	for (size_t i = 0; i < n; i++) {
		held->sge[i] = sges[i];
		held->bytes += sges[i].length;
	}
}

static void held_inline(struct shim_qp *q, size_t n, const struct ibv_data_buf *buffers)
{
	struct shim_builder *b = &q->builder;
	struct shim_held *held;
	size_t length = 0;
	char *payload;

	if (b->error || !b->current)
		return;
	for (size_t i = 0; i < n; i++)
		length += buffers[i].length;
	if (length > q->cap.max_inline_data || !q->cap.max_send_sge) {
		b->error = ENOMEM;
		return;
	}
	held = shim_held_at(q, b->last);
	payload = (char *)(held->sge + q->cap.max_send_sge);
	held->sge[0] = (struct ibv_sge){.addr = (uintptr_t)payload, .length = (uint32_t)length};
	held->wr.num_sge = 1;
	if (n)
		held->tag = shim_tag_find(true, (uintptr_t)buffers[0].addr);
	held->wr.send_flags |= IBV_SEND_INLINE;
	held->bytes = length;
	for (size_t i = 0; i < n; i++) {
		memcpy(payload, buffers[i].addr, buffers[i].length);
		payload += buffers[i].length;
	}
}

static void wr_set_sge(struct ibv_qp_ex *qpx, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
	struct shim_qp *q = queue_pair(qpx);

	if (q->builder.held) {
		held_sges(q, 1, &sge);
	} else {
		native_named(q, addr);
		q->builder.bytes += length;
		q->builder.real.wr_set_sge(qpx, lkey, addr, length);
	}
}

static void wr_set_sge_list(struct ibv_qp_ex *qpx, size_t n, const struct ibv_sge *sges)
{
	struct shim_qp *q = queue_pair(qpx);

	if (q->builder.held) {
		held_sges(q, n, sges);
	} else {
		for (size_t i = 0; i < n; i++)
			q->builder.bytes += sges[i].length;
		if (n)
			native_named(q, sges[0].addr);
		q->builder.real.wr_set_sge_list(qpx, n, sges);
	}
}

static void wr_set_inline_data(struct ibv_qp_ex *qpx, void *addr, size_t length)
{
	struct ibv_data_buf buffer = {.addr = addr, .length = length};
	struct shim_qp *q = queue_pair(qpx);

	if (q->builder.held) {
		held_inline(q, 1, &buffer);
	} else {
		native_named(q, (uintptr_t)addr);
		q->builder.bytes += length;
		q->builder.real.wr_set_inline_data(qpx, addr, length);
	}
}

static void wr_set_inline_data_list(struct ibv_qp_ex *qpx, size_t n, const struct ibv_data_buf *buffers)
{
	struct shim_qp *q = queue_pair(qpx);

	if (q->builder.held) {
		held_inline(q, n, buffers);
	} else {
		for (size_t i = 0; i < n; i++)
			q->builder.bytes += buffers[i].length;
		if (n)
			native_named(q, (uintptr_t)buffers[0].addr);
		q->builder.real.wr_set_inline_data_list(qpx, n, buffers);
	}
}

/* ---- patching -------------------------------------------------------------------------------------------------------------- */

/* clang-format off */
#define EACH_FUNCTION(X)                                                                                               \
	X(wr_start) X(wr_complete) X(wr_abort) X(wr_rdma_write) X(wr_rdma_write_imm) X(wr_rdma_read) X(wr_send)        \
	X(wr_send_imm) X(wr_atomic_cmp_swp) X(wr_atomic_fetch_add) X(wr_set_sge) X(wr_set_sge_list)                    \
	X(wr_set_inline_data) X(wr_set_inline_data_list)
/* clang-format on */

void shim_builder_patch(struct shim_qp *q, struct ibv_qp_ex *qpx, uint64_t ops)
{
	if (!ops || !qpx || !qpx->wr_start || qpx->wr_start == wr_start)
		return;
	q->builder.qpx = qpx;
#define PATCH(f)                    \
	q->builder.real.f = qpx->f; \
	if (qpx->f)                 \
		qpx->f = f;
	EACH_FUNCTION(PATCH)
#undef PATCH
}

static void unpatch(struct shim_qp *q)
{
	if (!q->builder.qpx)
		return;
#define RESTORE(f) q->builder.qpx->f = q->builder.real.f;
	EACH_FUNCTION(RESTORE)
#undef RESTORE
	q->builder.qpx = NULL;
}

/* A forked child passes through. After ibv_fork_init the pages of registered memory are missing in the child.
 * If the provider's record shared such a page it is missing, too, and no thread can post through it anyway. */
static void after_fork(struct shim_qp *q)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), record = (uintptr_t)q->builder.qpx;
	const uintptr_t start = record & ~(page - 1);

	if (record && msync((void *)start, record + sizeof(*q->builder.qpx) - start, MS_ASYNC) == 0)
		unpatch(q);
	q->builder.qpx = NULL;
}

/* Called before the table forgets the queue pairs. */
void shim_builders_after_fork(void)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	while ((q = shim_qp_each(&cursor)))
		after_fork(q);
}
