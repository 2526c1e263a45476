/* Credit, the arbiter's side (the client's: client_credit.c): what each client may have in flight without asking.
 *
 * There is some while nothing waits for a way: then every permit would be given at once, in the order of asking. All
 * clients together get half of the window, so that with what was permitted one and a half windows are in flight at most.
 * What does not travel apart from collectives has none while there are any: whoever asks learns when they are through.
 * And a client whose flows are critical, nearly so or pruned asks for each, since they have a class that only the queue knows.
 */
#include "arbiter_state.h"

#define SILENT_NS 1000000000ull /* no collectives for so long: there are none */
#define REST_NS 1000000ull	/* since somebody asked: who asks again soon finds the arbiter awake for his completion */
#define JUDGED_NS 1000000000ull /* after its last flow with such a class */

static uint64_t credit_of(const struct mfs_arbiter *arbiter, const struct session *session, uint32_t index)
{
	const struct session_way *share = &session->way[index];

	if (session->state != MFS_SEGMENT_ACTIVE || session_suspect(arbiter, session, index) ||
	    (share->judged_ns && arbiter->now_ns - share->judged_ns < JUDGED_NS))
		return 0;
	return mfs_window_bytes(arbiter->nic[index / MFS_DIRECTIONS].way[0].window) / 2 / arbiter->sessions;
}

static void credit_write(struct mfs_arbiter *arbiter, struct session *session, uint32_t index)
{
	bool silent = arbiter->now_ns - arbiter->nic[index / MFS_DIRECTIONS].gate.busy_ns > SILENT_NS;
	struct mfs_gate *gate = &session->segment->gate[index / MFS_DIRECTIONS];
	struct session_way *share = &session->way[index];
	uint64_t laned = way_at(arbiter, index)->open ? credit_of(arbiter, session, index) : 0, any = silent ? laned : 0;

	if (share->credit_laned != laned)
		atomic_store_explicit(&gate->credit_laned[index % MFS_DIRECTIONS], laned, memory_order_relaxed);
	if (share->credit != any)
		atomic_store_explicit(&gate->credit[index % MFS_DIRECTIONS], any, memory_order_relaxed);
	share->credit_laned = laned;
	share->credit = any;
}

void credits_write(struct mfs_arbiter *arbiter, bool all)
{
	for (uint32_t i = 0; i < ways_count(arbiter); i++) {
		bool open = arbiter->config.mode == MFS_MODE_ENFORCE && mfs_rmlq_waiting(way_at(arbiter, i)->queue) == 0;

		if (!all && open == way_at(arbiter, i)->open)
			continue;
		way_at(arbiter, i)->open = open;
		for (uint32_t s = 0; s < arbiter->sessions; s++)
			credit_write(arbiter, arbiter->session[s], i);
	}
}

bool at_rest(const struct mfs_arbiter *arbiter)
{
	if (arbiter->now_ns - arbiter->asked_ns < REST_NS)
		return false;
	for (uint32_t i = 0; i < ways_count(arbiter); i++)
		if (mfs_rmlq_waiting(arbiter->nic[i / MFS_DIRECTIONS].way[i % MFS_DIRECTIONS].queue))
			return false;
	return true;
}

void credit_judged(struct mfs_arbiter *arbiter, const struct task *task, const struct mfs_pick *pick)
{
	const struct mfs_policy *policy = &arbiter->config.policy;
	bool demoted = pick->tier == MFS_TIER_SCAVENGER && task->stage < MFS_STAGE_BACKGROUND;
	bool near = pick->tier == MFS_TIER_LAST && policy->variant == MFS_VARIANT_MFS &&
		    pick->wire_class != mfs_policy_class(policy, MFS_STAGE_P2D, 0);

	if (pick->tier != MFS_TIER_CRITICAL && !demoted && !near)
		return;
	task->session->way[task->way].judged_ns = arbiter->now_ns;
	credit_write(arbiter, task->session, task->way);
}
