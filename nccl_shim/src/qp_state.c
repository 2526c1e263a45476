/* What happens to a queue pair between its creation and its destruction: another daemon, an error, another state. */
#include "mark.h"
#include "owner.h"

#include <string.h>

/* ---- the daemon's side of a queue pair ---------------------------------------------------------------------------------------- */

/* What takes the NIC a fifth of a millisecond. A rate that nobody knows is a high one. */
static uint32_t quantum_bytes(uint64_t rate_bytes_per_s)
{
	uint64_t bytes = rate_bytes_per_s / (1000000000 / SHIM_QUANTUM_NS);

	if (!rate_bytes_per_s || bytes > SHIM_QUANTUM_BYTES)
		return SHIM_QUANTUM_BYTES;
	return bytes < SHIM_QUANTUM_BYTES_MIN ? SHIM_QUANTUM_BYTES_MIN : (uint32_t)bytes;
}

/* Moves the queue pair to another daemon (NULL: none). Afterwards nothing of it touches the old segment. False when the
 * queue pair stayed busy for too long. */
bool shim_qp_bind(struct shim_qp *q, struct mfs_client *client)
{
	struct shim_context *context;
	uint64_t in_flight[MFS_STAGES_MAX];
	struct mfs_segment *segment;
	int nic;

	if (!shim_owner_acquire_for(q, 100000000))
		return false;
	if (!shim_acquire_for(&q->polling, 100000000)) {
		shim_owner_leave(q);
		return false;
	}
	context = atomic_load(&q->context);
	nic = context ? context->nic : -1;
	if (atomic_load(&q->live) && q->client != client) {
		/* the old daemon is gone, or never was: what it permitted needs no report, what it did not will not be */
		for (uint64_t i = atomic_load(&q->task_done); i != atomic_load(&q->task_formed); i++) {
			q->tasks[i & q->ring_mask].owed = false;
			q->tasks[i & q->ring_mask].bypass = 1;
		}
		q->client = client;
		if (!client || nic < 0) {
			q->client = NULL;
			q->report = &shim_detached.report;
			atomic_store(&q->gate, &shim_detached.gate);
			atomic_store(&q->usage, &shim_detached.usage);
			shim_owner_lanes(q, shim_detached.posted_shard);
		} else {
			segment = mfs_client_segment(client);
			q->report = &segment->report;
			q->quantum_bytes = quantum_bytes(segment->nic[nic].rate_bytes_per_s);
			atomic_store(&q->gate, &segment->gate[nic].word);
			atomic_store(&q->usage, &segment->usage[nic]);
			shim_owner_lanes(q, mfs_client_minor(client) < MFS_USAGE_SHARDS_MINOR ? NULL : segment->posted_shard[nic]);
			atomic_fetch_add_explicit(&segment->report.queue_pairs[q->role], 1, memory_order_relaxed);
			shim_in_flight(q, in_flight);
			for (int i = 0; i < MFS_STAGES_MAX; i++)
				shim_count(&segment->usage[nic].posted.bytes[i], in_flight[i]);
		}
	}
	shim_release(&q->polling);
	shim_owner_leave(q);
	return true;
}

/* ---- the end of accounting (caller has both flags) ------------------------------------------------------------------------------ */

/* Everything posted counts as complete: the queue pair was reset, destroyed or has failed. */
void shim_qp_settle(struct shim_qp *q)
{
	struct mfs_usage *usage = atomic_load_explicit(&q->usage, memory_order_relaxed);
	uint64_t in_flight[MFS_STAGES_MAX];

	shim_in_flight(q, in_flight);
	for (int i = 0; i < MFS_STAGES_MAX; i++)
		shim_count(&usage->completed.bytes[i], in_flight[i]);
	q->bytes_completed = q->bytes_marked = q->bytes_posted;
	atomic_store(&q->signal_tail, atomic_load(&q->signal_head));
	q->completed_end = atomic_load(&q->wr_posted);
	atomic_store(&q->retired, q->completed_end);
	for (uint64_t i = atomic_load(&q->task_done); i != atomic_load(&q->task_posted); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];

		if (t->owed && q->client)
			mfs_client_complete(q->client, atomic_load(&t->id));
		t->owed = false;
		atomic_store(&q->task_done, i + 1);
	}
	atomic_store(&q->flight_since_ns, 0);
}

/* An error was seen: what is held is posted now, so that the provider flushes it in order. */
void shim_qp_break(struct shim_qp *q)
{
	atomic_store(&q->broken, 1);
	if (!atomic_load(&q->live))
		return;
	if (q->fifo)
		shim_flush(q);
	if (shim_owner_acquire_for(q, 1000000)) {
		if (shim_acquire_for(&q->polling, 1000000)) {
			if (atomic_load(&q->live))
				shim_qp_settle(q);
			shim_release(&q->polling);
		}
		shim_owner_leave(q);
	}
}

/* ---- transitions ------------------------------------------------------------------------------------------------------------------ */

static int real_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask)
{
	return atomic_load(&q->context)->verbs->modify_qp(atomic_load(&q->qp), attr, mask);
}

/* Owner held. Moves the queue pair to the error state, for a deferred post that was refused. */
int shim_qp_to_error(struct shim_qp *q)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	int rc = real_modify(q, &attr, IBV_QP_STATE);

	atomic_store(&q->broken, 1);
	if (!rc)
		atomic_store(&q->state, IBV_QPS_ERR);
	return rc;
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

int shim_qp_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask)
{
	int state = mask & IBV_QP_STATE ? (int)attr->qp_state : -1;
	struct ibv_qp_attr changed;
	int rc;

	if (state == IBV_QPS_RTR) {
		note_peer(q, attr, mask);
		if (mask & IBV_QP_AV && attr->ah_attr.is_global && q->dscp != MFS_DSCP_KEEP &&
		    (atomic_load(&shim.enforcing) || shim_marking())) {
			changed = *attr;
			changed.ah_attr.grh.traffic_class =
				(uint8_t)(q->dscp << 2 | (changed.ah_attr.grh.traffic_class & 3));
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

	/* nothing may be posted while the queue pair turns over */
	bool owned = shim_owner_acquire_for(q, 1000000000);

	rc = real_modify(q, attr, mask);
	if (!rc)
		atomic_store(&q->state, (uint8_t)state);
	if (!rc && owned && state == IBV_QPS_RESET) {
		if (shim_acquire_for(&q->polling, 1000000000)) {
			shim_hold_drop(q);
			shim_permits_settle(); /* one that is being handed out is not for the tasks to come */
			shim_qp_settle(q);
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
