/* What a queue pair is for: a role found from its capabilities and from the library that made it, then the
 * rules.
 *
 * NCCL's queue pairs by capabilities (measured; notes in docs/internals/shim.md): clear-to-send has receives,
 * data has none. The flush queue pair is connected to itself, which shows at the transition to RTR. */
#include "classify.h"

#include "hold.h"
#include "log.h"
#include "owner.h"
#include "profiler.h"
#include "pump.h"
#include "rules.h"

#include <string.h>

static const char *file_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

bool shim_mooncake_at_create(const char *library)
{
	return strstr(library, "mooncake") || strstr(library, "libtransfer_engine");
}

/* Mooncake's store has an engine of its own: in its Python module, in its library for other languages, and
 * in the program that reads for processes of its host. */
bool shim_store_at_create(const char *library)
{
	const char *name = file_name(library);

	return (strstr(library, "mooncake") && !strncmp(name, "store.", 6)) ||
	       !strncmp(name, "libmooncake_store", 17) || !strcmp(name, "mooncake_client");
}

/* NCCL may be linked statically into any library, so its defaults are also recognised: 2 x 256 send
 * requests on both ends of a connection, and 256 receives on the receiving end. */
uint8_t shim_role_at_create(const char *library, const struct ibv_qp_cap *asked)
{
	const char *name = file_name(library);
	bool shaped = asked->max_send_wr == 512 && asked->max_send_sge == 1 && asked->max_recv_sge == 1;

	if (strstr(name, "libnccl"))
		return asked->max_recv_wr ? MFS_ROLE_NCCL_CTS : MFS_ROLE_NCCL_DATA;
	if (shim_mooncake_at_create(library) || strstr(library, "nixl"))
		return MFS_ROLE_KV;
	if (shaped && asked->max_recv_wr == 0)
		return MFS_ROLE_NCCL_DATA;
	if (shaped && asked->max_recv_wr == 256)
		return MFS_ROLE_NCCL_CTS;
	return MFS_ROLE_UNKNOWN;
}

/* NCCL does not report when it connects a queue pair; profiler.c guesses the communicator. */
void shim_communicator_at_connect(struct shim_qp *q)
{
	if (q->found_role == MFS_ROLE_NCCL_DATA || q->found_role == MFS_ROLE_NCCL_CTS)
		q->communicator = shim_communicator_connecting();
}

/* Until 2.28 NCCL gives both ends of a connection the same capabilities. The first post tells them apart:
 * data ends with an immediate, clear-to-send is a plain write. It also tells the communicator if NCCL has
 * announced the send. The DSCP stays as it was set at RTR, before anything was posted. */
void shim_role_at_post(struct shim_qp *q, const struct ibv_send_wr *wr)
{
	uint8_t dscp = q->dscp, role = q->found_role;
	int communicator = q->communicator;

	if (!atomic_exchange(&q->unsure, 0))
		return;
	while (wr->next)
		wr = wr->next;
	if (wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
		return;
	q->found_role = MFS_ROLE_NCCL_DATA;
	if (shim_collective.given)
		q->communicator = shim_collective.communicator;
	if (q->found_role == role && q->communicator == communicator)
		return;
	if (!shim_classify(q)) /* busy: the next post tries again */
		atomic_store(&q->unsure, 1);
	else if (q->communicator != communicator && q->dscp != dscp)
		shim_log(
			SHIM_REASON_CLASS,
			"a queue pair of NCCL communicator \"%s\" was connected while it was not clear whose it is: it keeps "
			"the DSCP that it has",
			shim_communicator_name(q->communicator));
}

/* Applies the rules to a queue pair: at creation, when its peer is known, and when the rules change.
 * Returns false when it stayed busy for too long. */
bool shim_classify(struct shim_qp *q)
{
	int communicator = atomic_load(&q->communicator);
	struct shim_decision to =
		shim_rules_decide(q, communicator >= 0 ? shim_communicator_name(communicator) : NULL);

	if (!shim_owner_acquire_for(q, SHIM_UPDATE_WAIT_NS))
		return false;
	if (!shim_acquire_for(&q->polling, SHIM_UPDATE_WAIT_NS)) {
		shim_owner_leave(q);
		return false;
	}
	if (atomic_load(&q->live)) {
		q->dscp = to.dscp;
		if (q->client && to.role != q->role) {
			atomic_fetch_add_explicit(&q->report->queue_pairs[q->role], -1, memory_order_relaxed);
			atomic_fetch_add_explicit(&q->report->queue_pairs[to.role], 1, memory_order_relaxed);
		}
		q->role = to.role;
		/* bytes in flight complete in the old stage: see struct shim_signal */
		q->stage = to.stage;
		if (!atomic_load(&q->holds) && to.hold && q->may_hold && shim_hold_allocate(q)) {
			atomic_store(&q->wr_formed, atomic_load(&q->wr_posted));
			shim_owner_share(q);
			atomic_store_explicit(&q->holds, 1, memory_order_release);
		}
		atomic_store(&q->passes, !to.hold);
	}
	shim_release(&q->polling);
	shim_owner_leave(q);
	return true;
}
