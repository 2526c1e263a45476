/* One permit: submitted, polled, given back. No call here sleeps or allocates. */
#include "permit.h"

#include "session.h"

#include "../base/clock.h"
#include "../base/pause.h"

#include <errno.h>
#include <mfs/nic_tables.h>
#include <stdatomic.h>

/* A spinning arbiter answers within two microseconds. One that has to be woken is not waited for. */
#define SPIN_NS 5000
#define POLLS_PER_CLOCK 64

static bool must_ask(const struct nixl_session *session, unsigned stage)
{
	const struct mfs_gate *gate = mfs_gate_of(mfs_client_segment(session->client), session->nic);

	return atomic_load_explicit(&gate->word, memory_order_acquire) >>
		       (stage < MFS_STAGES_MAX ? stage : MFS_STAGES_MAX - 1) &
	       1;
}

/* Returns true if the permit arrives within some microseconds. */
static bool spin(struct mfs_client *client, uint64_t task)
{
	uint64_t until_ns = mfs_clock_ns() + SPIN_NS;

	if (atomic_load_explicit(&mfs_client_segment(client)->header.arbiter_asleep, memory_order_relaxed))
		return mfs_client_permit(client, task) != -EAGAIN;
	do {
		for (unsigned poll = 0; poll < POLLS_PER_CLOCK; poll++) {
			if (mfs_client_permit(client, task) != -EAGAIN)
				return true;
			mfs_pause();
		}
	} while (mfs_clock_ns() < until_ns);
	return false;
}

bool nixl_permit_ask(struct nixl_permit *permit, const struct nixl_need *need)
{
	uint64_t now_ns = mfs_clock_ns();
	const struct nixl_session *session = nixl_session_now(now_ns);
	struct mfs_context context = {.batch = MFS_NONE_U32};
	struct mfs_task task;
	int rc;

	*permit = (struct nixl_permit){0};
	if (!session)
		return true;
	if (!nixl_session_context(need->address, &context))
		context = (struct mfs_context){.batch = MFS_NONE_U32};
	*permit = (struct nixl_permit){.session = session,
				       .bytes = need->bytes,
				       .stage = context.stage ? context.stage : MFS_STAGE_P2D};
	if (!must_ask(session, permit->stage))
		return true;
	task = (struct mfs_task){.bytes = need->bytes,
				 .request_id = context.request_id,
				 .deadline_ns = context.deadline_ns,
				 .batch = context.batch,
				 .layer = context.layer,
				 .stage = permit->stage,
				 .nic = session->nic,
				 .incoming = need->incoming,
				 .at_once = true,
				 .peer = need->peer};
	if (task.bytes > MFS_TASK_BYTES_MAX)
		task.bytes = MFS_TASK_BYTES_MAX;
	rc = mfs_client_submit(session->client, &task, MFS_COOKIE_NONE, &permit->task);
	if (rc < 0)
		permit->task = 0;
	if (rc == -EAGAIN)
		mfs_client_count_open(session->client, MFS_OPEN_OVERFLOW);
	permit->hold_until_ns = now_ns + mfs_client_segment(session->client)->header.max_hold_ns;
	if (context.hold_until_ns && context.hold_until_ns < permit->hold_until_ns)
		permit->hold_until_ns = context.hold_until_ns;
	return rc || spin(session->client, permit->task);
}

bool nixl_permit_came(struct nixl_permit *permit)
{
	struct mfs_client *client = permit->session->client;
	uint64_t now_ns;

	if (mfs_client_permit(client, permit->task) != -EAGAIN)
		return true;
	now_ns = mfs_clock_ns();
	if (now_ns < permit->hold_until_ns && nixl_session_now(now_ns) == permit->session)
		return false;
	mfs_client_count_open(client, now_ns < permit->hold_until_ns ? MFS_OPEN_STALE : MFS_OPEN_HOLD);
	mfs_client_cancel(client, permit->task, true);
	permit->task = 0;
	return true;
}

void nixl_permit_posted(const struct nixl_permit *permit)
{
	if (permit->session && !permit->session->borrowed)
		mfs_client_count_posted(permit->session->client, permit->session->nic, permit->stage,
					permit->bytes);
}

void nixl_permit_end(struct nixl_permit *permit, bool arrived)
{
	struct mfs_client *client;

	if (!permit->session)
		return;
	client = permit->session->client;
	if (permit->task && arrived)
		mfs_client_complete(client, permit->task);
	else if (permit->task)
		mfs_client_cancel(client, permit->task, false);
	if (!permit->session->borrowed)
		mfs_client_count_completed(client, permit->session->nic, permit->stage, permit->bytes);
	*permit = (struct nixl_permit){0};
}

void nixl_permit_drop(struct nixl_permit *permit)
{
	if (permit->session && permit->task)
		mfs_client_cancel(permit->session->client, permit->task, false);
	*permit = (struct nixl_permit){0};
}
