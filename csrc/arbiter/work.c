/* What clients cost the thread, and which of them are read first.
 *
 * A client decides what it costs: it may send messages without end, and one message may have a thousand
 * requests read again. Two bounds protect the others:
 *
 *  - Each client may take a quarter of the thread's time. One that has taken more is read later. The plain
 *    messages of a client that is polled alone take no time from others.
 *  - Many clients that each stay below a quarter may be too much together. So a quarter is also divided
 *    among all clients that have cost anything lately. One that has cost more than its part is read after
 *    those that have not, and only as far as the time of this turn goes, which all such clients share in
 *    rotation. So a turn, for which the others wait, is short however many there are. The next turn comes
 *    at once, so together they may still have all of the thread. */
#include "state.h"

#define WORK_SHARE 4
#define WORK_NS_MAX 1000000ull
/* allowance beyond its part: what a client that sends now and then has to say at once */
#define WORK_PART_NS 5000
#define WORK_TURN_NS 12800 /* time of a turn for clients that have cost more than their part */

void work_turn(struct mfs_arbiter *arbiter)
{
	arbiter->part_ns += (arbiter->now_ns - arbiter->part_read_ns) / WORK_SHARE /
			    (arbiter->debtors ? arbiter->debtors : 1);
	arbiter->part_read_ns = arbiter->now_ns;
	arbiter->turn_left_ns = WORK_TURN_NS;
}

static void debtor_set(struct mfs_arbiter *arbiter, struct session *session, bool debtor)
{
	arbiter->debtors += (uint32_t)debtor - (uint32_t)session->debtor;
	session->debtor = debtor;
}

/* Adds up what the client has cost, and subtracts what time has forgiven. Once a turn. */
static void account(struct mfs_arbiter *arbiter, struct session *session)
{
	uint64_t forgiven_ns = (arbiter->now_ns - session->work_read_ns) / WORK_SHARE,
		 part_ns = arbiter->part_ns - session->part_read_ns;

	if (session->work_read_ns == arbiter->now_ns)
		return;
	session->beyond_ns += session->work_ns - session->work_seen_ns;
	if (session->debtor != (session->beyond_ns > 0))
		debtor_set(arbiter, session, session->beyond_ns > 0);
	session->beyond_ns -= part_ns < session->beyond_ns ? part_ns : session->beyond_ns;
	session->part_read_ns = arbiter->part_ns;
	session->work_ns -= forgiven_ns < session->work_ns ? forgiven_ns : session->work_ns;
	session->work_seen_ns = session->work_ns;
	session->work_read_ns = arbiter->now_ns;
}

bool work_beyond(struct mfs_arbiter *arbiter, struct session *session)
{
	account(arbiter, session);
	return session->beyond_ns > WORK_PART_NS;
}

bool work_owes(struct mfs_arbiter *arbiter, struct session *session)
{
	uint64_t forgiven_ns;

	account(arbiter, session);
	if (session->work_ns <= WORK_NS_MAX)
		return false;
	forgiven_ns = arbiter->now_ns + (session->work_ns - WORK_NS_MAX) * WORK_SHARE + 1;
	if (forgiven_ns < arbiter->resume_ns)
		arbiter->resume_ns = forgiven_ns;
	return true;
}

void work_forget(struct mfs_arbiter *arbiter, struct session *session)
{
	debtor_set(arbiter, session, false);
	session->beyond_ns = 0;
}
