/* Batches: the daemon's copies of them, what the queues are told of them, ranks; and when the contexts of
 * a client are read.
 *
 * A context is copied when a message names it, when a flow names its batch, and with every heartbeat. Its
 * values are clamped to what the queues can compute with. */
#include "watch.h"

#include <errno.h>
#include <string.h>

#define LAYERS_MAX (1u << 16)

/* The compute left when the current layer began, less the time since then, but not less than the layers
 * after it take. */
uint64_t batch_compute_left_ns(const struct batch *batch, uint64_t now_ns)
{
	uint32_t layers_left =
		batch->layers > batch->layer_current ? batch->layers - batch->layer_current : 0;
	uint64_t left_ns, least_ns, passed_ns = now_ns - batch->layer_ns;

	if (layers_left == 0)
		return 0;
	left_ns = (uint64_t)((double)batch->compute_ns * layers_left / batch->layers);
	least_ns = (uint64_t)((double)batch->compute_ns * (layers_left - 1) / batch->layers);
	return left_ns > least_ns + passed_ns ? left_ns - passed_ns : least_ns;
}

/* The engine's own deadline, otherwise the earliest of its requests': the unit can spare as much time as
 * its tightest request. */
static uint64_t batch_deadline_ns(const struct session *session, const struct batch *batch)
{
	uint64_t deadline_ns = batch->deadline_ns;

	if (deadline_ns)
		return deadline_ns;
	for (uint32_t r = session->batch_request[batch - session->batch]; r;
	     r = session->request[r - 1].next) {
		uint64_t d = session->request[r - 1].deadline_ns;

		if (d && (!deadline_ns || d < deadline_ns))
			deadline_ns = d;
	}
	return deadline_ns;
}

static void batch_announce(struct mfs_arbiter *arbiter, struct session *session, struct batch *batch,
			   direction_set directions)
{
	struct mfs_batch_context context = {
		.layer_current = batch->layer_current,
		.layers = batch->layers,
		.rank = batch->rank,
		.deadline_ns = directions ? batch_deadline_ns(session, batch) : 0,
		.compute_left_ns = batch_compute_left_ns(batch, arbiter->now_ns),
	};

	for (; directions; directions &= directions - 1) {
		uint32_t i = direction_first(directions);

		session->work_ns +=
			WORK_BATCH_NS + WORK_REQUEST_NS * session->batch_requests[batch - session->batch];
		if (mfs_rmlq_batch(direction_at(arbiter, i)->queue, batch->key, &context, arbiter->now_ns) ==
		    0)
			batch->announced_directions |= direction_bit(i);
		direction_touch(arbiter, i);
	}
}

static void batch_forget(struct mfs_arbiter *arbiter, struct session *session, struct batch *batch)
{
	uint32_t slot = (uint32_t)(batch - session->batch);

	watch_batch_end(arbiter, session, batch);
	session->batches_known &= ~(1ull << slot);
	for (direction_set directions = batch->announced_directions; directions;
	     directions &= directions - 1) {
		uint32_t i = direction_first(directions);

		mfs_rmlq_batch_end(direction_at(arbiter, i)->queue, batch->key);
		direction_touch(arbiter, i);
	}
	memset(batch, 0, sizeof(*batch));
	batch_notice(arbiter, session, slot, true);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Reads the requests of a batch, so that the batch is known completely or not at all. Otherwise a batch
 * named by a flow before the messages about all of its requests were read would be evaluated without some
 * of its bytes. The requests are in the segment before the batch gets its id. */
static void batch_requests_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	const struct mfs_segment *segment = session->segment;
	uint32_t announced = atomic_load_explicit(&segment->batch[slot].requests, memory_order_relaxed),
		 read = 0;

	for (uint32_t r = session->batch_request[slot]; r; r = session->request[r - 1].next) {
		const struct mfs_request *shared = &segment->request[r - 1];

		read += atomic_load_explicit(&shared->request_id, memory_order_relaxed) ==
				session->request[r - 1].id &&
			atomic_load_explicit(&shared->version, memory_order_relaxed) ==
				session->request[r - 1].version;
	}
	session->work_ns += WORK_REQUEST_NS * session->batch_requests[slot];
	if (read >= announced)
		return;
	session->work_ns += WORK_REQUEST_NS * MFS_REQUESTS_MAX / 4;
	for (uint32_t i = 0; i < MFS_REQUESTS_MAX; i++)
		if (atomic_load_explicit(&segment->request[i].request_id, memory_order_acquire) != 0 &&
		    atomic_load_explicit(&segment->request[i].batch, memory_order_relaxed) == slot)
			request_refresh(arbiter, session, i);
}

/* The end of a request or a batch is sent after the ends of its tasks, but may be read before them: those
 * come by other rings, and the segment shows it at once. So it is processed when all rings are empty. A
 * task that is read before then, such as one that went on credit, still belongs to its batch. */
static bool batch_ends(struct session *session, uint32_t slot)
{
	uint64_t id = atomic_load_explicit(&session->segment->batch[slot].batch_id, memory_order_relaxed);

	if (!session->batch[slot].id || (id != 0 && id != MFS_CONTEXT_CLAIMED))
		return false;
	session->batches_ending |= 1ull << slot;
	return session->ending = true;
}

/* Copies the context if it has changed. */
struct batch *batch_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	struct mfs_batch *shared = &session->segment->batch[slot];
	struct batch *batch = &session->batch[slot];
	uint64_t id = atomic_load_explicit(&shared->batch_id, memory_order_acquire);
	uint32_t version = atomic_load_explicit(&shared->version, memory_order_relaxed);
	uint32_t layer = atomic_load_explicit(&shared->layer_current, memory_order_relaxed);
	bool arrives = id != batch->id || version != batch->version;

	if (!arrives && layer == batch->layer_current)
		return batch;
	if (session->work_ns > WORK_LATER_NS) /* read it with a later message, or with the next heartbeat */
		return batch;
	if (id == MFS_CONTEXT_CLAIMED)
		id = 0;
	if (arrives) {
		if (batch->id)
			batch_forget(arbiter, session, batch);
		if (id == 0)
			return batch;
		batch->id = id;
		batch->version = version;
		batch->key = key_mix(session->key_salt, id);
		batch->rank = MFS_RANK_NONE;
		batch_requests_read(arbiter, session, slot);
		session->batches_known |= 1ull << slot;
	}
	batch->layer_current = layer;
	batch->layer_ns = arbiter->now_ns;
	batch->layers = atomic_load_explicit(&shared->layers, memory_order_relaxed);
	batch->deadline_ns = atomic_load_explicit(&shared->deadline_ns, memory_order_relaxed);
	batch->compute_ns = atomic_load_explicit(&shared->compute_ns, memory_order_relaxed);
	if (batch->layers > LAYERS_MAX)
		batch->layers = 0;
	if (batch->compute_ns > TIME_MAX_NS)
		batch->compute_ns = 0;
	if (batch->deadline_ns > TIME_MAX_NS)
		batch->deadline_ns = 0;
	batch_announce(arbiter, session, batch, batch->announced_directions);
	watch_batch(arbiter, session, batch, arrives);
	batch_notice(arbiter, session, slot, arrives);
	return batch;
}

struct batch *batch_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	return batch_ends(session, slot) ? &session->batch[slot] : batch_read(arbiter, session, slot);
}

uint64_t batch_key(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, uint32_t direction)
{
	struct batch *batch = batch_refresh(arbiter, session, slot);

	if (batch->id && !(batch->announced_directions >> direction & 1))
		batch_announce(arbiter, session, batch, direction_bit(direction));
	return batch->id ? batch->key : 0;
}

/* The unit's slack and the coordinator's summary depend on the requests. Not done while the batch arrives
 * or ends, when all of them come or go. */
static void batches_announce_again(struct mfs_arbiter *arbiter, struct session *session)
{
	uint64_t stale = session->batches_stale & session->batches_known;

	session->batches_stale = 0;
	for (; stale; stale &= stale - 1) {
		uint32_t slot = (uint32_t)__builtin_ctzll(stale);
		struct batch *batch = batch_refresh(arbiter, session, slot);

		if (!batch->id || batch_ends(session, slot))
			continue;
		batch_announce(arbiter, session, batch, batch->announced_directions);
		batch_notice(arbiter, session, slot, true);
	}
}

/* A batch that is announced again may be a different one by now, and then all of its requests are read. So
 * this must not happen before this request is linked, or it would be linked twice. */
void request_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	const struct request *request = &session->request[slot];
	bool arrived = request_read(arbiter, session, slot);
	uint32_t version = request->version;

	batches_announce_again(arbiter, session);
	if (arrived && request->id && request->version == version)
		watch_request(arbiter, session, request);
}

void session_contexts_refresh(struct mfs_arbiter *arbiter, struct session *session)
{
	if (session->state != MFS_SEGMENT_ACTIVE)
		return;
	/* the others are read when a message or a flow names them */
	for (uint64_t known = session->batches_known; known; known &= known - 1)
		batch_refresh(arbiter, session, (uint32_t)__builtin_ctzll(known));
}

void session_contexts_forget(struct mfs_arbiter *arbiter, struct session *session)
{
	for (uint32_t i = 0; i < MFS_REQUESTS_MAX; i++)
		if (session->request[i].id)
			request_forget(arbiter, session, i);
	session->batches_stale = 0; /* nothing is read any more */
	for (uint32_t i = 0; i < MFS_BATCHES_MAX; i++)
		if (session->batch[i].id)
			batch_forget(arbiter, session, &session->batch[i]);
}

/* ---- what the coordinator decides -------------------------------------------------------------------------------- */

struct rank_argument {
	uint64_t batch_id;
	uint32_t client_id;
	uint32_t rank;
};

static int run_batch_rank(struct mfs_arbiter *arbiter, void *argument)
{
	struct rank_argument *a = argument;
	struct session *session = session_find(arbiter, a->client_id);

	if (!session || a->batch_id == 0 || session->state != MFS_SEGMENT_ACTIVE)
		return -ENOENT;
	for (uint32_t i = 0; i < MFS_BATCHES_MAX; i++) {
		struct batch *batch = batch_refresh(arbiter, session, i);

		if (batch->id != a->batch_id)
			continue;
		batch->rank = a->rank;
		batch_announce(arbiter, session, batch, batch->announced_directions);
		return 0;
	}
	return -ENOENT;
}

int mfs_arbiter_batch_rank(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t batch_id, uint32_t rank)
{
	struct rank_argument a = {.batch_id = batch_id, .client_id = client_id, .rank = rank};

	return arbiter_command(arbiter, run_batch_rank, &a);
}
