/* The client's contexts: batches, their requests, and what those will move. They are tables in the segment
 * that the daemon reads. A slot is written only by the thread that claimed it, so no call waits for another. */
#define _GNU_SOURCE
#include "message.h"
#include "task.h"

#include <errno.h>
#include <string.h>

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static void announce(struct mfs_client *client, uint32_t slot, _Atomic uint64_t *owed,
		     bool (*send)(struct mfs_client *, uint32_t))
{
	client_owed_check(client);
	if (send(client, slot))
		return;
	if (!(atomic_fetch_or_explicit(&owed[slot / MFS_WORD_BITS], 1ull << slot % MFS_WORD_BITS,
				       memory_order_release) >>
		      slot % MFS_WORD_BITS &
	      1))
		atomic_fetch_add_explicit(&client->owed, 1, memory_order_relaxed);
}

static void batch_announce(struct mfs_client *client, uint32_t batch)
{
	announce(client, batch, &client->owed_batches, client_batch_send);
}

static void request_announce(struct mfs_client *client, uint32_t request)
{
	announce(client, request, client->owed_requests, client_request_send);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static int request_claim(struct mfs_client *client)
{
	uint32_t first = atomic_load_explicit(&client->request_hint, memory_order_relaxed);

	for (uint32_t i = 0; i < MFS_REQUESTS_MAX; i++) {
		uint32_t slot = (first + i) % MFS_REQUESTS_MAX;
		uint64_t free_id = 0;

		if (atomic_compare_exchange_strong_explicit(&client->segment->request[slot].request_id,
							    &free_id, MFS_CONTEXT_CLAIMED,
							    memory_order_acquire, memory_order_relaxed)) {
			atomic_store_explicit(&client->request_hint, slot + 1, memory_order_relaxed);
			return (int)slot;
		}
	}
	return -ENOSPC;
}

/* Claims a free slot for a demand. Returns slot + 1, or 0. */
static uint32_t demand_claim(struct mfs_client *client, uint32_t request)
{
	uint32_t first = atomic_load_explicit(&client->demand_hint, memory_order_relaxed);

	for (uint32_t i = 0; i < MFS_DEMANDS_MAX; i++) {
		uint32_t slot = (first + i) % MFS_DEMANDS_MAX;
		uint32_t none = 0;

		if (atomic_compare_exchange_strong_explicit(&client->segment->demand[slot].request, &none,
							    request + 1, memory_order_acquire,
							    memory_order_relaxed)) {
			atomic_store_explicit(&client->demand_hint, slot + 1, memory_order_relaxed);
			return slot + 1;
		}
	}
	return 0;
}

static void demands_free(struct mfs_client *client, uint32_t request)
{
	struct mfs_segment *segment = client->segment;
	uint32_t next = atomic_load_explicit(&segment->request[request].demand, memory_order_relaxed);

	for (uint32_t n = 0; next && next <= MFS_DEMANDS_MAX && n < MFS_REQUEST_DEMANDS_MAX; n++) {
		struct mfs_demand *demand = &segment->demand[next - 1];

		next = atomic_load_explicit(&demand->next, memory_order_relaxed);
		atomic_store_explicit(&demand->request, 0, memory_order_release);
	}
	atomic_store_explicit(&segment->request[request].demand, 0, memory_order_relaxed);
}

static int demands_write(struct mfs_client *client, uint32_t request, const struct mfs_demand_info *info,
			 uint32_t count)
{
	_Atomic uint32_t *link = &client->segment->request[request].demand;

	atomic_store_explicit(link, 0, memory_order_relaxed);
	for (uint32_t i = 0; i < count; i++) {
		uint32_t claimed = demand_claim(client, request);
		struct mfs_demand *demand = &client->segment->demand[claimed - 1];
		uint64_t peer[2];

		if (!claimed) {
			demands_free(client, request);
			return -ENOSPC;
		}
		memcpy(peer, info[i].peer, sizeof(peer));
		atomic_store_explicit(&demand->next, 0, memory_order_relaxed);
		atomic_store_explicit(&demand->bytes, info[i].bytes, memory_order_relaxed);
		atomic_store_explicit(&demand->peer[0], peer[0], memory_order_relaxed);
		atomic_store_explicit(&demand->peer[1], peer[1], memory_order_relaxed);
		atomic_store_explicit(&demand->layer, info[i].layer, memory_order_relaxed);
		atomic_store_explicit(&demand->stage, info[i].stage, memory_order_relaxed);
		atomic_store_explicit(&demand->nic, info[i].nic, memory_order_relaxed);
		atomic_store_explicit(&demand->direction, info[i].direction, memory_order_relaxed);
		atomic_store_explicit(link, claimed, memory_order_relaxed);
		link = &demand->next;
	}
	return 0;
}

int mfs_client_request_begin(struct mfs_client *client, const struct mfs_request_info *info, uint32_t batch)
{
	if (info->request_id == 0 || info->request_id == MFS_CONTEXT_CLAIMED ||
	    info->demands_count > MFS_REQUEST_DEMANDS_MAX ||
	    (batch != MFS_NONE_U32 && batch >= MFS_BATCHES_MAX))
		return -EINVAL;

	int slot = request_claim(client);

	if (slot < 0)
		return slot;

	struct mfs_request *request = &client->segment->request[slot];
	int rc = demands_write(client, (uint32_t)slot, info->demands, info->demands_count);

	if (rc < 0) {
		atomic_store_explicit(&request->request_id, 0, memory_order_release);
		return rc;
	}
	atomic_store_explicit(&request->program_id, info->program_id, memory_order_relaxed);
	atomic_store_explicit(&request->deadline_ns, info->deadline_ns, memory_order_relaxed);
	atomic_store_explicit(&request->budget_ns, info->budget_ns, memory_order_relaxed);
	atomic_store_explicit(&request->batch, batch, memory_order_relaxed);
	atomic_store_explicit(&request->value, info->value, memory_order_relaxed);
	atomic_store_explicit(&request->flags, info->flags, memory_order_relaxed);
	atomic_store_explicit(&request->rank, info->rank, memory_order_relaxed);
	atomic_store_explicit(&request->tokens_left, info->tokens_left, memory_order_relaxed);
	atomic_store_explicit(&request->judgement, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&request->version, 1, memory_order_relaxed);
	atomic_store_explicit(&request->request_id, info->request_id, memory_order_release);
	request_announce(client, (uint32_t)slot);
	return slot;
}

/* If two threads end the same request, one of them succeeds. */
int mfs_client_request_end(struct mfs_client *client, uint32_t slot)
{
	struct mfs_request *request;
	uint64_t id;

	if (slot >= MFS_REQUESTS_MAX)
		return -EINVAL;
	request = &client->segment->request[slot];
	id = atomic_load_explicit(&request->request_id, memory_order_relaxed);
	do {
		if (id == 0 || id == MFS_CONTEXT_CLAIMED)
			return -ENOENT;
	} while (!atomic_compare_exchange_weak_explicit(&request->request_id, &id, MFS_CONTEXT_CLAIMED,
							memory_order_acquire, memory_order_relaxed));
	demands_free(client, slot);
	atomic_store_explicit(&request->request_id, 0, memory_order_release);
	request_announce(client, slot);
	return 0;
}

uint32_t mfs_client_request_judgement(struct mfs_client *client, uint32_t slot)
{
	return slot < MFS_REQUESTS_MAX
		       ? atomic_load_explicit(&client->segment->request[slot].judgement, memory_order_relaxed)
		       : 0;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

static void requests_end(struct mfs_client *client, uint32_t batch)
{
	for (uint32_t i = 0; i < MFS_REQUESTS_MAX; i++)
		if (atomic_load_explicit(&client->segment->request[i].request_id, memory_order_acquire) &&
		    atomic_load_explicit(&client->segment->request[i].batch, memory_order_relaxed) == batch)
			mfs_client_request_end(client, i);
}

int mfs_client_batch_begin_with(struct mfs_client *client, const struct mfs_batch_info *info)
{
	if (info->batch_id == 0 || info->batch_id == MFS_CONTEXT_CLAIMED)
		return -EINVAL;
	for (uint32_t i = 0; i < MFS_BATCHES_MAX; i++) {
		struct mfs_batch *batch = &client->segment->batch[i];
		uint64_t free_id = 0;

		if (!atomic_compare_exchange_strong_explicit(&batch->batch_id, &free_id, MFS_CONTEXT_CLAIMED,
							     memory_order_acquire, memory_order_relaxed))
			continue;
		atomic_store_explicit(&batch->layer_current, 0, memory_order_relaxed);
		atomic_store_explicit(&batch->layers, info->layers, memory_order_relaxed);
		atomic_store_explicit(&batch->deadline_ns, info->deadline_ns, memory_order_relaxed);
		atomic_store_explicit(&batch->compute_ns, info->compute_ns, memory_order_relaxed);
		atomic_store_explicit(&batch->requests, info->requests_count, memory_order_relaxed);
		atomic_fetch_add_explicit(&batch->version, 1, memory_order_relaxed);
		/* Requests are written before the batch's id: once a reader sees the batch, all its
		 * requests are readable. */
		for (uint32_t r = 0; r < info->requests_count; r++) {
			int rc = mfs_client_request_begin(client, &info->requests[r], i);

			if (rc < 0) {
				requests_end(client, i);
				atomic_store_explicit(&batch->batch_id, 0, memory_order_release);
				return rc;
			}
			if (info->request_slots)
				info->request_slots[r] = (uint32_t)rc;
		}
		atomic_store_explicit(&batch->batch_id, info->batch_id, memory_order_release);
		batch_announce(client, i);
		return (int)i;
	}
	return -ENOSPC;
}

int mfs_client_batch_begin(struct mfs_client *client, uint64_t batch_id, uint32_t layers,
			   uint64_t deadline_ns, uint64_t compute_ns)
{
	const struct mfs_batch_info info = {.batch_id = batch_id,
					    .layers = layers,
					    .deadline_ns = deadline_ns,
					    .compute_ns = compute_ns};

	return mfs_client_batch_begin_with(client, &info);
}

int mfs_client_batch_layer(struct mfs_client *client, uint32_t batch, uint32_t layer_current)
{
	if (batch >= MFS_BATCHES_MAX)
		return -EINVAL;
	atomic_store_explicit(&client->segment->batch[batch].layer_current, layer_current,
			      memory_order_relaxed);
	/* The arbiter reads the context with every submit and every heartbeat. A message is needed only if
	 * tasks wait already. */
	for (uint32_t ring = 0; ring < MFS_SUBMIT_RINGS; ring++) {
		if (atomic_load_explicit(&client->ring[ring].waiting, memory_order_relaxed)) {
			batch_announce(client, batch);
			break;
		}
	}
	return 0;
}

int mfs_client_batch_end(struct mfs_client *client, uint32_t batch)
{
	_Atomic uint64_t *batch_id;
	uint64_t id;

	if (batch >= MFS_BATCHES_MAX)
		return -EINVAL;
	batch_id = &client->segment->batch[batch].batch_id;
	id = atomic_load_explicit(batch_id, memory_order_relaxed);
	do {
		if (id == 0 || id == MFS_CONTEXT_CLAIMED)
			return -ENOENT;
	} while (!atomic_compare_exchange_weak_explicit(batch_id, &id, MFS_CONTEXT_CLAIMED,
							memory_order_acquire, memory_order_relaxed));
	requests_end(client, batch);
	atomic_store_explicit(batch_id, 0, memory_order_release);
	batch_announce(client, batch);
	return 0;
}
