/* The doorbell between a client's thread and the arbiter (abi.h: arbiter_asleep; the same protocol backwards: grant_waiters).
 *
 * The sleeper stores its flag and looks at the queue once more before it sleeps; the waker stores to the queue and then
 * reads the flag. Store buffers are modelled: a store goes to the owner's buffer and reaches memory at any later time,
 * or at a fence. The queue is a count of messages.
 *
 * Held: nobody sleeps for ever beside a message. Broken on purpose: -DNO_FENCE (the waker's fence left out),
 *       -DNO_SECOND_LOOK (the sleeper does not look again).
 */
#define MESSAGES 2

byte queue;	   /* in memory */
bool asleep;	   /* in memory */
byte bell;	   /* eventfd: counts, so a ring before the sleep is not lost */
byte taken;

byte queue_buffer; /* the waker's stores that have not reached memory */
bool asleep_buffered, asleep_value;

proctype waker()
{
	byte sent;

	do
	:: sent < MESSAGES ->
		queue_buffer++;
		sent++;
#ifndef NO_FENCE
		queue_buffer == 0; /* fence: memory has caught up (drained by `memory`) */
#endif
		if
		:: asleep -> asleep = false; bell++
		:: else
		fi
	:: else -> break
	od
}

active proctype memory() /* drains both store buffers at any time */
{
end:
	do
	:: atomic { queue_buffer > 0 -> queue_buffer--; queue++ }
	:: atomic { asleep_buffered -> asleep = asleep_value; asleep_buffered = false }
	od
}

proctype sleeper()
{
	do
	:: taken == MESSAGES -> break
	:: else ->
		if
		:: queue > taken -> taken++
		:: else ->
			atomic { asleep_value = true; asleep_buffered = true }
			!asleep_buffered; /* seq_cst store */
#ifndef NO_SECOND_LOOK
			if
			:: queue > taken ->
				atomic { asleep_value = false; asleep_buffered = true };
				!asleep_buffered
			:: else ->
				atomic { bell > 0 -> bell = 0 } /* sleeps until the bell rings */
			fi
#else
			atomic { bell > 0 -> bell = 0 }
#endif
		fi
	od
}

init {
	atomic {
		run waker();
		run sleeper()
	}
}
