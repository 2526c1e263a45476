/* The MPSC submit ring of csrc/include/mfs/ring.h, step by step, for a model checker (spin).
 *
 * Two producers, one consumer, a ring of SLOTS slots. A producer may stop for ever after its claim (it leaves a torn slot) or
 * be so slow that the consumer passes it by and it publishes late. Each shared access is one step, in the order of the
 * comment at the head of ring.h; the names P1..P5 and C1..C4 are the same. The checker looks at every interleaving under
 * sequential consistency; orders that only a weaker memory would show are the business of the thread sanitizer.
 *
 * Held:   a message is read whole, at most once, and never overwritten before it was read;
 *         what a producer published is delivered, unless it stopped in between.
 * Broken on purpose, to see that the properties can fail: -DNO_QUARANTINE (the slot passed by is used again at once),
 *         -DPUBLISH_FIRST (P5 before P4), -DHEAD_FIRST (C3 before C2).
 */
#define SLOTS 2
#ifndef MESSAGES
#define MESSAGES 2 /* of each producer */
#endif
#define QUARANTINE 2

byte tail, head, head_seen;
byte quarantine[QUARANTINE]; /* slot + 1, 0: free */
byte sequence[SLOTS];
byte first_half[SLOTS], second_half[SLOTS]; /* a message, written and read in two pieces */

bool published[8], delivered[8]; /* by message, 1 .. 2 * MESSAGES */
byte finished;

proctype producer(byte number)
{
	byte ticket, seen, slot, sent, message;
	byte copy[QUARANTINE];
	bool use;

claim:
	if
	:: sent == MESSAGES -> goto done
	:: else
	fi;
	ticket = tail; /* P1 */
	atomic {
		seen = head_seen;
		if
		:: ticket - seen < SLOTS -> goto room
		:: else
		fi
	}
	seen = head;
	head_seen = seen;
	ticket = tail;
	if
	:: ticket - seen >= SLOTS ->
		(head != seen || tail != ticket); /* full: the caller comes back when that has changed */
		seen = 0;
		goto claim
	:: else
	fi;
room:	skip;
	/* P2: relaxed loads of one line; what counts is that they come before the claim */
	d_step { seen = 0; copy[0] = quarantine[0]; copy[1] = quarantine[1] }
	atomic { /* P3 */
		if
		:: tail == ticket -> tail = ticket + 1
		:: else -> copy[0] = 0; copy[1] = 0; goto claim
		fi;
		slot = ticket % SLOTS;
		use = copy[0] != slot + 1 && copy[1] != slot + 1;
		copy[0] = 0;
		copy[1] = 0;
		if
		:: !use -> slot = 0; goto claim
		:: else
		fi;
		use = false;
		sent++;
		message = number * MESSAGES + sent;
		if
		:: true
		:: goto done /* torn: the thread was cancelled here */
		fi
	}
#ifdef PUBLISH_FIRST
	sequence[slot] = ticket + 1;
	published[message] = true;
	first_half[slot] = message;
	second_half[slot] = message;
#else
	first_half[slot] = message; /* P4 */
	second_half[slot] = message;
	atomic { /* P5 */
		sequence[slot] = ticket + 1;
		published[message] = true
	}
#endif
	message = 0;
	slot = 0;
	goto claim;
done:
	atomic { ticket = 0; slot = 0; message = 0; finished++ }
}

#define TAKE                                              \
	atomic {                                          \
		assert(a == b && !delivered[a]);          \
		delivered[a] = true;                      \
		a = 0;                                    \
		b = 0                                     \
	}
#define LATE(n)                                                                                                  \
	if                                                                                                       \
	:: torn_used[n] && !torn_delivered[n] && sequence[torn_ticket[n] % SLOTS] == torn_ticket[n] + 1 ->     \
		a = first_half[torn_ticket[n] % SLOTS];                                                          \
		b = second_half[torn_ticket[n] % SLOTS];                                                         \
		TAKE;                                                                                            \
		torn_delivered[n] = true                                                                         \
	:: else                                                                                                  \
	fi
#define IN_QUARANTINE(n) (torn_used[n] && torn_ticket[n] % SLOTS == slot)

proctype consumer()
{
	byte at, slot, a, b, i, entry;
	byte torn_ticket[QUARANTINE];
	bool torn_used[QUARANTINE], torn_delivered[QUARANTINE];
	bool claimed;

	do
	:: LATE(0); /* messages published late into slots that were passed by */
	   LATE(1);
	   slot = at % SLOTS;
	   if
	   :: sequence[slot] == at + 1 -> /* C1 */
		claimed = false;
#ifdef HEAD_FIRST
		at++;
		head = at;
		a = first_half[slot];
		b = second_half[slot];
		TAKE
#else
		a = first_half[slot]; /* C2 */
		b = second_half[slot];
		TAKE;
		atomic { at++; head = at } /* C3 */
#endif
	   :: atomic { sequence[slot] != at + 1 && tail == at -> /* C4: nothing claimed */
		claimed = false;
		if
		:: finished == 2 -> break
		:: else
		fi }
	   :: atomic { sequence[slot] != at + 1 && tail != at ->
		if
		:: IN_QUARANTINE(0) -> entry = 0
		:: !IN_QUARANTINE(0) && IN_QUARANTINE(1) -> entry = 1
		:: else -> entry = QUARANTINE
		fi;
		if
		:: entry < QUARANTINE -> /* a ticket on a slot in quarantine: nobody uses it */
			if
			:: torn_delivered[entry] ->
				torn_used[entry] = false;
				torn_delivered[entry] = false;
				torn_ticket[entry] = 0;
				quarantine[entry] = 0
			:: else
			fi;
			entry = 0;
			at++
		:: else ->
			if
			:: !claimed -> claimed = true; goto next /* the bound runs from here */
			:: claimed /* it may have passed at any time: the slot is torn */
			fi;
			claimed = false;
			if
			:: !torn_used[0] -> entry = 0
			:: torn_used[0] && !torn_used[1] -> entry = 1
			:: else -> goto refused
			fi;
#ifndef NO_QUARANTINE
			torn_used[entry] = true;
			torn_ticket[entry] = at;
			quarantine[entry] = slot + 1;
#endif
			entry = 0;
			at++
		fi }
		head = at /* what was written before is seen by whoever sees this */
	   fi;
next:	   skip
	od;
	/* The producers are done and every claimed ticket was passed: what was published has arrived, late ones included. */
	LATE(0);
	LATE(1);
	i = 1;
	do
	:: i <= 2 * MESSAGES -> assert(!published[i] || delivered[i]); i++
	:: else -> break
	od;
refused: /* more torn slots than are survived: the daemon gives this client up, which then passes through */
	skip
}

init {
	atomic {
		run producer(0);
		run producer(1);
		run consumer()
	}
}
