/* Heartbeats: how programs know that the daemon lives, and what is looked at each time.
 *
 * A thread that wakes every 10 ms to say so costs more than all else that a node without traffic does. So the arbiter goes
 * dormant once nothing has gone on for a while: its next heartbeat is due in a second, and is written ahead, as if that were
 * now. Every message rings then, and whoever rings sets the heartbeat of its segment back to now (client.c): he learns as
 * soon as ever when nobody is there to hear the bell. What tells of itself by counters alone (collectives) is seen with
 * the next heartbeat.
 */
#include "arbiter_state.h"

#define DORMANT_AFTER_NS 1500000000ull /* longer than anything is remembered that credit depends on */
#define DORMANT_NS 1000000000ull
#define IDLE_HEARTBEATS_PER_TICK 10

static bool session_silent(const struct session *session)
{
	if (session->batches_known || session->ending)
		return false;
	/* a torn slot, and what is behind it, must be looked at again soon */
	for (uint32_t lane = 0; lane < MFS_LANES; lane++)
		if (atomic_load_explicit(&session->segment->submit[lane].tail, memory_order_relaxed) !=
		    session->reader.lane[lane].head)
			return false;
	return true;
}

static bool idle(struct mfs_arbiter *arbiter)
{
	for (uint32_t i = 0; i < ways_count(arbiter); i++)
		if (way_at(arbiter, i)->in_flight_bytes || mfs_rmlq_waiting(way_at(arbiter, i)->queue))
			return false;
	return true;
}

static bool silent(struct mfs_arbiter *arbiter)
{
	if (arbiter->now_ns - arbiter->told_ns < DORMANT_AFTER_NS)
		return false;
	for (uint32_t i = 0; i < arbiter->nics; i++)
		if (arbiter->nic[i].unscheduled_bytes ||
		    arbiter->now_ns - arbiter->nic[i].unscheduled_ns < DORMANT_AFTER_NS)
			return false;
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		if (arbiter->session[i]->state == MFS_SEGMENT_ACTIVE && !session_silent(arbiter->session[i]))
			return false;
	return true;
}

bool heartbeats_write(struct mfs_arbiter *arbiter)
{
	uint64_t ahead_ns;
	bool still;

	if (arbiter->now_ns < arbiter->heartbeat_due_ns)
		return false;
	still = idle(arbiter);
	if (!still || ++arbiter->idle_heartbeats % IDLE_HEARTBEATS_PER_TICK == 0 || arbiter->dormant)
		nic_tick(arbiter);
	arbiter->dormant = still && silent(arbiter);
	ahead_ns = arbiter->dormant ? DORMANT_NS : 0;
	arbiter->heartbeat_due_ns = arbiter->now_ns + (arbiter->dormant ? DORMANT_NS : arbiter->config.heartbeat_ns);
	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		atomic_store_explicit(&arbiter->session[i]->segment->header.heartbeat_ns, arbiter->now_ns + ahead_ns,
				      memory_order_release);
		/* A client whose ring was full when a layer ended tells it later; no flow waits longer than this. */
		session_contexts_refresh(arbiter, arbiter->session[i]);
	}
	return true;
}

void heartbeats_hasten(struct mfs_arbiter *arbiter)
{
	if (arbiter->dormant)
		arbiter->heartbeat_due_ns = arbiter->now_ns;
}
