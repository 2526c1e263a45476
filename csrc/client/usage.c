/* Counters, by stage, of what the client has posted to its NICs and what has completed. The arbiter reads them. */
#include "message.h"

static void usage_add(struct mfs_usage_half *half, unsigned stage, uint64_t bytes)
{
	atomic_fetch_add_explicit(&half->bytes[stage], bytes, memory_order_relaxed);
}

void mfs_client_count_posted(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
{
	if (nic < client_nics(client))
		usage_add(&mfs_usage_of(client->segment, nic)->posted,
			  stage < MFS_STAGES_MAX ? stage : MFS_STAGE_BACKGROUND, bytes);
}

void mfs_client_count_open(struct mfs_client *client, enum mfs_open why)
{
	struct mfs_client_report *report = &client->segment->report;
	_Atomic uint64_t *counter = why == MFS_OPEN_OVERFLOW ? &report->bypassed_overflow
				    : why == MFS_OPEN_HOLD   ? &report->bypassed_hold
							     : &report->bypassed_stale;

	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

void mfs_client_count_completed(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes)
{
	struct mfs_segment *segment = client->segment;

	if (nic >= client_nics(client))
		return;
	usage_add(&mfs_usage_of(segment, nic)->completed,
		  stage < MFS_STAGES_MAX ? stage : MFS_STAGE_BACKGROUND, bytes);
	if (__builtin_expect(!(atomic_load_explicit(&mfs_gate_of(segment, nic)->word, memory_order_relaxed) &
			       MFS_GATE_IDLE_BELL),
			     1))
		return;
	if (stage == MFS_STAGE_COLLECTIVE &&
	    mfs_usage_posted(segment, nic, stage) == mfs_usage_completed(segment, nic, stage))
		client_doorbell_ring(client, true);
}
