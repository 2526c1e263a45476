/* What the parts of the arbiter share. Owned by the arbiter's thread; others reach it through commands.
 *
 * From above to below; none calls one above it (tests/unit/test_native_layers.py).
 *
 *   snapshot.c   copies of its state for readers: statistics, contexts, tasks
 *   arbiter.c    the thread: loop, spinning and sleeping; the daemon's interface
 *   task.c       tasks: messages about them, how they end; detaching
 *   heartbeat.c  how programs know that the daemon lives
 *   outlook.c    the page that all clients read: ports, what the coordinator says
 *   batch.c      batches: when contexts are read, what the queues learn of them, ranks
 *   request.c    requests and the bytes that they will move, pruning
 *   nic.c        NICs: permits, windows, load
 *   gate.c       collectives: whether held flows may go beside them
 *   turn.c       in which turn tasks go that nothing else orders
 *   fifo.c       queue pairs: which of their tasks is first
 *   credit.c     permits in advance where nothing waits
 *   active.c     which clients are polled in each turn
 *   work.c       what they cost, and which of them are read first
 *   session.c    sessions: segments and what the daemon writes there
 *   bypass.c     what goes past the programs that the arbiter knows
 *   watch.c      observers of all of them: accounts of requests, events for a recorder
 *   trace.c      the ring of events
 *   ledger.c     what each request has moved
 *   notice.c     what wakes the daemon's Python
 *   command.c    how other threads reach the arbiter's
 */
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

typedef unsigned __int128 direction_set __attribute__((aligned(8))); /* one bit each */
_Static_assert(DIRECTIONS_MAX <= 8 * sizeof(direction_set), "a set has room for all of them");

enum task_phase {
	TASK_FREE = 0,
	TASK_WAITING = 1,
	TASK_IN_FLIGHT = 2,
};

struct task {
	struct session *session;
	uint64_t bytes;
	uint64_t turn; /* stands for its arrival */
	uint64_t submit_ns;
	mfs_flow_handle handle; /* 0: permitted past a full queue */
	uint64_t request_id;    /* as submitted */
	uint64_t deadline_ns;
	uint32_t generation;
	uint32_t ended_generation; /* finished before its submit was read; 0: none */
	uint64_t ended_ns;         /* when, and how (enum watch_end) */
	uint8_t ended_how;
	uint32_t batch;   /* slot, MFS_NONE_U32: none */
	uint32_t request; /* slot + 1 when it was submitted; 0: not in the table */
	uint32_t account; /* cell of the ledger; 0: none */
	uint16_t layer;
	uint8_t stage;
	uint8_t phase; /* enum task_phase */
	uint8_t direction;
	uint8_t wire_class; /* when in flight */
	bool class_marked;  /* goes out on the lane of its class */
	bool counted;       /* when in flight: its bytes are in the windows, as `passage` says */
	bool load;          /* when in flight: it counts in the load that the policy's levels depend on */
	bool taken;         /* went on credit */
	bool placed;        /* it has a reference to its destination */
	uint8_t tier;       /* that its bytes count in while it waits */
	uint16_t destination;
	uint16_t fifo_next, fifo_prev; /* waiting tasks of the same queue pair: slot + 1; 0: none */
	uint32_t fifo;                 /* of its queue pair, slot + 1 in the table of them; 0: none */
	uint32_t peer;                 /* mfs_peer_hash of its remote port; 0: unknown */
	struct mfs_passage passage;
	struct task *flight_next, *flight_prev; /* of the same direction, by when they were permitted */
};

/* The daemon's copy of a batch context. */
struct batch {
	uint64_t id;  /* 0: none */
	uint64_t key; /* in the queues */
	uint64_t deadline_ns;
	uint64_t compute_ns;
	uint64_t layer_ns; /* when layer_current was seen first */
	uint32_t version;
	uint32_t layers;
	uint32_t layer_current;
	uint32_t rank;
	direction_set announced_directions; /* whose queue knows it, one bit each */
};

/* The daemon's copy of a request. Slots of it and of its demands are those of the segment, plus one in links. */
struct request {
	uint64_t id;  /* 0: none */
	uint64_t key; /* in the queues */
	uint64_t program_id;
	uint64_t deadline_ns;
	uint64_t budget_ns;
	uint32_t version;
	uint32_t batch; /* slot, MFS_NONE_U32: none */
	uint32_t value;
	uint32_t flags;
	uint32_t rank, tokens_left;         /* while it still queues */
	uint32_t demand;                    /* first of the chain */
	uint32_t demands;                   /* length of the chain */
	uint32_t next, prev;                /* of the same batch */
	uint32_t hash_next;                 /* of the same bucket */
	direction_set announced_directions; /* whose queue knows it, one bit each */
	direction_set pruned_directions;    /* whose queue knows that it is pruned */
	bool pruned;
};

struct demand {
	uint64_t bytes;
	uint64_t bytes_left; /* less what was completed */
	uint8_t peer[16];
	uint32_t owner; /* request, slot + 1; 0: free */
	uint32_t next;
	uint16_t layer;
	uint8_t stage;
	uint8_t direction;
};

#define REQUEST_BUCKETS 1024u
#define FIFO_BUCKETS 1024u
#define RINGS_ALL ((1u << MFS_SUBMIT_RINGS) - 1)
#define MESSAGES_PER_TURN 64 /* of one client, so that a busy one cannot keep the others waiting */

/* What one client has on one direction. The atomic words are written by the arbiter's thread alone, and read by bypass.c on
 * another: relaxed, since each means something without the other. */
struct session_direction {
	uint32_t in_flight_tasks;
	_Atomic uint64_t in_flight_bytes;
	_Atomic uint64_t permitted_bytes;     /* since it attached, less what has ended without being sent */
	uint64_t critical_ns;                 /* its last critical or pruned flow; 0: none yet */
	uint64_t overdue_ns;                  /* when a task of it was last written off; 0: never */
	uint32_t destinations;                /* numbers of the table that its tasks use */
	uint64_t credit, credit_class_marked; /* as written in its segment */
	uint64_t credit_late,
		credit_late_ns;   /* of what was taken back: so much may be read that was taken before */
	uint64_t credit_ended_ns; /* when some was last taken back; 0: never */
	uint64_t taken_bytes;     /* went on credit and are in the window */
	uint64_t used_ns;         /* when a task of it was last submitted there */
	uint64_t turn;            /* where its next task stands at the earliest: turn.c */
	/* place in the table of those that have used it lately, plus one; 0: it has not */
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

/* One client on one NIC. */
struct session_nic {
	/* of collectives, as last read */
	uint64_t posted;
	uint64_t completed;
	uint64_t read_ns;
	uint64_t moved_ns;     /* when a counter of it was last seen to move; 0: never */
	uint64_t load_bytes;   /* completed bytes of stages that never wait, as last read */
	uint64_t reuse_bytes;  /* completed bytes of stage 1, as last read */
	uint64_t others_bytes; /* completed bytes of all stages that may wait, as last read */
	bool member;           /* its collectives are read for each permit */
	struct session_direction direction[MFS_DIRECTIONS];
};

/* The waiting tasks of one queue pair, in the order in which they were sent. */
struct task_fifo {
	uint32_t queue; /* NIC and number; 0: free */
	uint32_t next;  /* of the same bucket, or next free: slot + 1 */
	uint16_t head, tail;
};

struct session {
	uint32_t client_id;
	enum mfs_segment_state state;
	int detach_reason;
	int failed; /* its segment could not take a permit: it is detached before the turn ends */
	struct mfs_segment *segment;
	int doorbell;
	bool announce;   /* permits were pushed since the last futex wake */
	bool leaving;    /* it may be polled no more: being decided */
	bool read_whole; /* all rings were polled when its messages were last taken */
	uint32_t active; /* place among those that are polled in each turn, plus one; 0: it has to ring */
	uint32_t rings, ring_next; /* that gave messages lately, one bit each; the other one to poll next */
	uint64_t nics_counted;     /* where its counters of bytes have moved lately, one bit each */
	uint64_t received_ns;      /* when a message of it was last read, or its bell heard */
	struct mfs_submit_reader reader;
	uint64_t grant_tail;
	uint64_t key_salt;
	uint64_t submits, grants, taken, completes, cancels, bad_messages;
	uint64_t held_bytes;
	uint64_t batches_known;   /* those with an id, one bit each */
	uint64_t batches_stale;   /* requests came or went since they were announced, one bit each */
	uint64_t batches_changed; /* since the daemon's Python read them, one bit each */
	uint64_t batches_ending;  /* have ended; some of their tasks' messages may be unread yet */
	uint64_t requests_ending[MFS_REQUESTS_MAX / 64];
	bool waiting_changed; /* its requests that still queue, since the daemon's Python read them */
	bool ending;          /* any of both */
	/* behind what a turn reads of all clients: those use the first few NICs */
	struct session_nic nic[MFS_NICS_MAX];
	struct batch batch[MFS_BATCHES_MAX];
	uint32_t batch_request[MFS_BATCHES_MAX];  /* first of the chain of its requests, slot + 1 */
	uint32_t batch_requests[MFS_BATCHES_MAX]; /* length of that chain */
	uint32_t request_bucket[REQUEST_BUCKETS]; /* by id: slot + 1 */
	struct request request[MFS_REQUESTS_MAX];
	struct demand demand[MFS_DEMANDS_MAX];
	uint64_t work_ns; /* processor time that it has cost and that was not yet forgiven */
	uint64_t work_read_ns;
	uint64_t work_seen_ns; /* of it, what is in beyond_ns */
	uint64_t beyond_ns;    /* that it has cost beyond its part of what all may that cost something */
	uint64_t part_read_ns; /* the arbiter's part_ns when that was last forgiven */
	bool debtor;           /* there was some, of late: it is one of `debtors` */
	bool behind;           /* it is read behind the others in this turn */
	struct mfs_message message[MESSAGES_PER_TURN]; /* taken from its rings and not yet processed */
	uint32_t message_next, message_end;
	uint32_t fifo_bucket[FIFO_BUCKETS];
	uint32_t fifo_free, fifos_used;
	struct task_fifo fifo[MFS_TASKS_MAX];
	struct task task[MFS_TASKS_MAX];
};

/* One direction of a NIC's link. The link is full duplex: what is read waits for nothing that is written, nor the
 * reverse. */
struct direction {
	struct mfs_rmlq *queue;
	struct mfs_window *window;
	struct task *flight_first, *flight_last;
	/* permitted and not complete, as submitted: the windows count less of what is very large */
	uint64_t in_flight_bytes;
	uint64_t evaluate_ns; /* when to evaluate it again though no message comes; MFS_TIME_NEVER */
	uint64_t closed_ns;   /* since when collectives have held its first flow up; 0: they do not */
	double aged_bytes;    /* that went all the same since */
	uint64_t shut_ns;     /* when credit was last taken back */
	uint64_t turn;        /* that the last one to go had */
	uint64_t turn_ns;     /* when that was */
	uint32_t holders;     /* clients that have used it lately */
	bool dirty;           /* something changed that may allow a permit; set by direction_touch */
	bool waits;           /* its first flow waits for collectives to end */
	bool open;            /* nothing waits: clients have credit */
	/* completed since the load was last measured, and known to have taken this direction */
	uint64_t load_bytes;
	double load;
	uint64_t carried_bytes[MFS_CLASSES_MAX];   /* completed by tasks, by class */
	uint64_t measured_bytes;                   /* of these, when the use was last measured */
	uint64_t waiting_bytes[MFS_OUTLOOK_TIERS]; /* of tasks that were not permitted yet */
	double used;                               /* share of the rate that was really taken */
};

/* Collectives on one NIC: see gate.c. */
struct gate {
	uint64_t pending_bytes; /* posted and not completed, as their senders count */
	double wire_bytes;      /* of these, what the wire has not had the time for */
	uint64_t read_ns;
	uint64_t busy_ns;  /* when some were last on the wire, or a counter moved */
	uint64_t scan_ns;  /* when all clients were last read, not only those known to have some */
	uint64_t pause_ns; /* time that the link may still be left silent between collectives */
	uint64_t pause_read_ns;
	bool paused;          /* it is left silent now */
	bool decided;         /* it was decided whether there is a pause after the last message */
	bool skipped;         /* there is none */
	uint32_t skips;       /* of so many messages to come */
	uint32_t skips_after; /* the last pause in which no message came */
	bool read;            /* the counters were, in this turn */
	uint64_t moved_bytes; /* posted since the rate was last measured */
	double rate;          /* bytes a second, averaged */
	uint32_t members;     /* clients that have some, at the front of `member` */
	uint32_t slice;       /* where the next scan of the others begins */
	struct session *member[MFS_CLIENTS_MAX];
};

/* Given to a NIC by programs since the daemon started. */
struct nic_posted {
	uint64_t unscheduled_bytes; /* of stages that never wait, in each direction */
	uint64_t others_bytes[MFS_DIRECTIONS];
	uint64_t outstanding_bytes; /* of all, not completed */
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
	double unscheduled_used;            /* share of the rate that this took of late */
	uint64_t others_bytes;              /* completed in all other stages, permitted or not */
	uint64_t passed_bytes;              /* of these, without a permit */
	bool bell;                          /* MFS_GATE_IDLE_BELL is set */
	struct nic_posted ended;            /* by clients that are gone */
	struct {
		double bytes_per_s[MFS_DIRECTIONS];
		uint64_t valid_until_ns;
	} bypass;             /* by the port's counters: bypass.c */
	uint64_t measured_ns; /* when its counters were last read */
	uint64_t moved_ns;    /* when one was last seen to move, or a load of what bypasses was given */
};

/* A far port of the outlook page. */
struct outlook_far {
	struct mfs_far_port info;
	uint64_t key; /* of the destination that all programs share there */
};

struct command {
	int (*run)(struct mfs_arbiter *arbiter, void *argument);
	void *argument;
	int rc;
	_Atomic uint32_t done; /* futex */
};

struct mfs_arbiter {
	struct mfs_arbiter_config config;
	uint64_t now_ns; /* read once a loop */
	uint64_t heartbeat_due_ns;
	uint64_t message_ns; /* when a client's message was last read */
	bool dormant;        /* nothing goes on: heartbeats are few, and written ahead */
	uint64_t idle_heartbeats;
	uint32_t turns_behind; /* since the first in a row that left messages in a ring */
	bool behind;           /* this turn did */
	uint64_t counted_ns;   /* since when heartbeats are written, and counters read */
	bool measures_load;    /* the policy has levels, which depend on it */
	/* when the rings of a client that cost too much are read again; MFS_TIME_NEVER: there is none */
	uint64_t resume_ns;
	uint32_t debtors; /* clients that have cost something lately */
	uint64_t part_ns; /* that each of them was forgiven, since there is an arbiter */
	uint64_t part_read_ns;
	uint64_t turn_left_ns;  /* what they may still cost in this turn, all together */
	uint32_t turn_place;    /* where the next turn goes on with them, among those that are polled */
	uint32_t refresh_place; /* where the next heartbeat goes on reading contexts, among the sessions */
	uint64_t key_secret;
	uint32_t next_client_id;
	uint32_t sessions; /* in use, at the front of the table */
	uint32_t nics;
	struct session *session[MFS_CLIENTS_MAX];
	struct session *active[MFS_CLIENTS_MAX]; /* those that are polled in each turn */
	uint32_t actives;
	enum mfs_asleep asleep_written; /* in their segments */
	uint64_t reviewed_ns, bells_ns; /* when they were last gone through, and bells polled */
	/* of the table of sessions: those that this heartbeat polls though they have not rung */
	uint32_t slice, slice_end;
	/* those with permits for which no thread was woken yet */
	struct session *announcing[MFS_CLIENTS_MAX];
	uint32_t announcings;
	struct session *holder[DIRECTIONS_MAX][MFS_CLIENTS_MAX]; /* those that have used a direction lately */
	/* those that a turn visits (see direction_touch), and those with holders */
	direction_set active_directions, used_directions;
	uint64_t moved_nics; /* whose counters have moved lately, one bit each */
	uint32_t nic_slice;  /* the next of those not in use that a heartbeat measures */
	struct nic nic[MFS_NICS_MAX];
	struct mfs_rule rules[MFS_RULES_MAX];
	uint32_t rules_count;
	uint8_t dscp[MFS_CLASSES_MAX];
	uint8_t collective_class; /* what the policy has for stage 2 */
	int notice;               /* eventfd: contexts changed */
	bool noticed;             /* it was rung and not read yet */
	uint64_t notice_ns;       /* when it was rung last */
	uint32_t gate_mask;
	uint64_t loops, wakeups, messages, grants;
	struct watch *watch;         /* watch.h */
	struct mfs_outlook *outlook; /* NULL: this kernel cannot seal one */
	int outlook_fd;
	uint32_t fars;
	struct outlook_far far[MFS_OUTLOOK_FARS_MAX];
	bool waiting_changed; /* requests that still queue, since the daemon's Python was last woken for them */
	/* the thread */
	pthread_t thread;
	bool running;
	/* the thread that writes heartbeats when this one is late: heartbeat.c */
	pthread_t beater;
	pthread_mutex_t beat_lock; /* the table of sessions is changed, or read by the beater */
	pthread_cond_t beat_changed;
	_Atomic uint64_t beat_due_ns; /* heartbeat_due_ns, for it */
	bool beat_stop;
	bool stop;
	int epoll;
	int command_bell;
	uint64_t gap_ns;         /* mean time between turns that found something */
	uint64_t worked_ns;      /* when the last one was */
	uint64_t asked_ns;       /* when a task was last permitted that had asked */
	pthread_mutex_t control; /* one command at a time */
	_Atomic(struct command *) command;
};

/* Whether the wire keeps a class apart from collectives. */
static inline bool class_apart(const struct mfs_arbiter *arbiter, uint32_t wire_class)
{
	const uint8_t collectives = arbiter->dscp[arbiter->collective_class], own = arbiter->dscp[wire_class];

	return own != MFS_DSCP_KEEP && collectives != MFS_DSCP_KEEP && own != collectives;
}

/* A direction's number is that of its NIC and its direction. */
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

/* The lowest of a set that is not empty. */
static inline uint32_t direction_first(direction_set set)
{
	uint64_t low = (uint64_t)set;

	return (uint32_t)(low ? __builtin_ctzll(low) : 64 + __builtin_ctzll((uint64_t)(set >> 64)));
}

/* Those behind `direction`: the rest of a loop over a set that may grow meanwhile. */
static inline direction_set directions_behind(direction_set set, uint32_t direction)
{
	return set & ~(direction_set)0 << direction << 1;
}

static inline uint32_t directions_count(const struct mfs_arbiter *arbiter)
{
	return arbiter->nics * MFS_DIRECTIONS;
}

/* Something happened to a direction. From here on turns visit it, until nothing waits there, is in flight, or has a time at
 * which it may change (direction_settled): so a turn costs as much as the directions that are in use, however many exist. */
static inline void direction_touch(struct mfs_arbiter *arbiter, uint32_t direction)
{
	direction_at(arbiter, direction)->dirty = true;
	arbiter->active_directions |= direction_bit(direction);
}

/* Something went through the NIC that no direction tells. */
static inline void nic_moved(struct mfs_arbiter *arbiter, uint32_t nic)
{
	arbiter->nic[nic].moved_ns = arbiter->now_ns;
	arbiter->moved_nics |= 1ull << nic;
}

#define SUSPECT_NS 10000000000ull /* a client is suspect for so long after a task that did not end in time */

/* A task of the client did not end in time there, lately. */
static inline bool session_suspect(const struct mfs_arbiter *arbiter, const struct session *session,
				   uint32_t direction)
{
	uint64_t overdue_ns = session_direction_at(session, direction)->overdue_ns;

	return overdue_ns && arbiter->now_ns - overdue_ns < SUSPECT_NS;
}

/* Keys of different clients do not meet in the queues unless they guess the salt. */
static inline uint64_t key_mix(uint64_t salt, uint64_t id)
{
	uint64_t key = mfs_mix64(salt ^ id);

	return key ? key : 1;
}

/* The rings of it that are polled in a turn, one bit each. */
static inline uint32_t active_rings(const struct session *session)
{
	return session->rings | 1u << session->ring_next % MFS_SUBMIT_RINGS;
}

/* What messages cost, and contexts to read and to announce, roughly: clients are held to a share of the thread's time. */
#define WORK_MESSAGE_NS 100 /* while others are polled, too */
#define WORK_BATCH_NS 300
#define WORK_REQUEST_NS 100
#define WORK_DEMAND_NS 50
#define WORK_STEP_NS 5           /* along a list that the client has made */
#define WORK_LATER_NS 2000000ull /* a client that owes so much has its contexts read no more for now */
#define TIME_MAX_NS (1ull << 60) /* what a segment has beyond it is not believed */

/* command.c */
uint64_t arbiter_clock_ns(void);
void arbiter_futex_wake(_Atomic uint32_t *word);
/* Runs the function on the arbiter's thread, or right here while there is none. */
int arbiter_command(struct mfs_arbiter *arbiter, int (*run)(struct mfs_arbiter *, void *), void *argument);
/* Starts one of the arbiter's threads, on the processors that it may use. -EINVAL: not one of them may be used. */
int arbiter_thread_start(struct mfs_arbiter *arbiter, pthread_t *thread, void *(*run)(void *));
/* on the arbiter's thread: what waits. True: something did */
bool arbiter_command_run(struct mfs_arbiter *arbiter);

/* notice.c */
void arbiter_notice(struct mfs_arbiter *arbiter);
void batch_notice(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, bool at_once);

/* session.c */
int session_create(struct mfs_arbiter *arbiter, struct session **session, int *memfd, int *doorbell);
void session_admit(struct mfs_arbiter *arbiter, struct session *session); /* from here on its ring is read */
struct session *session_find(struct mfs_arbiter *arbiter, uint32_t client_id);
void session_destroy(struct session *session);
/* Pushes a permit. A client whose ring is full loses it; one whose ring is corrupt has `failed` from then on. */
void session_permit(struct mfs_arbiter *arbiter, struct session *session, uint64_t task_id,
		    uint32_t wire_class);
void session_announce(struct session *session); /* wakes threads that wait for permits */
void session_nic_write(const struct mfs_arbiter *arbiter, struct session *session, uint32_t nic);
void session_gate_write(const struct mfs_arbiter *arbiter, struct session *session, uint32_t nic);
void session_rules_write(const struct mfs_arbiter *arbiter, struct session *session);
void session_dscp_write(const struct mfs_arbiter *arbiter, struct session *session);

/* credit.c */
/* by a task of it */
void credit_used(struct mfs_arbiter *arbiter, struct session *session, uint32_t direction);
void credit_forget(struct mfs_arbiter *arbiter, struct session *session);
/* Gives clients credit where nothing waits and takes it where something does: on all directions that are used, or where that
 * changed. Directions of which there is nothing left to do are visited no more. */
void credits_write(struct mfs_arbiter *arbiter, bool all);
bool at_rest(struct mfs_arbiter *arbiter); /* nothing waits, and no client has asked for a while */
/* How much of a task that went on credit is believed to be in flight. Not in flight yet. */
uint64_t credit_believed(struct mfs_arbiter *arbiter, struct task *task);
/* Notes whether a flow that may go has a class which its client could not have known. */
void credit_evaluated(struct mfs_arbiter *arbiter, const struct task *task, const struct mfs_pick *pick);

/* active.c */
void active_add(struct mfs_arbiter *arbiter, struct session *session); /* it was heard */
void active_remove(struct mfs_arbiter *arbiter, struct session *session);
void asleep_publish(struct mfs_arbiter *arbiter, enum mfs_asleep asleep); /* to those that are polled */
void actives_review(struct mfs_arbiter *arbiter); /* leaves out those that were not heard lately */
/* asks for the memory of those that are read after it */
void active_prefetch(struct mfs_arbiter *arbiter, uint32_t place);
void bells_read(struct mfs_arbiter *arbiter);
void bells_poll(struct mfs_arbiter *arbiter); /* now and then */
void slice_next(struct mfs_arbiter *arbiter);
/* something lies in its rings, or a slot of them is torn */
bool session_unread(const struct session *session);

/* turn.c */
/* Of a task that is submitted: what stands for its arrival. */
uint64_t turn_of(struct mfs_arbiter *arbiter, const struct task *task);
void turn_went(struct mfs_arbiter *arbiter, const struct task *task); /* it is in flight from now on */

/* work.c */
void work_turn(struct mfs_arbiter *arbiter); /* one begins */
/* It has cost more than its part: others are read first. */
bool work_beyond(struct mfs_arbiter *arbiter, struct session *session);
/* It has cost so much that it is not read before `resume_ns`. */
bool work_owes(struct mfs_arbiter *arbiter, struct session *session);
/* By those that are read behind the others. */
static inline void work_turn_spend(struct mfs_arbiter *arbiter, uint64_t ns)
{
	arbiter->turn_left_ns -= ns < arbiter->turn_left_ns ? ns : arbiter->turn_left_ns;
}
void work_forget(struct mfs_arbiter *arbiter, struct session *session); /* it is polled no more */

/* fifo.c */
/* a task that waits; 0: of no queue pair */
void fifo_add(struct session *session, struct task *task, uint32_t queue);
void fifo_remove(struct session *session, struct task *task);
/* of its queue pair; itself if of none */
struct task *fifo_first(struct session *session, struct task *task);

/* gate.c */
/* Whether collectives hold back what does not travel apart from them. Then `at_ns` is when that may have changed. */
bool gate_closed(struct mfs_arbiter *arbiter, uint32_t nic, uint64_t *at_ns);
/* Whether the direction has been closed for as long as it may be. */
bool gate_aged(struct mfs_arbiter *arbiter, struct direction *direction, uint64_t *at_ns);
/* `weight`: of what happened since the last call, in averages */
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
/* A new NIC takes the parts and leaves NULL; -ENOENT when it is new and there are none to take. */
int nic_find_or_add(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s,
		    struct nic_parts *parts);
void nic_gates_write(struct mfs_arbiter *arbiter, uint32_t nic);
/* permits what may go now, and sets evaluate_ns */
void direction_permit(struct mfs_arbiter *arbiter, uint32_t direction);
/* The destination of a task that comes from the client; `peer` 0: unknown. Given back when the task has ended. */
void nic_place(struct mfs_arbiter *arbiter, struct task *task, uint32_t peer);
void nic_unplace(struct mfs_arbiter *arbiter, struct task *task);
/* counts what waits, until it is permitted or has ended */
void nic_waits(struct mfs_arbiter *arbiter, struct task *task);
void nic_waits_no_more(struct mfs_arbiter *arbiter, struct task *task);
/* books and sends a permit */
void nic_permitted(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick);
/* books what went on credit */
void nic_taken(struct mfs_arbiter *arbiter, struct task *task, const struct mfs_pick *pick);
/* the task is in flight no more */
void nic_released(struct mfs_arbiter *arbiter, struct task *task, bool complete);
/* with every heartbeat: load, activity, clients that finish nothing */
/* Measures the NICs in use and, with `all`, the others; else some of those in their turn. */
void nic_tick(struct mfs_arbiter *arbiter, bool all);

/* request.c */
uint32_t request_find(const struct session *session, uint64_t request_id); /* slot + 1; 0: none */
/* Copies the request if it changed; true: it is there and was not before. Batches that lose or gain one become stale. */
bool request_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
void request_forget(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
void request_submitted(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot,
		       uint32_t direction);
void request_completed(struct session *session, const struct task *task);

/* batch.c */
/* Copies the context if it changed: forgets a batch that has ended. */
struct batch *batch_read(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
/* The same, but a batch that has ended stays until all rings are empty. */
struct batch *batch_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
/* The batch of a flow that is submitted to the direction, known to its queue; 0: none. */
uint64_t batch_key(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot, uint32_t direction);
uint64_t batch_compute_left_ns(const struct batch *batch, uint64_t now_ns);
void request_refresh(struct mfs_arbiter *arbiter, struct session *session, uint32_t slot);
void session_contexts_refresh(struct mfs_arbiter *arbiter, struct session *session);
void session_contexts_forget(struct mfs_arbiter *arbiter, struct session *session);

/* task.c */
/* True: it had messages. Polls `rings`, one bit each. */
bool session_drain(struct mfs_arbiter *arbiter, struct session *session, uint32_t rings);
/* The turn's permits are out: wakes the threads that wait for them, detaches clients that failed. True: it did the latter. */
bool permits_end(struct mfs_arbiter *arbiter);
/* Drops its tasks and has the client pass through; the segment stays mapped until session_destroy. */
void session_detach(struct mfs_arbiter *arbiter, struct session *session, int reason);

/* outlook.c */
void outlook_create(struct mfs_arbiter *arbiter);
void outlook_destroy(struct mfs_arbiter *arbiter);
/* with every heartbeat; the next is due at `next_ns` */
void outlook_write(struct mfs_arbiter *arbiter, uint64_t next_ns);
/* wakes the daemon's Python for requests that still queue, not too often */
void waiting_notice(struct mfs_arbiter *arbiter);

/* heartbeat.c */
bool heartbeats_write(struct mfs_arbiter *arbiter); /* when they are due; true: they were */
/* something happens: the next, if it is a second away, is due now */
void heartbeats_hasten(struct mfs_arbiter *arbiter);
void heartbeats_due(struct mfs_arbiter *arbiter, uint64_t due_ns);
int beater_init(struct mfs_arbiter *arbiter);
int beater_start(struct mfs_arbiter *arbiter);
void beater_stop(struct mfs_arbiter *arbiter);

#endif
