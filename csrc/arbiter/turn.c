/* Turns: the order of tasks that nothing else orders.
 *
 * Policy, stage, deadline and rank order flows across programs. Where all of these are equal, the flow
 * that arrived first would go first. A program that has much waiting would then take that much more of the
 * link than one that has little, whether it really moves so much or only claims to. So such flows go by
 * fair share instead: each program's tasks follow one another at distances of the bytes that they claim,
 * counted from the turn of the last task that went (start-time fair queueing). Bytes that are claimed and
 * never move take the program's own share of the link and no more. A task that claims more than it counts
 * in the window takes less.
 *
 * Turns are counted in KiB. They advance no faster than twice the link could, and no program's turn is
 * further ahead of that than everything that may wait. So they stay below 2^56. */
#include "state.h"

#define TURN_BYTES 1024
#define TASK_TURNS_MAX (1ull << 20) /* a task that claims more waits no longer for it */
#define AHEAD_MAX (2 * MFS_TASKS_MAX * TASK_TURNS_MAX)
#define GOES_ON_MAX 2

uint64_t turn_of(struct mfs_arbiter *arbiter, const struct task *task)
{
	struct session_direction *share = session_direction_at(task->session, task->direction);
	uint64_t now = direction_at(arbiter, task->direction)->turn + 1, turns = task->bytes / TURN_BYTES + 1,
		 turn = share->turn > now ? share->turn : now;

	if (turn > now + AHEAD_MAX)
		turn = now + AHEAD_MAX;
	share->turn = turn + (turns < TASK_TURNS_MAX ? turns : TASK_TURNS_MAX);
	return turn;
}

void turn_went(struct mfs_arbiter *arbiter, const struct task *task)
{
	struct direction *direction = direction_at(arbiter, task->direction);
	double rate = (double)arbiter->nic[task->direction / MFS_DIRECTIONS].rate_bytes_per_s / 1e9;
	uint64_t most;

	if (task->turn <= direction->turn)
		return;
	most = direction->turn + 1 +
	       (uint64_t)(GOES_ON_MAX * rate * (double)(arbiter->now_ns - direction->turn_ns) / TURN_BYTES);
	direction->turn = task->turn < most ? task->turn : most;
	direction->turn_ns = arbiter->now_ns;
}
