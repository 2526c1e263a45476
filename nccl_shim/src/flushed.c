/* Completions that no provider makes: those of held work requests whose provider refuses posts even in the
 * error state. */
#include "flushed.h"

#include "../../csrc/base/clock.h"
#include "hold.h"
#include "owner.h"
#include "process.h"
#include "pump.h"
#include "table.h"

#include <mfs/client.h>
#include <string.h>

#define FLUSH_AFTER_NS 10000000 /* the provider's own flushed completions come first */

static enum ibv_wc_opcode completion_opcode(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

/* Owner flag held. Tasks whose work requests were all flushed need no permit any more. */
static void tasks_pass(struct shim_qp *q)
{
	for (uint64_t i = atomic_load(&q->task_posted); i != atomic_load(&q->task_formed); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];

		if (t->end > atomic_load(&q->wr_posted))
			break;
		if (!t->bypass && q->client)
			mfs_client_cancel(q->client, atomic_load(&t->id), false);
		atomic_store(&q->task_posted, i + 1);
	}
}

static int flushed(struct shim_qp *q, int n, struct ibv_wc *wc)
{
	int made = 0;

	if (mfs_clock_ns() - q->failed_ns < FLUSH_AFTER_NS || !shim_owner_try(q))
		return 0;
	while (made < n && atomic_load(&q->live)) {
		uint64_t index = atomic_load(&q->wr_posted);
		struct shim_held *held = shim_held_at(q, index);

		if (index == atomic_load(&q->wr_next) || atomic_load(&held->published) != index + 1) {
			if (index == atomic_load(&q->wr_next) && atomic_exchange(&q->failed, 0))
				atomic_fetch_sub(&shim.failures, 1);
			break;
		}
		if (!held->hole) {
			memset(&wc[made], 0, sizeof(wc[made]));
			wc[made].wr_id = held->caller_wr_id;
			wc[made].status = IBV_WC_WR_FLUSH_ERR;
			wc[made].opcode = completion_opcode(held->wr.opcode);
			wc[made].qp_num = atomic_load(&q->number);
			made++;
		}
		shim_held_left(q, index, index + 1);
		if (atomic_load(&q->wr_formed) == index)
			atomic_store(&q->wr_formed, index + 1);
	}
	tasks_pass(q);
	shim_report_held(q);
	shim_owner_leave(q);
	return made;
}

/* Writes up to n completions for this completion queue. Returns how many. */
int shim_flushed(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	unsigned cursor = 0;
	struct shim_qp *q;
	int made = 0;

	while (made < n && (q = shim_qp_each(&cursor)))
		if (q->send_cq_native == cq && atomic_load(&q->failed))
			made += flushed(q, n - made, wc + made);
	return made;
}
