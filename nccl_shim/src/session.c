/* The session with the daemon, shared with an engine in this process (mfs/api.h). */
#include "session.h"

pthread_mutex_t shim_attach_lock = PTHREAD_MUTEX_INITIALIZER;

static _Atomic uint32_t shared; /* 1: an engine has got the session */

/* Gives the session to an engine. From now on no session of this process is unmapped, which costs one
 * segment for each daemon that dies. `shared` is set before the client is read, and lose() reads `shared`
 * after it has cleared the client. */
struct mfs_client *shim_client_share(void)
{
	atomic_store(&shared, 1);
	return atomic_load(&shim.client);
}

/* Writes the current batch of this process and its layer if there is exactly one. Only an engine that has
 * got the session can have any. */
void shim_batch_now(uint32_t *batch, uint16_t *layer)
{
	struct mfs_client *client =
		atomic_load_explicit(&shared, memory_order_relaxed) ? atomic_load(&shim.client) : NULL;
	struct mfs_segment *segment;
	uint32_t found = MFS_NONE_U32;

	if (!client)
		return;
	segment = mfs_client_segment(client);
	for (uint32_t i = 0; i < MFS_BATCHES_MAX; i++) {
		if (!atomic_load_explicit(&segment->batch[i].batch_id, memory_order_relaxed))
			continue;
		if (found != MFS_NONE_U32)
			return;
		found = i;
	}
	if (found == MFS_NONE_U32)
		return;
	*batch = found;
	*layer = (uint16_t)atomic_load_explicit(&segment->batch[found].layer_current, memory_order_relaxed);
}

/* Once shared, the session stays shared: see shim_client_share. */
bool shim_client_shared(void)
{
	return atomic_load(&shared);
}
