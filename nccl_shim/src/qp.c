/* A queue pair's creation and destruction. */
#define _GNU_SOURCE
#include "qp.h"

#include "budget.h"
#include "builders.h"
#include "classify.h"
#include "complete.h"
#include "devices.h"
#include "hold.h"
#include "log.h"
#include "metadata.h"
#include "mode.h"
#include "owner.h"
#include "permits.h"
#include "process.h"
#include "pump.h"
#include "qp_state.h"
#include "symbols.h"
#include "table.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

static void claim(struct shim_qp *q, bool give)
{
	uint64_t receives = q->cap.max_recv_wr;

	if (q->send_cq)
		atomic_fetch_add(&q->send_cq->claimed,
				 give ? -(uint64_t)q->cap.max_send_wr : q->cap.max_send_wr);
	if (q->recv_cq)
		atomic_fetch_add(&q->recv_cq->claimed, give ? -receives : receives);
}

/* ---- creation ---------------------------------------------------------------------------------------------------------------- */

static uint32_t ring_size(uint32_t n)
{
	uint32_t size = 2;

	while (size < n && size < 1u << 30)
		size *= 2;
	return size;
}

/* Sets up what follows from the queue pair that the device has made: sizes, completion queues. Nothing was
 * posted yet. */
static void set_up(struct shim_qp *q, struct ibv_qp *qp, struct shim_context *context,
		   const struct ibv_qp_init_attr *attr)
{
	atomic_store(&q->qp, qp);
	atomic_store(&q->context, context);
	atomic_store(&q->number, qp->qp_num);
	q->post_send = context->post_send;
	q->cap = attr->cap;
	q->sq_sig_all = attr->sq_sig_all != 0;
	q->type = (uint8_t)attr->qp_type;
	q->shared_receive = attr->srq != NULL;
	q->send_cq_native = attr->send_cq;
	q->send_cq = shim_cq_find(attr->send_cq);
	q->recv_cq = attr->recv_cq ? shim_cq_find(attr->recv_cq) : NULL;
	atomic_store(&q->state, IBV_QPS_RESET);
	/* twice the slots: completions of a chain may free slots while the provider still reads its copies */
	q->ring_mask = ring_size(2 * q->cap.max_send_wr) - 1;
	/* some providers accept a little more than they report */
	q->signal_mask = ring_size(2 * q->cap.max_send_wr) - 1;
	q->signals = q->send_cq ? shim_map((q->signal_mask + 1) * sizeof(*q->signals)) : NULL;
	q->fifo = NULL;
	q->tasks = NULL;
	atomic_store(&q->holds, 0);
	shim_qp_reset_counts(q);
	memset(&q->builder, 0, sizeof(q->builder));
	memset(&q->peer, 0, sizeof(q->peer));
	q->peer_hash = 0;
	q->quantum_bytes = SHIM_QUANTUM_BYTES;
	q->shard_given = -1;
	shim_qp_unbind(q);
}

/* Finds out what it is for, as far as that is known before it is connected. */
static void identify(struct shim_qp *q, const struct ibv_qp_cap *asked, const void *caller)
{
	int lane = shim_lane_now();
	Dl_info object;

	q->communicator = -1;
	q->lane = lane >= 0 ? lane : atomic_load(&q->context)->lane;
	q->dscp = MFS_DSCP_KEEP;
	q->wire_dscp = MFS_DSCP_KEEP;
	q->library[0] = 0;
	if (dladdr(caller, &object) && object.dli_fname) {
		size_t length = strlen(object.dli_fname);

		/* keep the end of a long path: it says more than the beginning */
		strcpy(q->library,
		       object.dli_fname +
			       (length < sizeof(q->library) ? 0 : length - sizeof(q->library) + 1));
	}
	q->found_role = q->role = shim_role_at_create(q->library, asked);
	q->gives_up_ns =
		shim_gives_up_ns(shim_mooncake_at_create(q->library), shim_store_at_create(q->library));
	atomic_store(&q->unsure, q->found_role == MFS_ROLE_NCCL_CTS || q->found_role == MFS_ROLE_NCCL_DATA);
	q->stage = MFS_STAGE_CONTROL;
}

/* `attr` is what the device granted, `asked` what the program had asked for. */
void shim_qp_add(struct ibv_qp *qp, const struct ibv_qp_init_attr *attr, const struct ibv_qp_cap *asked,
		 uint64_t ops, const void *caller)
{
	struct shim_context *context = shim_context_find(qp->context);
	struct shim_qp *q;

	if (!context || context->inherited)
		return;
	pthread_mutex_lock(&shim_table_lock);
	q = shim_table_get();
	if (!q) {
		pthread_mutex_unlock(&shim_table_lock);
		shim_log(SHIM_REASON_MEMORY,
			 "no memory to follow more queue pairs: the later ones pass through");
		return;
	}
	set_up(q, qp, context, attr);
	atomic_store(&q->accounted, q->signals != NULL && shim_builder_can_hold(ops));
	q->may_hold = atomic_load(&q->accounted) && q->type == IBV_QPT_RC && !context->single_threaded &&
		      shim_mode() == MFS_MODE_ENFORCE;
	identify(q, asked, caller);
	claim(q, false);
	shim_table_insert(q);
	atomic_store_explicit(&q->live, 1, memory_order_release);
	pthread_mutex_unlock(&shim_table_lock);

	shim_classify(q);
	shim_qp_bind_current(q);
	if (ops && context->verbs->qp_to_qp_ex && atomic_load(&q->accounted))
		shim_builder_patch(q, context->verbs->qp_to_qp_ex(qp), ops);
}

/* ---- destruction -------------------------------------------------------------------------------------------------------------------- */

static void forget(struct shim_qp *q)
{
	pthread_mutex_lock(&shim_table_lock);
	shim_table_remove(q);
	claim(q, true);
	if (q->client)
		atomic_fetch_add_explicit(&q->report->queue_pairs[q->role], -1, memory_order_relaxed);
	atomic_store(&q->live, 0);
	pthread_mutex_unlock(&shim_table_lock);
	shim_hold_drop(q);
	shim_complete_all(q);
	if (atomic_exchange(&q->failed, 0))
		atomic_fetch_sub(&shim.failures, 1);
	/* a permit that is being handed out names memory that goes away now; if a thread died doing that,
	 * the memory stays */
	if (shim_permits_settle())
		shim_hold_free(q);
	q->fifo = NULL;
	q->tasks = NULL;
	if (q->signals)
		munmap(q->signals, (q->signal_mask + 1) * sizeof(*q->signals));
	q->signals = NULL;
	shim_qp_unbind(q);
}

static void give_back(struct shim_qp *q)
{
	shim_release(&q->polling);
	shim_owner_forget(q);
	shim_table_put(q);
}

int shim_qp_destroy(struct shim_qp *q)
{
	const struct shim_verbs *verbs = atomic_load(&q->context)->verbs;
	bool owned = shim_owner_acquire_for(q, SHIM_TURNOVER_WAIT_NS);
	bool polling = owned && shim_acquire_for(&q->polling, SHIM_TURNOVER_WAIT_NS);
	int rc = verbs->destroy_qp(atomic_load(&q->qp));

	if (rc || !polling) {
		if (!rc) { /* a thread died inside: leave the record to it */
			pthread_mutex_lock(&shim_table_lock);
			shim_table_remove(q);
			atomic_store(&q->live, 0);
			pthread_mutex_unlock(&shim_table_lock);
		}
		if (polling)
			shim_release(&q->polling);
		if (owned)
			shim_owner_leave(q);
		return rc;
	}
	forget(q);
	give_back(q);
	return 0;
}

/* The device is being closed. Queue pairs that were not destroyed go with it. */
void shim_qp_forget_context(const struct shim_context *context)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	while ((q = shim_qp_each(&cursor))) {
		if (atomic_load(&q->context) != context || !shim_owner_acquire_for(q, SHIM_UPDATE_WAIT_NS))
			continue;
		if (shim_acquire_for(&q->polling, SHIM_UPDATE_WAIT_NS)) {
			forget(q);
			give_back(q);
		} else {
			shim_owner_release(q);
		}
	}
}
