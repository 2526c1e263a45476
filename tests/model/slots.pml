/* Task slots and their generations (csrc/client/client.c, csrc/arbiter/task.c).
 *
 * One slot is used for task after task; any thread may submit a task or end it, each through the lane of its own, so the
 * arbiter reads the messages about a slot in any order that keeps the order within a lane. Whole calls are steps here:
 * a lane delivers messages whole (ring.pml).
 *
 * Held: a correct client is never given up, and when all its tasks have ended the arbiter has forgotten all of them, whatever
 *       it was told first.
 * Broken on purpose: -DLATE_SUBMIT_IS_NEW (a submit of an earlier task counts as new), -DLAST_END_WINS (an earlier
 *       task's end takes the place of a later one's).
 */
#define TASKS 3
#define LANES 3

mtype = {submit, end};
chan lane[LANES] = [2 * TASKS] of { mtype, byte };
bool sent;

/* the arbiter's record of the slot */
byte generation, ended_generation;
bool busy;

proctype client()
{
	byte task = 1, at;

	do
	:: task <= TASKS ->
		select(at : 0 .. LANES - 1);
		lane[at]!submit(task);
		select(at : 0 .. LANES - 1);
		lane[at]!end(task);
		task++
	:: else -> break
	od;
	sent = true
}

inline task_submit(task)
{
	if
#ifndef LATE_SUBMIT_IS_NEW
	:: task < generation -> skip /* ended long ago: the slot was used again since */
	:: task >= generation ->
#else
	:: true ->
#endif
		assert(task != generation);
#ifdef LATE_SUBMIT_IS_NEW
		assert(!busy || task > generation); /* the client would be given up */
#endif
		generation = task; /* a task still here was ended: that message is on its way */
		busy = ended_generation != task;
		if
		:: !busy -> ended_generation = 0
		:: else
		fi
	fi
}

inline task_finish(task)
{
	if
	:: task > generation ->
		if
#ifndef LAST_END_WINS
		:: task < ended_generation -> skip
		:: task >= ended_generation -> ended_generation = task
#else
		:: true -> ended_generation = task
#endif
		fi
	:: task == generation -> assert(busy); busy = false
	:: task < generation -> skip
	fi
}

proctype arbiter()
{
	mtype kind;
	byte task;

	do
	:: atomic { lane[0]?kind(task) -> goto apply }
	:: atomic { lane[1]?kind(task) -> goto apply }
	:: atomic { lane[2]?kind(task) -> goto apply }
	:: atomic { sent && empty(lane[0]) && empty(lane[1]) && empty(lane[2]) -> break };
	   goto next;
apply:	   atomic {
		if
		:: kind == submit -> task_submit(task)
		:: kind == end -> task_finish(task)
		fi;
		task = 0
	   }
next:	   skip
	od;
	assert(!busy)
}

init {
	atomic {
		run client();
		run arbiter()
	}
}
