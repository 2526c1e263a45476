/* Submit and wait in one call: what a synchronous sender does for each of its messages. */
#include "state.h"

#include "../base/clock.h"
#include "../base/pause.h"

#include <errno.h>

/* A spinning arbiter answers within two microseconds. One that has to be woken answers within the longer
 * bound. After that, sleeping costs no more than it saves. */
#define SPIN_AWAKE_NS 5000
#define SPIN_WAKING_NS 40000
#define POLLS_PER_CLOCK 64

int mfs_client_ask(struct mfs_client *client, const struct mfs_task *task, uint64_t timeout_ns,
		   uint64_t *task_id)
{
	struct mfs_segment *segment = client->segment;
	struct mfs_task asking = *task;
	uint32_t gate;
	bool waking;
	int rc;

	*task_id = 0;
	if (task->nic >= client_nics(client) || !mfs_nic_of(segment, task->nic)->name[0])
		return -ENODEV;
	gate = atomic_load_explicit(&mfs_gate_of(segment, task->nic)->word, memory_order_acquire);
	if (!(gate >> (task->stage < MFS_STAGES_MAX ? task->stage : MFS_STAGES_MAX - 1) & 1))
		return -EALREADY;
	waking = atomic_load_explicit(&segment->header.arbiter_asleep, memory_order_relaxed);
	asking.at_once = true;
	rc = mfs_client_submit(client, &asking, MFS_COOKIE_NONE, task_id);
	if (rc < 0) {
		*task_id = 0;
		return rc;
	}
	if (rc > 0)
		return mfs_client_permit(client, *task_id);
	/* On few cores the arbiter may need this very core: do not spin while it is being woken. */
	if (!waking || !client->few_cores) {
		uint64_t until_ns = mfs_clock_ns() + (waking ? SPIN_WAKING_NS : SPIN_AWAKE_NS);

		do {
			for (unsigned poll = 0; poll < POLLS_PER_CLOCK; poll++) {
				rc = mfs_client_permit(client, *task_id);
				if (rc != -EAGAIN)
					return rc;
				mfs_pause();
			}
		} while (mfs_clock_ns() < until_ns);
	}
	return mfs_client_permit_wait(client, *task_id, timeout_ns);
}
