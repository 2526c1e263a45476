/* Task slots and their generations (csrc/client/task.c, csrc/arbiter/task.c).
 *
 * One slot is used for task after task; any thread may submit a task or end it, each through the ring of its own, so the
 * arbiter reads the messages about a slot in any order that keeps the order within a ring. Whole calls are steps here:
 * a ring delivers messages whole (ring.pml).
 *
 * Held: a correct client is never given up, and when all its tasks have ended the arbiter has forgotten all of them, whatever
 *       it was told first.
 * Broken on purpose: -DLATE_SUBMIT_IS_NEW (a submit of an earlier task counts as new), -DLAST_END_WINS (an earlier
 *       task's end takes the place of a later one's).
 */
#define TASKS 3
#define LANES 3

mtype = {submit, end};
chan ring[LANES] = [2 * TASKS] of { mtype, byte };
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
		ring[at]!submit(task);
		select(at : 0 .. LANES - 1);
		ring[at]!end(task);
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
	:: atomic { ring[0]?kind(task) -> goto apply }
	:: atomic { ring[1]?kind(task) -> goto apply }
	:: atomic { ring[2]?kind(task) -> goto apply }
	:: atomic { sent && empty(ring[0]) && empty(ring[1]) && empty(ring[2]) -> break };
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
