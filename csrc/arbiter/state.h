/* What the parts of the arbiter share. It is owned by the arbiter's thread. Other threads reach it through
 * commands (command.c).
 *
 * The parts from top to bottom. None calls a part above it (tests/unit/test_native_layers.py).
 *
 *   snapshot.c   copies of the state for readers: statistics, contexts, tasks
 *   arbiter.c    the thread: loop, spinning and sleeping; the daemon's interface
 *   task.c       tasks: messages about them, how they end; detaching
 *   heartbeat.c  how programs know that the daemon is alive
 *   outlook.c    the page that all clients read: ports, what the coordinator reports
 *   batch.c      batches: when contexts are read, what the queues are told of them, ranks
 *   request.c    requests and the bytes that they will move, pruning
 *   load.c       what NICs carry, with every heartbeat
 *   nic.c        NICs: permits, windows
 *   gate.c       collectives: whether held flows may go beside them
 *   turn.c       the order of tasks that nothing else orders
 *   fifo.c       queue pairs: which of their tasks is first
 *   credit.c     permits in advance where nothing waits
 *   active.c     which clients are polled in each turn
 *   work.c       what clients cost, and which of them are read first
 *   session.c    sessions: segments and what the daemon writes there
 *   bypass.c     traffic that goes past the programs that the arbiter knows
 *   watch.c      observers of all parts: accounts of requests, events for a recorder
 *   trace.c      the ring of events
 *   ledger.c     what each request has moved
 *   notice.c     what wakes the daemon's Python
 *   command.c    how other threads reach the arbiter's thread */
#ifndef MFS_ARBITER_STATE_H
#define MFS_ARBITER_STATE_H

#include <mfs/arbiter.h>
#include <mfs/ring.h>
#include <mfs/usage.h>
#include <mfs/window.h>

#include "../base/mix.h"

#include <pthread.h>
#include <stdbool.h>

#define DIRECTIONS_MAX (MFS_NICS_MAX * MFS_DIRECTIONS)

typedef unsigned __int128 direction_set __attribute__((aligned(8))); /* one bit for each direction */
_Static_assert(DIRECTIONS_MAX <= 8 * sizeof(direction_set), "a set has room for all of them");

enum task_phase {
	TASK_FREE = 0,
	TASK_WAITING = 1,
	TASK_IN_FLIGHT = 2,
};

struct task {
	struct session *session;
	uint64_t bytes;
	uint64_t turn; /* used in place of its arrival time: turn.c */
	uint64_t submit_ns;
	mfs_flow_handle handle; /* 0: went past a full queue */
	uint64_t request_id;    /* as submitted */
	uint64_t deadline_ns;
	uint32_t generation;
	uint32_t ended_generation; /* task whose end was read before its submit; 0: none */
	uint64_t ended_ns;         /* when that task ended */
	uint8_t ended_how;         /* how it ended: enum watch_end */
	uint32_t batch;            /* slot, MFS_NONE_U32: none */
	uint32_t request;          /* slot + 1 when it was submitted; 0: not in the table */
	uint32_t account;          /* cell of the ledger; 0: none */
	uint16_t layer;
	uint8_t stage;
	uint8_t phase; /* enum task_phase */
	uint8_t direction;
	uint8_t wire_class; /* when in flight */
	bool class_marked;  /* goes out on the lane of its class */
	bool counted;       /* when in flight: its bytes are in the windows, as recorded in `passage` */
	bool load;          /* when in flight: it counts in the load that the policy's levels depend on */
	bool taken;         /* went on credit */
	bool placed;        /* holds a reference to its destination */
	uint8_t tier;       /* tier in which its bytes are counted while it waits */
	uint16_t destination;
	uint16_t fifo_next, fifo_prev; /* waiting tasks of the same queue pair: slot + 1; 0: none */
	uint32_t fifo;                 /* FIFO of its queue pair: slot + 1 in session.fifo; 0: none */
	uint32_t peer;                 /* mfs_peer_hash of its remote port; 0: unknown */
	struct mfs_passage passage;
	struct task *flight_next, *flight_prev; /* tasks in flight of the same direction, in permit order */
};

/* The daemon's copy of a batch context. */
struct batch {
	uint64_t id;  /* 0: none */
	uint64_t key; /* its id in the queues */
	uint64_t deadline_ns;
	uint64_t compute_ns;
	uint64_t layer_ns; /* when layer_current was first seen */
	uint32_t version;
	uint32_t layers;
	uint32_t layer_current;
	uint32_t rank;
	direction_set announced_directions; /* directions whose queue knows it */
};

/* The daemon's copy of a request. Requests and demands have the same slot numbers as in the segment. Links
 * hold slot + 1. */
struct request {
	uint64_t id;  /* 0: none */
	uint64_t key; /* its id in the queues */
	uint64_t program_id;
	uint64_t deadline_ns;
	uint64_t budget_ns;
	uint32_t version;
	uint32_t batch; /* slot, MFS_NONE_U32: none */
	uint32_t value;
	uint32_t flags;
	uint32_t rank, tokens_left;         /* while it still queues */
	uint32_t demand;                    /* first demand of the chain */
	uint32_t demands;                   /* length of the chain */
	uint32_t next, prev;                /* requests of the same batch */
	uint32_t hash_next;                 /* next request of the same bucket */
	direction_set announced_directions; /* directions whose queue knows it */
	direction_set pruned_directions;    /* directions whose queue knows that it is pruned */
	bool pruned;
};

struct demand {
	uint64_t bytes;
	uint64_t bytes_left; /* bytes less what was completed */
	uint8_t peer[16];
	uint32_t owner; /* request that it belongs to: slot + 1; 0: free */
	uint32_t next;
	uint16_t layer;
	uint8_t stage;
	uint8_t direction;
};

#define REQUEST_BUCKETS 1024u
#define FIFO_BUCKETS 1024u
#define RINGS_ALL ((1u << MFS_SUBMIT_RINGS) - 1)
#define MESSAGES_PER_TURN 64 /* from one client, so that a busy client cannot keep the others waiting */

/* State of one client in one direction. The atomic words are written only by the arbiter's thread. bypass.c
 * reads them on another thread. They are relaxed because each is meaningful alone. */
struct session_direction {
	uint32_t in_flight_tasks;
	_Atomic uint64_t in_flight_bytes;
	_Atomic uint64_t permitted_bytes; /* since it attached, less tasks that ended without being sent */
	uint64_t critical_ns;             /* time of its last critical or pruned flow; 0: none yet */
	uint64_t overdue_ns;              /* when one of its tasks was last written off; 0: never */
	uint32_t destinations;            /* destinations of the window's table that its tasks use */
	uint64_t credit, credit_class_marked; /* as written in its segment */
	/* withdrawn credit that the client may still have used, in bytes, and when it was noted */
	uint64_t credit_late, credit_late_ns;
	uint64_t credit_ended_ns; /* when credit was last withdrawn; 0: never */
	uint64_t taken_bytes;     /* bytes that went on credit and are in the window */
	uint64_t used_ns;         /* when it last submitted a task in this direction */
	uint64_t turn;            /* earliest turn of its next task: turn.c */
	/* place + 1 among the clients that have used the direction lately; 0: not one of them */
	uint32_t holder;
};

static inline uint64_t word_read(const _Atomic uint64_t *word)
{
	return atomic_load_explicit(word, memory_order_relaxed);
}

static inline void word_add(_Atomic uint64_t *word, uint64_t count)
{
	atomic_store_explicit(word, word_read(word) + count, memory_order_relaxed);
}

/* State of one client on one NIC. */
struct session_nic {
	/* counters of collectives, as last read */
	uint64_t posted;
	uint64_t completed;
	uint64_t read_ns;
	uint64_t moved_ns;     /* when one of these counters was last seen to change; 0: never */
	uint64_t load_bytes;   /* completed bytes of stages that never wait, as last read */
	uint64_t reuse_bytes;  /* completed bytes of stage 1, as last read */
	uint64_t others_bytes; /* completed bytes of all stages that may wait, as last read */
	bool member;           /* its counters of collectives are read for each permit */
	struct session_direction direction[MFS_DIRECTIONS];
};

/* The waiting tasks of one queue pair, in the order in which they were sent. */
struct task_fifo {
	uint32_t queue; /* number of the NIC and of the queue pair; 0: free */
	uint32_t next;  /* next FIFO of the same bucket, or next free one: slot + 1 */
	uint16_t head, tail;
};

struct session {
	uint32_t client_id;
	enum mfs_segment_state state;
	int detach_reason;
	int failed; /* error of a push to its grant ring: it is detached before the turn ends */
	struct mfs_segment *segment;
	int doorbell;
	bool announce;   /* permits were pushed since the last futex wake */
	bool leaving;    /* actives_review is deciding whether it is still polled */
	bool read_whole; /* all rings were read to their end when messages were last taken */
	uint32_t active; /* place + 1 among the clients that each turn polls; 0: it has to ring */
	/* rings that gave messages lately, one bit each; and a count that chooses one more for each turn */
	uint32_t rings, ring_next;
	uint64_t nics_counted; /* NICs where its byte counters have changed lately, one bit each */
	uint64_t received_ns;  /* when its last message was read, or when it last rang */
	struct mfs_submit_reader reader;
	uint64_t grant_tail;
	uint64_t key_salt;
	uint64_t submits, grants, taken, completes, cancels, bad_messages;
	uint64_t held_bytes;
	/* sets of batches, one bit each */
	uint64_t batches_known;   /* batches with an id */
	uint64_t batches_stale;   /* requests came or went since the batch was announced */
	uint64_t batches_changed; /* the batch changed since the daemon's Python read it */
	uint64_t batches_ending;  /* the batch has ended; messages about its tasks may still be unread */
	uint64_t requests_ending[MFS_REQUESTS_MAX / 64];
	bool waiting_changed; /* requests that still queue changed since the daemon's Python read them */
	bool ending;          /* batches_ending or requests_ending is not empty */
	/* Placed behind the fields that a turn reads of all clients. Most clients use the first few NICs. */
	struct session_nic nic[MFS_NICS_MAX];
	struct batch batch[MFS_BATCHES_MAX];
	uint32_t batch_request[MFS_BATCHES_MAX];  /* first request of the batch: slot + 1 */
	uint32_t batch_requests[MFS_BATCHES_MAX]; /* number of its requests */
	uint32_t request_bucket[REQUEST_BUCKETS]; /* by id: slot + 1 */
	struct request request[MFS_REQUESTS_MAX];
	struct demand demand[MFS_DEMANDS_MAX];
	/* what it costs the thread: work.c */
	uint64_t work_ns;      /* processor time that it has cost and that is not yet forgiven */
	uint64_t work_read_ns; /* when that was last brought up to date */
	uint64_t work_seen_ns; /* the part of work_ns that beyond_ns already contains */
	uint64_t beyond_ns;    /* cost beyond its part of the quarter that all debtors share */
	uint64_t part_read_ns; /* the arbiter's part_ns when beyond_ns was last reduced */
	bool debtor;           /* beyond_ns was above 0 lately: it is one of `debtors` */
	bool behind;           /* it is read after the others in this turn */
	struct mfs_message message[MESSAGES_PER_TURN]; /* taken from its rings and not yet processed */
	uint32_t message_next, message_end;
	uint32_t fifo_bucket[FIFO_BUCKETS];
	uint32_t fifo_free, fifos_used;
	struct task_fifo fifo[MFS_TASKS_MAX];
	struct task task[MFS_TASKS_MAX];
};

/* One direction of a NIC's link. The link is full duplex, so the two directions never wait for each other. */
struct direction {
	struct mfs_rmlq *queue;
	struct mfs_window *window;
	struct task *flight_first, *flight_last;
	/* permitted and not complete, as submitted: the windows count very large tasks with fewer bytes */
	uint64_t in_flight_bytes;
	uint64_t evaluate_ns; /* when to evaluate it again if no message comes, or MFS_TIME_NEVER */
	uint64_t closed_ns;   /* since when collectives have held back its first flow; 0: they do not */
	double aged_bytes;    /* bytes that went beside collectives since then */
	uint64_t shut_ns;     /* when credit was last withdrawn */
	uint64_t turn;        /* turn of the last task that went */
	uint64_t turn_ns;     /* when that task went */
	uint32_t holders;     /* clients that have used it lately */
	bool dirty;           /* something changed that may allow a permit; set by direction_touch */
	bool waits;           /* its first flow waits for collectives to end */
	bool open;            /* nothing waits: clients have credit */
	/* completed since the load was last measured, and known to have taken this direction */
	uint64_t load_bytes;
	double load;
	uint64_t carried_bytes[MFS_CLASSES_MAX];   /* completed by tasks, by class */
	uint64_t measured_bytes;                   /* sum of carried_bytes at the last measurement */
	uint64_t waiting_bytes[MFS_OUTLOOK_TIERS]; /* bytes of tasks that wait for a permit, by tier */
	double used;                               /* share of the rate that was really used */
};

/* Collectives on one NIC: see gate.c. */
struct gate {
	uint64_t pending_bytes; /* posted and not completed, as counted by the senders */
	double wire_bytes;      /* the part of pending_bytes that the wire has not had time for */
	uint64_t read_ns;
	uint64_t busy_ns;  /* when collectives were last on the wire, or a counter changed */
	uint64_t scan_ns;  /* when clients not known to have collectives were last read */
	uint64_t pause_ns; /* time that the link may still be left silent between collectives */
	uint64_t pause_read_ns;
	bool paused;          /* the link is left silent now */
	bool decided;         /* whether to pause after the last message has been decided */
	bool skipped;         /* decided: no pause */
	uint32_t skips;       /* pauses still to be skipped */
	uint32_t skips_after; /* how many were skipped after the last pause without a message */
	bool read;            /* the counters were read in this turn */
	uint64_t moved_bytes; /* posted since the rate was last measured */
	double rate;          /* bytes per second, averaged */
	uint32_t members;     /* clients with collectives, at the front of `member` */
	uint32_t slice;       /* session at which the next scan begins */
	struct session *member[MFS_CLIENTS_MAX];
};

/* Bytes that programs gave to a NIC since the daemon started. */
struct nic_posted {
	uint64_t unscheduled_bytes; /* in stages that never wait; in each direction */
	uint64_t others_bytes[MFS_DIRECTIONS];
	uint64_t outstanding_bytes; /* in all stages, not completed */
};

struct nic {
	char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	struct direction direction[MFS_DIRECTIONS];
	uint64_t in_flight_class_bytes[MFS_CLASSES_MAX];
	uint64_t granted_bytes[MFS_CLASSES_MAX];
	uint64_t grants[MFS_CLASSES_MAX];
	uint64_t wait_ns;
	struct gate gate;
	/* completed by outgoing tasks of stage 1 since the load was last measured */
	uint64_t reuse_out_bytes;
	uint64_t unscheduled_carried_bytes; /* completed by what never waits */
	double unscheduled_used;            /* share of the rate that this has used lately */
	uint64_t others_bytes;              /* completed in all other stages, permitted or not */
	uint64_t passed_bytes;              /* the part of others_bytes without a permit */
	bool bell;                          /* MFS_GATE_IDLE_BELL is set */
	struct nic_posted ended;            /* posted by clients that have ended */
	struct {
		double bytes_per_s[MFS_DIRECTIONS];
		uint64_t valid_until_ns;
	} bypass;             /* from the port's counters: bypass.c */
	uint64_t measured_ns; /* when its counters were last read */
	uint64_t moved_ns;    /* when a counter last changed, or a load of what bypasses was given */
};

/* A far port of the outlook page. */
struct outlook_far {
	struct mfs_far_port info;
	uint64_t key; /* key of the destination that all programs share for this port */
};

struct command {
	int (*run)(struct mfs_arbiter *arbiter, void *argument);
	void *argument;
	int rc;
	_Atomic uint32_t done; /* futex */
};

struct mfs_arbiter {
	struct mfs_arbiter_config config;
	uint64_t now_ns; /* read once a turn */
	uint64_t heartbeat_due_ns;
	uint64_t message_ns; /* when a client's message was last read */
	bool dormant;        /* nothing happens: heartbeats are rare, and written in advance */
	uint64_t idle_heartbeats;
	uint32_t turns_behind; /* turns in a row that left messages in a ring */
	bool behind;           /* this turn leaves messages in a ring */
	uint64_t counted_ns;   /* since when heartbeats are written and counters read */
	bool measures_load;    /* the policy has levels, which depend on the load */
	/* when the rings of a client that cost too much are read again; MFS_TIME_NEVER: no such client */
	uint64_t resume_ns;
	/* costs of clients: work.c */
	uint32_t debtors; /* clients that have cost something lately */
	uint64_t part_ns; /* what each debtor has been forgiven since the arbiter was created */
	uint64_t part_read_ns;
	uint64_t turn_left_ns; /* what the clients that are read last may still cost in this turn, together */
	uint32_t turn_place;   /* place in `active` at which the next turn goes on with them */
	uint32_t refresh_place; /* place in `session` at which the next heartbeat goes on reading contexts */
	uint64_t key_secret;
	uint32_t next_client_id;
	uint32_t sessions; /* in use, at the front of `session` */
	uint32_t nics;
	struct session *session[MFS_CLIENTS_MAX];
	struct session *active[MFS_CLIENTS_MAX]; /* clients that are polled in each turn */
	uint32_t actives;
	enum mfs_asleep asleep_written; /* arbiter_asleep in the segments of these clients */
	uint64_t reviewed_ns, bells_ns; /* last run of actives_review; last poll of the bells */
	/* part of `session` that this heartbeat polls even if the clients have not rung */
	uint32_t slice, slice_end;
	/* clients with new permits whose threads have not been woken yet */
	struct session *announcing[MFS_CLIENTS_MAX];
	uint32_t announcings;
	/* clients that have used a direction lately */
	struct session *holder[DIRECTIONS_MAX][MFS_CLIENTS_MAX];
	/* directions that a turn visits (see direction_touch), and directions with holders */
	direction_set active_directions, used_directions;
	uint64_t moved_nics; /* NICs whose counters have changed lately, one bit each */
	uint32_t nic_slice;  /* the NIC that was last measured in turn, whether in use or not */
	struct nic nic[MFS_NICS_MAX];
	struct mfs_rule rules[MFS_RULES_MAX];
	uint32_t rules_count;
	uint8_t dscp[MFS_CLASSES_MAX];
	uint8_t collective_class; /* class of stage 2 in the policy */
	int notice;               /* eventfd: contexts changed */
	bool noticed;             /* `notice` was rung and not read yet */
	uint64_t notice_ns;       /* when `notice` was last rung */
	uint32_t gate_mask;
	uint64_t loops, wakeups, messages, grants;
	struct watch *watch;         /* watch.h */
	struct mfs_outlook *outlook; /* NULL: this kernel cannot seal the page */
	int outlook_fd;
	uint32_t fars;
	struct outlook_far far[MFS_OUTLOOK_FARS_MAX];
	bool waiting_changed; /* requests that still queue changed since the daemon's Python was last woken */
	/* the arbiter's thread */
	pthread_t thread;
	bool running;
	/* the thread that writes heartbeats when the arbiter's is late: heartbeat.c */
	pthread_t beater;
	pthread_mutex_t beat_lock; /* held to change the table of sessions, and by the beater to read it */
	pthread_cond_t beat_changed;
	_Atomic uint64_t beat_due_ns; /* heartbeat_due_ns, for the beater */
	bool beat_stop;
	bool stop;
	int epoll;
	int command_bell;
	uint64_t gap_ns;         /* mean time between turns that found something to do */
	uint64_t worked_ns;      /* when the last such turn was */
	uint64_t asked_ns;       /* when a task that had asked was last permitted */
	pthread_mutex_t control; /* one command at a time */
	_Atomic(struct command *) command;
};

/* True if the wire keeps the class apart from collectives. */
static inline bool class_apart(const struct mfs_arbiter *arbiter, uint32_t wire_class)
{
	const uint8_t collectives = arbiter->dscp[arbiter->collective_class], own = arbiter->dscp[wire_class];

	return own != MFS_DSCP_KEEP && collectives != MFS_DSCP_KEEP && own != collectives;
}

/* Numbers the directions of all NICs. */
static inline uint32_t direction_index(uint32_t nic, uint32_t direction)
{
	return nic * MFS_DIRECTIONS + direction;
}

static inline struct direction *direction_at(struct mfs_arbiter *arbiter, uint32_t direction)
{
	return &arbiter->nic[direction / MFS_DIRECTIONS].direction[direction % MFS_DIRECTIONS];
}

static inline struct session_direction *session_direction_at(const struct session *session,
							     uint32_t direction)
{
	return &((struct session *)session)
			->nic[direction / MFS_DIRECTIONS]
			.direction[direction % MFS_DIRECTIONS];
}

static inline direction_set direction_bit(uint32_t direction)
{
	return (direction_set)1 << direction;
}

/* Returns the lowest direction of a set, which must not be empty. */
static inline uint32_t direction_first(direction_set set)
{
	uint64_t low = (uint64_t)set;

	return (uint32_t)(low ? __builtin_ctzll(low) : 64 + __builtin_ctzll((uint64_t)(set >> 64)));
}

/* Returns the members of the set above `direction`: the rest of a loop over a set that may grow. */
static inline direction_set directions_behind(direction_set set, uint32_t direction)
{
	return set & ~(direction_set)0 << direction << 1;
}

static inline uint32_t directions_count(const struct mfs_arbiter *arbiter)
{
	return arbiter->nics * MFS_DIRECTIONS;
}

/* To be called when something happened to a direction. Turns then visit it until nothing waits there, nothing
 * is in flight, and no time is set at which it may change (direction_settled). So a turn costs as much as
 * the directions in use, however many exist. */
static inline void direction_touch(struct mfs_arbiter *arbiter, uint32_t direction)
{
	direction_at(arbiter, direction)->dirty = true;
	arbiter->active_directions |= direction_bit(direction);
}

/* To be called when something that no direction accounts for went through the NIC. */
static inline void nic_moved(struct mfs_arbiter *arbiter, uint32_t nic)
{
	arbiter->nic[nic].moved_ns = arbiter->now_ns;
	arbiter->moved_nics |= 1ull << nic;
}

#define SUSPECT_NS 10000000000ull /* how long a client is suspect after a task that did not end in time */

/* True if a task of the client in this direction lately did not end in time. */
static inline bool session_suspect(const struct mfs_arbiter *arbiter, const struct session *session,
				   uint32_t direction)
{
	uint64_t overdue_ns = session_direction_at(session, direction)->overdue_ns;

	return overdue_ns && arbiter->now_ns - overdue_ns < SUSPECT_NS;
}

/* Makes a key of a client's id. The keys of different clients collide only if a client guesses the salt. */
static inline uint64_t key_mix(uint64_t salt, uint64_t id)
{
	uint64_t key = mfs_mix64(salt ^ id);

	return key ? key : 1;
}

/* Returns the client's rings that are polled in a turn, one bit each. */
static inline uint32_t active_rings(const struct session *session)
{
	return session->rings | 1u << session->ring_next % MFS_SUBMIT_RINGS;
}

/* Rough costs of messages, and of contexts to read and to announce. Clients are limited to a share of the
 * thread's time. */
#define WORK_MESSAGE_NS 100 /* counted only while other clients are polled, too */
#define WORK_BATCH_NS 300
#define WORK_REQUEST_NS 100
#define WORK_DEMAND_NS 50
#define WORK_STEP_NS 5           /* one step along a list that the client has made */
#define WORK_LATER_NS 2000000ull /* the contexts of a client that owes more than this are read later */
#define TIME_MAX_NS (1ull << 60) /* a later time in a segment is not believed */

/* command.c */
uint64_t arbiter_clock_ns(void);
void arbiter_futex_wake(_Atomic uint32_t *word);
/* Called by other threads: runs the function on the arbiter's thread and returns its result. While there is
 * no such thread, the function runs on the caller's. */
int arbiter_command(struct mfs_arbiter *arbiter, int (*run)(struct mfs_arbiter *, void *), void *argument);
/* Starts one of the arbiter's threads on the configured processors. -EINVAL: none of them may be used. */
int arbiter_thread_start(struct mfs_arbiter *arbiter, pthread_t *thread, void *(*run)(void *));
/* Runs the waiting command, on the arbiter's thread. True: there was one. */
bool arbiter_command_run(struct mfs_arbiter *arbiter);

/* notice.c */
void arbiter_notice(struct mfs_arbiter *arbiter);
void batch_notice(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, bool at_once);

/* session.c */
int session_create(struct mfs_arbiter *arbiter, struct session **session, int *memfd, int *doorbell);
/* Gives the session its id, fills its segment and adds it to the table. */
void session_admit(struct mfs_arbiter *arbiter, struct session *session);
struct session *session_find(struct mfs_arbiter *arbiter, uint32_t client_id);
void session_destroy(struct session *session);
/* Pushes a permit. A permit for a full ring is lost. If the ring is corrupt, `failed` is set. */
void session_permit(struct mfs_arbiter *arbiter, struct session *session, uint64_t task_id,
		    uint32_t wire_class);
void session_announce(struct session *session); /* wakes threads that wait for permits */
void session_nic_write(const struct mfs_arbiter *arbiter, struct session *session, uint32_t nic);
void session_gate_write(const struct mfs_arbiter *arbiter, struct session *session, uint32_t nic);
void session_rules_write(const struct mfs_arbiter *arbiter, struct session *session);
void session_dscp_write(const struct mfs_arbiter *arbiter, struct session *session);

/* credit.c */
/* Notes that the client has submitted a task in the direction. */
void credit_used(struct mfs_arbiter *arbiter, struct session *session, uint32_t direction);
void credit_forget(struct mfs_arbiter *arbiter, struct session *session);
/* Gives clients credit in directions where nothing waits and withdraws it where something does. With `all`
 * for every direction in use, otherwise only where that changed. A direction in which there is nothing
 * left to do is no longer visited. */
void credits_write(struct mfs_arbiter *arbiter, bool all);
bool at_rest(struct mfs_arbiter *arbiter); /* true if nothing waits and no client has asked for a while */
/* Returns how many bytes of a task that went on credit are believed. Called before it counts as in flight. */
uint64_t credit_believed(struct mfs_arbiter *arbiter, struct task *task);
/* Notes if a flow that may go has a class that its client could not have known. */
void credit_evaluated(struct mfs_arbiter *arbiter, const struct task *task, const struct mfs_pick *pick);

/* active.c */
/* Called when the client has rung or a message was read: it is polled in each turn from now on. */
void active_add(struct mfs_arbiter *arbiter, struct session *session);
void active_remove(struct mfs_arbiter *arbiter, struct session *session);
/* Writes arbiter_asleep of all clients that are polled. */
void asleep_publish(struct mfs_arbiter *arbiter, enum mfs_asleep asleep);
void actives_review(struct mfs_arbiter *arbiter); /* stops polling clients that were silent for a while */
/* Prefetches the memory of clients that are read after the one at `place`. */
void active_prefetch(struct mfs_arbiter *arbiter, uint32_t place);
void bells_read(struct mfs_arbiter *arbiter);
void bells_poll(struct mfs_arbiter *arbiter); /* bells_read, if it is due */
void slice_next(struct mfs_arbiter *arbiter);
/* True if a message of the client is unread, or one of its slots is torn. */
bool session_unread(const struct session *session);

/* turn.c */
/* Returns the turn of a task that is submitted, used in place of its arrival time. */
uint64_t turn_of(struct mfs_arbiter *arbiter, const struct task *task);
void turn_went(struct mfs_arbiter *arbiter, const struct task *task); /* the task is in flight now */

/* work.c */
void work_turn(struct mfs_arbiter *arbiter); /* a turn begins */
/* True if the client has cost more than its part: others are read first. */
bool work_beyond(struct mfs_arbiter *arbiter, struct session *session);
/* True if the client has cost so much that it is not read before `resume_ns`. */
bool work_owes(struct mfs_arbiter *arbiter, struct session *session);
/* Subtracts what a client that is read after the others has cost from this turn's time. */
static inline void work_turn_spend(struct mfs_arbiter *arbiter, uint64_t ns)
{
	arbiter->turn_left_ns -= ns < arbiter->turn_left_ns ? ns : arbiter->turn_left_ns;
}
void work_forget(struct mfs_arbiter *arbiter, struct session *session); /* it is no longer polled */

/* fifo.c */
/* Adds a waiting task to the FIFO of its queue pair. `queue` 0: it has none. */
void fifo_add(struct session *session, struct task *task, uint32_t queue);
void fifo_remove(struct session *session, struct task *task);
/* Returns the first waiting task of the task's queue pair, or the task itself if it has no queue pair. */
struct task *fifo_first(struct session *session, struct task *task);

/* gate.c */
/* True if collectives hold back what does not travel apart from them. Then *at_ns is when that may change. */
bool gate_closed(struct mfs_arbiter *arbiter, uint32_t nic, uint64_t *at_ns);
/* True if the direction has been closed for as long as it may be. Otherwise lowers *at_ns to that time. */
bool gate_aged(struct mfs_arbiter *arbiter, struct direction *direction, uint64_t *at_ns);
/* `weight`: weight in averages of what happened since the last call. */
void gate_tick(struct mfs_arbiter *arbiter, uint32_t nic, uint64_t elapsed_ns, double weight);
void gate_forget(struct mfs_arbiter *arbiter, struct session *session);

/* bypass.c */
void bypass_session_ended(struct mfs_arbiter *arbiter, const struct session *session);
double bypass_rate(const struct mfs_arbiter *arbiter, const struct nic *nic, unsigned direction);

/* nic.c */
struct nic_parts {
	struct mfs_rmlq *queue[MFS_DIRECTIONS];
	struct mfs_window *window[MFS_DIRECTIONS];
};
/* Returns the NIC's index. A new NIC takes the parts and leaves NULL in their place. -ENOENT: it is new and
 * no parts were passed; -ENOSPC: the table is full. */
int nic_find_or_add(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s,
		    struct nic_parts *parts);
void nic_gates_write(struct mfs_arbiter *arbiter, uint32_t nic);
/* Permits what may go now, and sets evaluate_ns. */
void direction_permit(struct mfs_arbiter *arbiter, uint32_t direction);
/* Chooses the destination of a submitted task. `peer` 0: unknown. Given back when the task has ended. */
void nic_place(struct mfs_arbiter *arbiter, struct task *task, uint32_t peer);
void nic_unplace(struct mfs_arbiter *arbiter, struct task *task);
/* Counts the task as waiting, until it is permitted or has ended. */
void nic_waits(struct mfs_arbiter *arbiter, struct task *task);
void nic_waits_no_more(struct mfs_arbiter *arbiter, struct task *task);
/* Accounts for a task that may go, and sends its permit. */
void nic_permitted(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick);
/* Accounts for a task that went on credit. */
void nic_taken(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick);
/* The task is no longer in flight. */
void nic_released(struct mfs_arbiter *arbiter, struct task *task, bool complete);
/* Takes tasks that do not end out of the windows, on all directions in use. */
void directions_write_off(struct mfs_arbiter *arbiter);

/* load.c */
/* Called with a heartbeat. Measures the NICs in use and, with `all`, the others, too; otherwise some of the
 * others in turn. Writes off tasks that do not end. */
void nics_measure(struct mfs_arbiter *arbiter, bool all);

/* request.c */
uint32_t request_find(const struct session *session, uint64_t request_id); /* slot + 1; 0: none */
/* Copies the request if it changed. True: it is new. Batches that lose or gain a request become stale. */
bool request_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
void request_forget(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
void request_submitted(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot,
		       uint32_t direction);
void request_completed(struct session *session, const struct task *task);

/* batch.c */
/* Copies the context if it changed. A batch that has ended is forgotten. */
struct batch *batch_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
/* The same, but a batch that has ended is kept until all rings are empty. */
struct batch *batch_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
/* Returns the key of a flow's batch, after announcing it to the direction's queue if it is new there. 0: no
 * batch. */
uint64_t batch_key(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, uint32_t direction);
uint64_t batch_compute_left_ns(const struct batch *batch, uint64_t now_ns);
void request_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
void session_contexts_refresh(struct mfs_arbiter *arbiter, struct session *session);
void session_contexts_forget(struct mfs_arbiter *arbiter, struct session *session);

/* task.c */
/* Polls `rings`, one bit each, and processes the messages. True: there were some, or a bad one detached the
 * client. */
bool session_drain(struct mfs_arbiter *arbiter, struct session *session, uint32_t rings);
/* Called when the permits of a turn are pushed. Wakes the threads that wait for them and detaches clients
 * that failed. True: a client was detached. */
bool permits_end(struct mfs_arbiter *arbiter);
/* Drops the client's tasks and has it pass through. The segment stays mapped until session_destroy. */
void session_detach(struct mfs_arbiter *arbiter, struct session *session, int reason);

/* outlook.c */
void outlook_create(struct mfs_arbiter *arbiter);
void outlook_destroy(struct mfs_arbiter *arbiter);
/* Called with every heartbeat. The next is due at `next_ns`. */
void outlook_write(struct mfs_arbiter *arbiter, uint64_t next_ns);
/* Wakes the daemon's Python for requests that still queue, at a limited rate. */
void waiting_notice(struct mfs_arbiter *arbiter);

/* heartbeat.c */
bool heartbeats_write(struct mfs_arbiter *arbiter); /* writes them if they are due; true: they were */
/* Called when something happens. While dormant, the next heartbeat becomes due now. */
void heartbeats_hasten(struct mfs_arbiter *arbiter);
void heartbeats_due(struct mfs_arbiter *arbiter, uint64_t due_ns);
int beater_init(struct mfs_arbiter *arbiter);
int beater_start(struct mfs_arbiter *arbiter);
void beater_stop(struct mfs_arbiter *arbiter);

#endif
