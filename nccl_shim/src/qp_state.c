/* Changes of a queue pair between its creation and its destruction: another daemon, an error, another state. */
#include "qp_state.h"

#include "../../csrc/base/clock.h"
#include "classify.h"
#include "complete.h"
#include "counter.h"
#include "flush.h"
#include "hold.h"
#include "mark.h"
#include "owner.h"
#include "permits.h"
#include "process.h"
#include "pump.h"
#include "service_level.h"
#include "session.h"
#include "symbols.h"

#include <mfs/client.h>

/* ---- the daemon's side of a queue pair ---------------------------------------------------------------------------------------- */

/* Returns the most bytes of a task, except that work requests are not split; see records.h. An unknown
 * rate leaves the default. */
uint32_t shim_quantum_bytes(uint64_t rate_bytes_per_s)
{
	uint64_t least = rate_bytes_per_s / (MFS_NS_PER_S / SHIM_QUANTUM_NS_MIN);
	uint64_t most = rate_bytes_per_s / (MFS_NS_PER_S / SHIM_QUANTUM_NS_MAX);

	if (least > SHIM_QUANTUM_BYTES)
		return least < SHIM_QUANTUM_BYTES_MAX ? (uint32_t)least : SHIM_QUANTUM_BYTES_MAX;
	if (!rate_bytes_per_s || most > SHIM_QUANTUM_BYTES)
		return SHIM_QUANTUM_BYTES;
	return most > SHIM_QUANTUM_BYTES_MIN ? (uint32_t)most : SHIM_QUANTUM_BYTES_MIN;
}

/* Both flags set, or the queue pair cannot be found yet. Detaches it from any daemon. */
void shim_qp_unbind(struct shim_qp *q)
{
	q->client = NULL;
	q->report = &shim_detached.report;
	atomic_store(&q->gate, &shim_detached.gate);
	atomic_store(&q->usage, &shim_detached.usage);
	shim_owner_shards(q, shim_detached.posted_shard);
}

/* Moves the queue pair to another daemon (NULL: none). Afterwards nothing of it accesses the old segment.
 * Returns false when the queue pair stayed busy for too long. */
bool shim_qp_bind(struct shim_qp *q, struct mfs_client *client)
{
	struct shim_context *context;
	uint64_t in_flight[MFS_STAGES_MAX];
	struct mfs_segment *segment;
	int nic;

	if (!shim_owner_acquire_for(q, SHIM_UPDATE_WAIT_NS))
		return false;
	if (!shim_acquire_for(&q->polling, SHIM_UPDATE_WAIT_NS)) {
		shim_owner_leave(q);
		return false;
	}
	context = atomic_load(&q->context);
	nic = context ? context->nic : -1;
	if (atomic_load(&q->live) && q->client != client) {
		/* the old daemon is gone, or there was none: its permits need no report, and the other
		 * tasks will get none */
		for (uint64_t i = atomic_load(&q->task_done); i != atomic_load(&q->task_formed); i++) {
			q->tasks[i & q->ring_mask].owed = false;
			q->tasks[i & q->ring_mask].bypass = 1;
		}
		q->client = client;
		if (!client || nic < 0) {
			shim_qp_unbind(q);
		} else {
			segment = mfs_client_segment(client);
			q->report = &segment->report;
			q->quantum_bytes =
				shim_quantum_bytes(mfs_nic_of(segment, (uint32_t)nic)->rate_bytes_per_s);
			atomic_store(&q->gate, &mfs_gate_of(segment, (uint32_t)nic)->word);
			atomic_store(&q->usage, mfs_usage_of(segment, (uint32_t)nic));
			shim_owner_shards(q, mfs_client_minor(client) < MFS_USAGE_SHARDS_MINOR
						     ? NULL
						     : mfs_shards_of(segment, (uint32_t)nic));
			atomic_fetch_add_explicit(&segment->report.queue_pairs[q->role], 1,
						  memory_order_relaxed);
			shim_in_flight(q, in_flight);
			for (int i = 0; i < MFS_STAGES_MAX; i++)
				shim_count(&mfs_usage_of(segment, (uint32_t)nic)->posted.bytes[i],
					   in_flight[i]);
		}
	}
	shim_release(&q->polling);
	shim_owner_leave(q);
	return true;
}

void shim_qp_bind_current(struct shim_qp *q)
{
	pthread_mutex_lock(&shim_attach_lock);
	shim_qp_bind(q, atomic_load(&shim.client));
	pthread_mutex_unlock(&shim_attach_lock);
}

/* ---- the end of accounting (caller has both flags) ------------------------------------------------------------------------------ */

/* An error was seen: post what is held now, so that the provider flushes it in order. */
void shim_qp_break(struct shim_qp *q)
{
	atomic_store(&q->broken, 1);
	if (!atomic_load(&q->live))
		return;
	if (q->fifo)
		shim_flush(q);
	if (shim_owner_acquire_for(q, SHIM_ERROR_WAIT_NS)) {
		if (shim_acquire_for(&q->polling, SHIM_ERROR_WAIT_NS)) {
			if (atomic_load(&q->live))
				shim_complete_all(q);
			shim_release(&q->polling);
		}
		shim_owner_leave(q);
	}
}

void shim_qp_reset_counts(struct shim_qp *q)
{
	atomic_store(&q->signal_head, 0);
	atomic_store(&q->signal_tail, 0);
	atomic_store(&q->signal_even, 0);
	atomic_store(&q->wr_next, 0);
	atomic_store(&q->wr_posted, 0);
	atomic_store(&q->wr_formed, 0);
	atomic_store(&q->task_formed, 0);
	atomic_store(&q->task_posted, 0);
	atomic_store(&q->task_done, 0);
	atomic_store(&q->permitted_sequence, 0);
	atomic_store(&q->free_until_ns, 0);
	atomic_store(&q->hold_until_ns, 0);
	atomic_store(&q->flight_ns, 0);
	atomic_store(&q->flight_since_ns, 0);
	q->lost_ns = q->accounted_flight_ns = q->stretch_ns = 0;
	q->accounted_ns = mfs_clock_ns();
	atomic_store(&q->trim_at_ns, 0);
	atomic_store(&q->retired, 0);
	atomic_store(&q->poll_deferred, 0);
	atomic_store(&q->held_since_ns, 0);
	atomic_store(&q->force, 0);
	atomic_store(&q->blocked, 0);
	atomic_store(&q->starved, 0);
	if (atomic_exchange(&q->failed, 0))
		atomic_fetch_sub(&shim.failures, 1);
	atomic_store(&q->broken, 0);
	q->bytes_posted = q->bytes_marked = q->bytes_completed = q->completed_end = 0;
	if (q->fifo) /* old numbers must not look like published ones */
		/* reading does not allocate memory */
		for (uint64_t i = 0; i <= q->ring_mask; i++)
			if (atomic_load_explicit(&shim_held_at(q, i)->published, memory_order_relaxed))
				atomic_store_explicit(&shim_held_at(q, i)->published, 0,
						      memory_order_relaxed);
}

/* ---- transitions ------------------------------------------------------------------------------------------------------------------ */

static int real_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask)
{
	return atomic_load(&q->context)->verbs->modify_qp(atomic_load(&q->qp), attr, mask);
}

static void note_peer(struct shim_qp *q, const struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_AV && attr->ah_attr.is_global)
		q->peer = attr->ah_attr.grh.dgid;
	q->peer_hash = mfs_peer_hash(q->peer.raw);
	if (mask & IBV_QP_DEST_QPN && attr->dest_qp_num == atomic_load(&q->number) &&
	    (q->found_role == MFS_ROLE_NCCL_DATA || q->found_role == MFS_ROLE_NCCL_CTS))
		q->found_role = MFS_ROLE_NCCL_FLUSH; /* connected to itself */
	shim_communicator_at_connect(q);
	shim_classify(q);
}

/* Writes the class of the queue pair into the address vector with which it is connected. */
static void mark(const struct shim_qp *q, struct ibv_ah_attr *address)
{
	struct shim_context *context = atomic_load(&q->context);
	uint8_t level;

	if (address->is_global)
		address->grh.traffic_class = (uint8_t)(q->dscp << 2 | (address->grh.traffic_class & 3));
	if (shim_service_level(atomic_load(&context->context), context->verbs, q->dscp, address, &level))
		address->sl = level;
}

int shim_qp_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask)
{
	int state = mask & IBV_QP_STATE ? (int)attr->qp_state : -1;
	struct ibv_qp_attr changed;
	int rc;

	if (state == IBV_QPS_RTR) {
		note_peer(q, attr, mask);
		if (mask & IBV_QP_AV && q->dscp != MFS_DSCP_KEEP &&
		    (atomic_load(&shim.enforcing) || shim_marking())) {
			changed = *attr;
			mark(q, &changed.ah_attr);
			attr = &changed;
		}
		if (mask & IBV_QP_AV && attr->ah_attr.is_global)
			atomic_store(&q->wire_dscp, attr->ah_attr.grh.traffic_class >> 2);
	}
	if (state != IBV_QPS_RESET && state != IBV_QPS_ERR) {
		rc = real_modify(q, attr, mask);
		if (!rc && state >= 0)
			atomic_store(&q->state, (uint8_t)state);
		return rc;
	}

	/* nothing may be posted while the queue pair changes its state */
	bool owned = shim_owner_acquire_for(q, SHIM_TURNOVER_WAIT_NS);

	rc = real_modify(q, attr, mask);
	if (!rc)
		atomic_store(&q->state, (uint8_t)state);
	if (!rc && owned && state == IBV_QPS_RESET) {
		if (shim_acquire_for(&q->polling, SHIM_TURNOVER_WAIT_NS)) {
			shim_hold_drop(q);
			shim_permits_settle(); /* a permit that is being handed out is not for later tasks */
			shim_complete_all(q);
			shim_qp_reset_counts(q);
			shim_release(&q->polling);
		}
	} else if (!rc && owned && q->fifo) {
		atomic_store(&q->force, 1);
		shim_pump_owned(q);
	}
	if (owned)
		shim_owner_leave(q);
	return rc;
}
