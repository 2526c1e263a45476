/* Batches and requests: what clients tell about them, what the queues are told, and what the coordinator decides.
 *
 * A context is copied when a message says so, when a flow names its batch, and with every heartbeat. Whatever it holds is
 * clamped to what the queues can reckon with; a chain of demands is as long as it may be and no longer, and a demand that
 * belongs to another request ends it. So garbage costs its writer its own order and nobody anything else.
 */
#include "arbiter_watch.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define TIME_MAX_NS (1ull << 60)
#define LAYERS_MAX (1u << 16)
#define LAYER_NOTICE_NS 50000000ull /* layer boundaries reach the daemon's Python this often at most */

/* ---- notices to the daemon's Python ------------------------------------------------------------------------------ */

void arbiter_notice(struct mfs_arbiter *arbiter)
{
	uint64_t one = 1;

	if (arbiter->noticed)
		return;
	arbiter->noticed = true;
	arbiter->notice_ns = arbiter->now_ns;
	if (write(arbiter->notice, &one, sizeof(one)) < 0)
		arbiter->noticed = false; /* an eventfd that is full was rung */
}

/* An arrival or departure is told at once, a layer boundary with the next that is due. */
static void notice(struct mfs_arbiter *arbiter, struct session *session, uint32_t batch, bool at_once)
{
	session->batches_changed |= 1ull << batch;
	if (at_once || arbiter->now_ns - arbiter->notice_ns >= LAYER_NOTICE_NS)
		arbiter_notice(arbiter);
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

/* What was left when the current layer began, less what has passed since, but not less than the layers after it take. */
uint64_t batch_compute_left_ns(const struct batch *batch, uint64_t now_ns)
{
	uint32_t layers_left = batch->layers > batch->layer_current ? batch->layers - batch->layer_current : 0;
	uint64_t left_ns, least_ns, passed_ns = now_ns - batch->layer_ns;

	if (layers_left == 0)
		return 0;
	left_ns = (uint64_t)((double)batch->compute_ns * layers_left / batch->layers);
	least_ns = (uint64_t)((double)batch->compute_ns * (layers_left - 1) / batch->layers);
	return left_ns > least_ns + passed_ns ? left_ns - passed_ns : least_ns;
}

/* The engine's own, else the first of its requests': what the unit has to spare is what its tightest request has. */
static uint64_t batch_deadline_ns(const struct session *session, const struct batch *batch)
{
	uint64_t deadline_ns = batch->deadline_ns;

	if (deadline_ns)
		return deadline_ns;
	for (uint32_t r = session->batch_request[batch - session->batch]; r; r = session->request[r - 1].next) {
		uint64_t d = session->request[r - 1].deadline_ns;

		if (d && (!deadline_ns || d < deadline_ns))
			deadline_ns = d;
	}
	return deadline_ns;
}

static void batch_tell(struct mfs_arbiter *arbiter, struct session *session, struct batch *batch, uint32_t ways)
{
	struct mfs_batch_context context = {
		.layer_current = batch->layer_current,
		.layers = batch->layers,
		.rank = batch->rank,
		.pruned = batch->pruned,
		.deadline_ns = ways ? batch_deadline_ns(session, batch) : 0,
		.compute_left_ns = batch_compute_left_ns(batch, arbiter->now_ns),
	};

	for (; ways; ways &= ways - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(ways);
		struct way *way = way_at(arbiter, i);

		if (mfs_rmlq_batch(way->queue, batch->key, &context, arbiter->now_ns) == 0)
			batch->told |= 1u << i;
		way->dirty = true;
	}
}

static void batch_forget(struct mfs_arbiter *arbiter, struct session *session, struct batch *batch)
{
	uint32_t slot = (uint32_t)(batch - session->batch);

	watch_batch_end(arbiter, session, batch);
	session->batches_known &= ~(1ull << slot);
	for (uint32_t told = batch->told; told; told &= told - 1) {
		struct way *way = way_at(arbiter, (uint32_t)__builtin_ctz(told));

		mfs_rmlq_batch_end(way->queue, batch->key);
		way->dirty = true;
	}
	memset(batch, 0, sizeof(*batch));
	notice(arbiter, session, slot, true);
}

/* A batch is there whole or not at all: one that is named by a flow before the messages about all of its requests were
 * read would be judged without some of its bytes. They are in the segment since before the batch had its id. */
static void batch_requests_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	const struct mfs_segment *segment = session->segment;
	uint32_t told = atomic_load_explicit(&segment->batch[slot].requests, memory_order_relaxed), read = 0;

	for (uint32_t r = session->batch_request[slot]; r; r = session->request[r - 1].next) {
		const struct mfs_request *shared = &segment->request[r - 1];

		read += atomic_load_explicit(&shared->request_id, memory_order_relaxed) == session->request[r - 1].id &&
			atomic_load_explicit(&shared->version, memory_order_relaxed) == session->request[r - 1].version;
	}
	if (read >= told)
		return;
	for (uint32_t i = 0; i < MFS_REQUESTS_MAX; i++)
		if (atomic_load_explicit(&segment->request[i].request_id, memory_order_acquire) != 0 &&
		    atomic_load_explicit(&segment->request[i].batch, memory_order_relaxed) == slot)
			request_refresh(arbiter, session, i);
}

/* Copies the context if it changed. */
struct batch *batch_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	struct mfs_batch *shared = &session->segment->batch[slot];
	struct batch *batch = &session->batch[slot];
	uint64_t id = atomic_load_explicit(&shared->batch_id, memory_order_acquire);
	uint32_t version = atomic_load_explicit(&shared->version, memory_order_relaxed);
	uint32_t layer = atomic_load_explicit(&shared->layer_current, memory_order_relaxed);
	bool arrives = id != batch->id || version != batch->version;

	if (!arrives && layer == batch->layer_current)
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
	batch_tell(arbiter, session, batch, batch->told);
	watch_batch(arbiter, session, batch, arrives);
	notice(arbiter, session, slot, arrives);
	return batch;
}

uint64_t batch_key(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, uint32_t way)
{
	struct batch *batch = batch_refresh(arbiter, session, slot);

	if (batch->id && !(batch->told >> way & 1))
		batch_tell(arbiter, session, batch, 1u << way);
	return batch->id ? batch->key : 0;
}

void session_contexts_refresh(struct mfs_arbiter *arbiter, struct session *session)
{
	if (session->state != MFS_SEGMENT_ACTIVE)
		return;
	/* others are read when a message or a flow names them */
	for (uint64_t known = session->batches_known; known; known &= known - 1)
		batch_refresh(arbiter, session, (uint32_t)__builtin_ctzll(known));
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(struct session *session, uint64_t id)
{
	return &session->request_bucket[key_mix(session->key_salt, id) % REQUEST_BUCKETS];
}

uint32_t request_find(const struct session *session, uint64_t request_id)
{
	uint32_t r = *bucket_of((struct session *)session, request_id);

	while (r && session->request[r - 1].id != request_id)
		r = session->request[r - 1].hash_next;
	return r;
}

static void request_link(struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	uint32_t *bucket = bucket_of(session, request->id);

	request->hash_next = *bucket;
	*bucket = slot + 1;
	request->next = request->prev = 0;
	if (request->batch == MFS_NONE_U32)
		return;
	request->next = session->batch_request[request->batch];
	if (request->next)
		session->request[request->next - 1].prev = slot + 1;
	session->batch_request[request->batch] = slot + 1;
}

static void request_unlink(struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	uint32_t *link = bucket_of(session, request->id);

	while (*link != slot + 1)
		link = &session->request[*link - 1].hash_next;
	*link = request->hash_next;
	if (request->next)
		session->request[request->next - 1].prev = request->prev;
	if (request->prev)
		session->request[request->prev - 1].next = request->next;
	else if (request->batch != MFS_NONE_U32)
		session->batch_request[request->batch] = request->next;
}

/* Its batch is told again, once what happens to its requests is done. */
static void batch_stale(struct session *session, uint32_t slot)
{
	if (slot != MFS_NONE_U32)
		session->batches_stale |= 1ull << slot;
}

/* The unit's slack and the coordinator's summary depend on the requests. Not while the batch arrives or ends, when all of
 * them come or go. */
static void batches_retell(struct mfs_arbiter *arbiter, struct session *session)
{
	uint64_t stale = session->batches_stale & session->batches_known;

	session->batches_stale = 0;
	for (; stale; stale &= stale - 1) {
		uint32_t slot = (uint32_t)__builtin_ctzll(stale);
		struct batch *batch = batch_refresh(arbiter, session, slot);

		if (!batch->id)
			continue;
		batch_tell(arbiter, session, batch, batch->told);
		notice(arbiter, session, slot, true);
	}
}

static void request_forget(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	uint32_t d = request->demand;

	batch_stale(session, request->batch);
	watch_request_end(arbiter, session, request);
	for (uint32_t told = request->told | request->pruned_told; told; told &= told - 1) {
		struct way *way = way_at(arbiter, (uint32_t)__builtin_ctz(told));

		mfs_rmlq_request_end(way->queue, request->key);
		way->dirty = true;
	}
	while (d) {
		struct demand *demand = &session->demand[d - 1];

		d = demand->next;
		memset(demand, 0, sizeof(*demand));
	}
	request_unlink(session, slot);
	memset(request, 0, sizeof(*request));
}

/* A request that ended and whose message is still on its way keeps no demand from those that came after it. */
static void demand_release(struct mfs_arbiter *arbiter, struct session *session, uint32_t owner)
{
	const struct request *request = &session->request[owner - 1];
	struct mfs_request *shared = &session->segment->request[owner - 1];

	if (atomic_load_explicit(&shared->request_id, memory_order_acquire) != request->id ||
	    atomic_load_explicit(&shared->version, memory_order_relaxed) != request->version)
		request_forget(arbiter, session, owner - 1);
}

static void demands_copy(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	uint32_t next = atomic_load_explicit(&session->segment->request[slot].demand, memory_order_relaxed);
	uint32_t *link = &request->demand;

	while (next && next <= MFS_DEMANDS_MAX && request->demands < MFS_REQUEST_DEMANDS_MAX) {
		struct mfs_demand *shared = &session->segment->demand[next - 1];
		struct demand *demand = &session->demand[next - 1];
		uint64_t peer[2] = {atomic_load_explicit(&shared->peer[0], memory_order_relaxed),
				    atomic_load_explicit(&shared->peer[1], memory_order_relaxed)};
		uint8_t nic;

		if (atomic_load_explicit(&shared->request, memory_order_relaxed) != slot + 1)
			return;
		if (demand->owner && demand->owner != slot + 1)
			demand_release(arbiter, session, demand->owner);
		if (demand->owner)
			return;
		demand->bytes = atomic_load_explicit(&shared->bytes, memory_order_relaxed);
		demand->layer = atomic_load_explicit(&shared->layer, memory_order_relaxed);
		demand->stage = atomic_load_explicit(&shared->stage, memory_order_relaxed);
		nic = atomic_load_explicit(&shared->nic, memory_order_relaxed);
		demand->way = (uint8_t)way_of(nic % MFS_NICS_MAX, atomic_load_explicit(&shared->direction, memory_order_relaxed) & 1);
		memcpy(demand->peer, peer, sizeof(peer));
		if (demand->bytes > MFS_FLOW_BYTES_MAX || nic >= arbiter->nics)
			demand->bytes = 0;
		demand->bytes_left = demand->bytes;
		demand->owner = slot + 1;
		demand->next = 0;
		*link = next;
		link = &demand->next;
		request->demands++;
		next = atomic_load_explicit(&shared->next, memory_order_relaxed);
	}
}

/* Last-stage bytes that take each way, and the part that exists only once the last layer is computed. */
static void request_tell(struct mfs_arbiter *arbiter, struct session *session, struct request *request)
{
	uint32_t layers = 0, ways = 0;
	uint64_t ahead[WAYS_MAX] = {0}, tail[WAYS_MAX] = {0};

	if (request->batch != MFS_NONE_U32) /* written before the batch has its id */
		layers = atomic_load_explicit(&session->segment->batch[request->batch].layers, memory_order_relaxed);
	for (uint32_t d = request->demand; d; d = session->demand[d - 1].next) {
		const struct demand *demand = &session->demand[d - 1];

		if (demand->stage != MFS_STAGE_P2D || !demand->bytes)
			continue;
		ways |= 1u << demand->way;
		ahead[demand->way] += demand->bytes;
		if (layers && demand->layer + 1u >= layers)
			tail[demand->way] += demand->bytes;
	}
	for (; ways; ways &= ways - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(ways);
		struct way *way = way_at(arbiter, i);
		struct mfs_request_context context = {
			.deadline_ns = request->deadline_ns,
			.budget_ns = request->budget_ns,
			.bytes_ahead = ahead[i] < MFS_FLOW_BYTES_MAX ? ahead[i] : MFS_FLOW_BYTES_MAX,
			.bytes_tail = tail[i],
		};

		if (mfs_rmlq_request(way->queue, request->key, &context, arbiter->now_ns) == 0)
			request->told |= 1u << i;
		way->dirty = true;
	}
}

/* Copies the request if it changed; true: it is there and was not before. */
static bool request_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	struct mfs_request *shared = &session->segment->request[slot];
	struct request *request = &session->request[slot];
	uint64_t id = atomic_load_explicit(&shared->request_id, memory_order_acquire);
	uint32_t version = atomic_load_explicit(&shared->version, memory_order_relaxed);

	if (id == request->id && (id == 0 || version == request->version))
		return false;
	if (request->id)
		request_forget(arbiter, session, slot);
	if (id == 0 || id == MFS_CONTEXT_CLAIMED)
		return false;
	*request = (struct request){
		.id = id,
		.key = key_mix(session->key_salt, id),
		.version = version,
		.program_id = atomic_load_explicit(&shared->program_id, memory_order_relaxed),
		.deadline_ns = atomic_load_explicit(&shared->deadline_ns, memory_order_relaxed),
		.budget_ns = atomic_load_explicit(&shared->budget_ns, memory_order_relaxed),
		.batch = atomic_load_explicit(&shared->batch, memory_order_relaxed),
		.value = atomic_load_explicit(&shared->value, memory_order_relaxed),
		.flags = atomic_load_explicit(&shared->flags, memory_order_relaxed),
	};
	if (request->deadline_ns > TIME_MAX_NS)
		request->deadline_ns = 0;
	if (request->budget_ns > TIME_MAX_NS)
		request->budget_ns = 0;
	if (request->batch >= MFS_BATCHES_MAX)
		request->batch = MFS_NONE_U32;
	atomic_store_explicit(&shared->judgement, 0, memory_order_relaxed);
	request_link(session, slot);
	demands_copy(arbiter, session, slot);
	request_tell(arbiter, session, request);
	batch_stale(session, request->batch);
	return true;
}

/* A batch that is told again may be another by now, and then all of its requests are read: hence not before this one is
 * linked, or it would be linked twice. */
void request_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	const struct request *request = &session->request[slot];
	bool arrived = request_read(arbiter, session, slot);
	uint32_t version = request->version;

	batches_retell(arbiter, session);
	if (arrived && request->id && request->version == version)
		watch_request(arbiter, session, request);
}

static void request_prune_at(struct mfs_arbiter *arbiter, struct request *request, uint32_t i)
{
	struct way *way = way_at(arbiter, i);

	if (mfs_rmlq_prune(way->queue, request->key) == 0)
		request->pruned_told |= 1u << i;
	way->dirty = true;
}

/* A last-stage flow of the request came to a way for which none was told, or that was not there when it was pruned. */
void request_submitted(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, uint32_t way)
{
	struct request *request = &session->request[slot];
	const struct mfs_request_context context = {.deadline_ns = request->deadline_ns, .budget_ns = request->budget_ns};

	if (!(request->told >> way & 1) &&
	    mfs_rmlq_request(way_at(arbiter, way)->queue, request->key, &context, arbiter->now_ns) == 0)
		request->told |= 1u << way;
	if (request->pruned && !(request->pruned_told >> way & 1))
		request_prune_at(arbiter, request, way);
}

/* Takes the task's bytes off what its request has told: off its own layer's first, then off the same stage's. */
void request_completed(struct session *session, const struct task *task)
{
	struct request *request = &session->request[task->request - 1];
	uint64_t bytes = task->bytes;

	if (request->id != task->request_id)
		return;
	for (unsigned pass = 0; pass < 2; pass++)
		for (uint32_t d = request->demand; d && bytes; d = session->demand[d - 1].next) {
			struct demand *demand = &session->demand[d - 1];
			uint64_t part = bytes < demand->bytes_left ? bytes : demand->bytes_left;

			if (demand->stage != task->stage || demand->way != task->way ||
			    (pass == 0 && demand->layer != task->layer))
				continue;
			demand->bytes_left -= part;
			bytes -= part;
		}
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
	bool pruned;
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
		batch->pruned = a->pruned;
		batch_tell(arbiter, session, batch, batch->told);
		return 0;
	}
	return -ENOENT;
}

int mfs_arbiter_batch_rank(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t batch_id, uint32_t rank, int pruned)
{
	struct rank_argument a = {.batch_id = batch_id, .client_id = client_id, .rank = rank, .pruned = pruned};

	return arbiter_command(arbiter, run_batch_rank, &a);
}

struct prune_argument {
	uint64_t request_id;
	uint32_t client_id;
	bool pruned;
};

static int run_request_prune(struct mfs_arbiter *arbiter, void *argument)
{
	struct prune_argument *a = argument;
	struct session *session = session_find(arbiter, a->client_id);
	uint32_t r = session && a->request_id ? request_find(session, a->request_id) : 0;
	struct request *request;

	if (!r)
		return -ENOENT;
	request = &session->request[r - 1];
	if (request->pruned == a->pruned)
		return 0;
	request->pruned = a->pruned;
	watch_prune(arbiter, session, request);
	for (uint32_t i = 0; i < ways_count(arbiter); i++) {
		if (a->pruned) {
			request_prune_at(arbiter, request, i);
		} else if (request->pruned_told >> i & 1) {
			mfs_rmlq_unprune(way_at(arbiter, i)->queue, request->key);
			way_at(arbiter, i)->dirty = true;
		}
	}
	if (!a->pruned)
		request->pruned_told = 0;
	atomic_store_explicit(&session->segment->request[r - 1].judgement, a->pruned ? MFS_REQUEST_PRUNED : 0,
			      memory_order_relaxed);
	return 0;
}

int mfs_arbiter_request_prune(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t request_id, int pruned)
{
	struct prune_argument a = {.request_id = request_id, .client_id = client_id, .pruned = pruned};

	return arbiter_command(arbiter, run_request_prune, &a);
}

/* ---- what changed ------------------------------------------------------------------------------------------------ */

struct changes_argument {
	struct mfs_change *changes;
	int n;
};

static int run_changes(struct mfs_arbiter *arbiter, void *argument)
{
	struct changes_argument *a = argument;
	int found = 0;

	arbiter->noticed = false;
	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		struct session *session = arbiter->session[i];

		for (; session->batches_changed && found < a->n; session->batches_changed &= session->batches_changed - 1)
			a->changes[found++] = (struct mfs_change){
				.client_id = session->client_id,
				.slot = (uint32_t)__builtin_ctzll(session->batches_changed),
			};
	}
	return found;
}

int mfs_arbiter_changes(struct mfs_arbiter *arbiter, struct mfs_change *changes, int n)
{
	struct changes_argument a = {.changes = changes, .n = n};

	return arbiter_command(arbiter, run_changes, &a);
}

int mfs_arbiter_notice_fd(const struct mfs_arbiter *arbiter)
{
	return arbiter->notice;
}
