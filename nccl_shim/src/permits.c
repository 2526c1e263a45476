/* Takes permits that have arrived: called by the shim's thread, and by pollers while something is held. */
#include "permits.h"

#include "flag.h"
#include "process.h"
#include "pump.h"
#include "task.h"

#include <mfs/client.h>

/* Waits until no permit taken before is still being handed out. Returns false if that takes too long: the
 * thread may have been cancelled. */
bool shim_permits_settle(void)
{
	if (!shim_acquire_for(&shim.draining, SHIM_TURNOVER_WAIT_NS))
		return false;
	shim_release(&shim.draining);
	return true;
}

/* Takes the permits that have arrived and posts what they allow. A permit for a later task of a queue pair
 * lets the earlier tasks go first: they are ahead of it in any case, and otherwise it would keep its share
 * of the window while it waits for them. */
void shim_permits(void)
{
	struct mfs_permit permits[32];
	struct shim_qp *pump[32];
	int n, queue_pairs;

	do {
		if (!shim_try(&shim.draining))
			return;
		struct mfs_client *client = atomic_load(&shim.client);

		n = client && mfs_client_permits_pending(client) ? mfs_client_permits(client, permits, 32)
								 : 0;
		queue_pairs = 0;
		for (int i = 0; i < n; i++) {
			struct shim_task *t = permits[i].cookie;
			struct shim_qp *q = t->q;
			uint64_t id = atomic_load_explicit(&t->id, memory_order_acquire);

			/* a task that ended long ago; see trim.c */
			if (!q || (id && id != permits[i].task_id))
				continue;
			shim_task_permit(q, t);
			if (!queue_pairs || pump[queue_pairs - 1] != q)
				pump[queue_pairs++] = q;
		}
		shim_release(&shim.draining);
		for (int i = 0; i < queue_pairs; i++)
			shim_pump(pump[i]);
	} while (n == 32);
}

/* Called when the program polls while something is held. */
void shim_permits_poll(void)
{
	atomic_store_explicit(&shim.polls, atomic_load_explicit(&shim.polls, memory_order_relaxed) + 1,
			      memory_order_relaxed);
	shim_permits();
}
