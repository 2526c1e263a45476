/* Requests and the bytes that they will move: the daemon's copies of them, what the queues are told of
 * them, pruning.
 *
 * Whatever a segment contains is clamped to what the queues can compute with. The length of a chain of
 * demands is bounded, and a demand that belongs to another request ends it. So garbage harms only its
 * writer's own order and no other client. Requests are announced with their batches in batch.c. */
#include "watch.h"

#include <errno.h>
#include <string.h>

/* ---- the table --------------------------------------------------------------------------------------------------- */

static uint32_t *bucket_of(struct session *session, uint64_t id)
{
	return &session->request_bucket[key_mix(session->key_salt, id) % REQUEST_BUCKETS];
}

/* Searches the rest of a bucket, beginning with `r`. */
static uint32_t chain_find(const struct session *session, uint32_t r, uint64_t request_id)
{
	while (r && session->request[r - 1].id != request_id)
		r = session->request[r - 1].hash_next;
	return r;
}

uint32_t request_find(const struct session *session, uint64_t request_id)
{
	return chain_find(session, *bucket_of((struct session *)session, request_id), request_id);
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
	session->batch_requests[request->batch]++;
}

static void request_unlink(struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	uint32_t *link = bucket_of(session, request->id);

	while (*link != slot + 1)
		link = &session->request[*link - 1].hash_next;
	*link = request->hash_next;
	if (request->batch != MFS_NONE_U32)
		session->batch_requests[request->batch]--;
	if (request->next)
		session->request[request->next - 1].prev = request->prev;
	if (request->prev)
		session->request[request->prev - 1].next = request->next;
	else if (request->batch != MFS_NONE_U32)
		session->batch_request[request->batch] = request->next;
}

/* Its batch is announced again, once everything that happens to its requests is done. */
static void batch_stale(struct session *session, uint32_t slot)
{
	if (slot != MFS_NONE_U32)
		session->batches_stale |= 1ull << slot;
}

static void waiting_note(struct mfs_arbiter *arbiter, struct session *session, const struct request *request)
{
	if (request->flags & MFS_REQUEST_WAITING)
		session->waiting_changed = arbiter->waiting_changed = true;
}

static void queues_forget(struct mfs_arbiter *arbiter, const struct request *request)
{
	for (direction_set left = request->announced_directions | request->pruned_directions; left;
	     left &= left - 1) {
		uint32_t i = direction_first(left);

		mfs_rmlq_request_end(direction_at(arbiter, i)->queue, request->key);
		direction_touch(arbiter, i);
	}
}

/* The queues know a request by its number, and it may have two entries: the end of a chunk is read after
 * the beginning of the next. The other entry then takes over what the queues know, except for bytes that
 * only this one had announced. */
static void request_hand_over(struct mfs_arbiter *arbiter, const struct request *request,
			      struct request *other, bool newest)
{
	const struct mfs_request_context context = {.deadline_ns = other->deadline_ns,
						    .budget_ns = other->budget_ns};
	direction_set left =
		request->announced_directions & ~(newest ? (direction_set)0 : other->announced_directions);

	for (; left; left &= left - 1) {
		uint32_t i = direction_first(left);

		mfs_rmlq_request(direction_at(arbiter, i)->queue, request->key, &context, arbiter->now_ns);
		direction_touch(arbiter, i);
	}
	other->announced_directions |= request->announced_directions;
	other->pruned_directions |= request->pruned_directions;
}

void request_forget(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	bool newest = request_find(session, request->id) == slot + 1;
	uint32_t d = request->demand, other;

	batch_stale(session, request->batch);
	waiting_note(arbiter, session, request);
	watch_request_end(arbiter, session, request);
	while (d) {
		struct demand *demand = &session->demand[d - 1];

		d = demand->next;
		memset(demand, 0, sizeof(*demand));
	}
	request_unlink(session, slot);
	other = request_find(session, request->id);
	if (other)
		request_hand_over(arbiter, request, &session->request[other - 1], newest);
	else
		queues_forget(arbiter, request);
	memset(request, 0, sizeof(*request));
}

/* Forgets the owner of a demand if the segment shows that it has ended. Its message is still on its way,
 * and until then it would keep the demand from a request that came later. */
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
		demand->direction = (uint8_t)
			direction_index(nic % MFS_NICS_MAX,
					atomic_load_explicit(&shared->direction, memory_order_relaxed) & 1);
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

/* Announces the last-stage bytes in each direction, and the part of them that exists only once the last
 * layer is computed. */
static void request_announce(struct mfs_arbiter *arbiter, struct session *session, struct request *request)
{
	uint32_t layers = 0;
	direction_set directions = 0;
	uint64_t ahead[DIRECTIONS_MAX], tail[DIRECTIONS_MAX]; /* valid for the directions in the set */

	if (request->batch != MFS_NONE_U32) /* written before the batch gets its id */
		layers = atomic_load_explicit(&session->segment->batch[request->batch].layers,
					      memory_order_relaxed);
	for (uint32_t d = request->demand; d; d = session->demand[d - 1].next) {
		const struct demand *demand = &session->demand[d - 1];

		if (demand->stage != MFS_STAGE_P2D || !demand->bytes)
			continue;
		if (!(directions >> demand->direction & 1))
			ahead[demand->direction] = tail[demand->direction] = 0;
		directions |= direction_bit(demand->direction);
		ahead[demand->direction] += demand->bytes;
		if (layers && demand->layer + 1u >= layers)
			tail[demand->direction] += demand->bytes;
	}
	for (; directions; directions &= directions - 1) {
		uint32_t i = direction_first(directions);
		struct mfs_request_context context = {
			.deadline_ns = request->deadline_ns,
			.budget_ns = request->budget_ns,
			.bytes_ahead = ahead[i] < MFS_FLOW_BYTES_MAX ? ahead[i] : MFS_FLOW_BYTES_MAX,
			.bytes_tail = tail[i],
		};

		if (mfs_rmlq_request(direction_at(arbiter, i)->queue, request->key, &context,
				     arbiter->now_ns) == 0)
			request->announced_directions |= direction_bit(i);
		direction_touch(arbiter, i);
	}
}

static void judgement_write(struct session *session, uint32_t slot)
{
	atomic_store_explicit(&session->segment->request[slot].judgement,
			      session->request[slot].pruned ? MFS_REQUEST_PRUNED : 0, memory_order_relaxed);
}

/* If a request has several entries, either all of them are pruned or none is. Called before the entry is linked. */
static void request_inherit(struct session *session, uint32_t slot)
{
	struct request *request = &session->request[slot];
	uint32_t other = request_find(session, request->id);

	if (other) {
		request->pruned = session->request[other - 1].pruned;
		request->pruned_directions = session->request[other - 1].pruned_directions;
	}
	judgement_write(session, slot);
}

bool request_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot)
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
		.rank = atomic_load_explicit(&shared->rank, memory_order_relaxed),
		.tokens_left = atomic_load_explicit(&shared->tokens_left, memory_order_relaxed),
	};
	if (request->deadline_ns > TIME_MAX_NS)
		request->deadline_ns = 0;
	if (request->budget_ns > TIME_MAX_NS)
		request->budget_ns = 0;
	if (request->batch >= MFS_BATCHES_MAX)
		request->batch = MFS_NONE_U32;
	request_inherit(session, slot);
	request_link(session, slot);
	demands_copy(arbiter, session, slot);
	session->work_ns += WORK_REQUEST_NS + WORK_DEMAND_NS * request->demands;
	if (request->batch != MFS_NONE_U32) /* it runs */
		request->flags &= ~(uint32_t)MFS_REQUEST_WAITING;
	waiting_note(arbiter, session, request);
	request_announce(arbiter, session, request);
	batch_stale(session, request->batch);
	return true;
}

static void request_prune_at(struct mfs_arbiter *arbiter, struct request *request, uint32_t i)
{
	if (mfs_rmlq_prune(direction_at(arbiter, i)->queue, request->key) == 0)
		request->pruned_directions |= direction_bit(i);
	direction_touch(arbiter, i);
}

/* A last-stage flow of the request came to a direction for which none was announced, or which did not
 * exist when it was pruned. */
void request_submitted(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot,
		       uint32_t direction)
{
	struct request *request = &session->request[slot];
	const struct mfs_request_context context = {.deadline_ns = request->deadline_ns,
						    .budget_ns = request->budget_ns};

	if (!(request->announced_directions >> direction & 1) &&
	    mfs_rmlq_request(direction_at(arbiter, direction)->queue, request->key, &context,
			     arbiter->now_ns) == 0)
		request->announced_directions |= direction_bit(direction);
	if (request->pruned && !(request->pruned_directions >> direction & 1))
		request_prune_at(arbiter, request, direction);
}

/* Subtracts the task's bytes from its request's demands: first those of its own layer, then those of the
 * same stage. */
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

			if (demand->stage != task->stage || demand->direction != task->direction ||
			    (pass == 0 && demand->layer != task->layer))
				continue;
			demand->bytes_left -= part;
			bytes -= part;
		}
}

/* ---- what the coordinator decides -------------------------------------------------------------------------------- */

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
	for (uint32_t i = 0; i < directions_count(arbiter); i++) {
		if (a->pruned) {
			request_prune_at(arbiter, request, i);
		} else if (request->pruned_directions >> i & 1) {
			mfs_rmlq_unprune(direction_at(arbiter, i)->queue, request->key);
			direction_touch(arbiter, i);
		}
	}
	if (!a->pruned)
		request->pruned_directions = 0;
	for (; r; r = chain_find(session, session->request[r - 1].hash_next, a->request_id)) {
		session->request[r - 1].pruned = a->pruned;
		session->request[r - 1].pruned_directions = request->pruned_directions;
		judgement_write(session, r - 1);
	}
	return 0;
}

int mfs_arbiter_request_prune(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t request_id,
			      int pruned)
{
	struct prune_argument a = {.request_id = request_id, .client_id = client_id, .pruned = pruned};

	return arbiter_command(arbiter, run_request_prune, &a);
}
