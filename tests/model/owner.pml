/* The owner flag of a queue pair and the thread that does without it (nccl_shim/src/owner.h).
 *
 * Each poster counts its posts in a row under the flag, is given the queue pair after ROW of them, and then enters by its
 * `inside` alone. A watcher (the shim's own thread, destroy) takes the flag and gives it back. The stores of `inside` are
 * in their thread's store buffer until memory takes them, which may be late; membarrier waits until all are in memory.
 * The flag's word is changed by locked instructions and by whoever has set it, so it needs no buffer here: its release
 * is in order after all that its holder did.
 *
 * Held: never two on the queue pair. Broken on purpose: -DNO_MEMBARRIER (the flag alone is looked at),
 *       -DNO_SECOND_LOOK (who enters does not look at the word again), -DGIVEN_TWICE (a queue pair that was given
 *       and taken back is given again).
 */
#define POSTERS 2
#define POSTS 4
#define ROW 1

#define HELD 1
#define ID(me) ((me + 1) << 1)

byte word;	/* of the owner flag */
bool inside;	/* in memory; written by whose queue pair it is */
byte poster;	/* owner side: ID of the last poster */
byte row;
bool shared;
byte users;	/* on the queue pair now */

bool buffered[POSTERS], value[POSTERS]; /* a store of `inside` that has not reached memory */

inline inside_store(v) { /* stores of one thread stay in order: the one before has to be in memory */
	atomic { !buffered[me] -> buffered[me] = true; value[me] = v }
}

inline use() {
	atomic { users++; assert(users == 1) }
	users--
}

inline barrier() {
#ifndef NO_MEMBARRIER
	!buffered[0] && !buffered[1]
#else
	skip
#endif
}

/* Sets the flag and waits until the queue pair's thread has left. `seen` is its own store, if that is not in memory yet. */
inline take(id) {
	atomic { !(word & HELD) -> old = word; word = word | HELD }
	if
	:: old != 0 && old != id -> barrier()
	:: else
	fi
	if
	:: old != 0 && old == id -> skip /* sees its own stores: it is not inside */
	:: old != 0 && old != id -> !inside
	:: else
	fi
}

proctype thread(byte me)
{
	byte posts, old;

	do
	:: posts == POSTS -> break
	:: else ->
		posts++;
		if
		:: word == ID(me) ->
			inside_store(true);
#ifndef NO_SECOND_LOOK
			if
			:: word == ID(me) -> use()
			:: else -> inside_store(false); goto slow
			fi
#else
			use()
#endif
			;
			inside_store(false)
		:: else ->
slow:
			take(ID(me));
			use();
			d_step {
				if
				:: shared
				:: !shared && poster != ID(me) ->
					if
#ifdef GIVEN_TWICE
					:: word != HELD -> word = HELD
#else
					:: word != HELD -> word = HELD; shared = true
#endif
					:: else
					fi;
					poster = ID(me);
					row = 0
				:: !shared && poster == ID(me) && word == HELD ->
					row++;
					if
					:: row >= ROW -> word = HELD | ID(me)
					:: else
					fi
				:: else
				fi
			}
			word = word & ~HELD
		fi
	od
}

proctype watcher()
{
	byte old;

	take(0);
	use();
	word = word & ~HELD;
	take(0);
	use();
	word = word & ~HELD
}

active proctype memory() /* takes the buffered stores at any time */
{
end:
	do
	:: atomic { buffered[0] -> inside = value[0]; buffered[0] = false }
	:: atomic { buffered[1] -> inside = value[1]; buffered[1] = false }
	od
}

init {
	atomic {
		run thread(0);
		run thread(1);
		run watcher()
	}
}
