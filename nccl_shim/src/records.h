/* What the shim keeps of devices, completion queues and queue pairs, and the locks that protect it.
 *
 * A queue pair has two ownership flags. `owner` covers everything that is done before and during a native post; `polling`
 * covers the accounting of completions. No path of a post or a poll waits for `polling`, nor for the `owner` of a queue pair
 * that can hold: a thread that finds it taken leaves its work in the ring, and the owner checks for work after it has
 * cleared the flag. How a thread owns a queue pair without a locked instruction: owner.h.
 *
 * Layers, from above to below. Each has a header of its own, includes only those below it, and calls none above it
 * (tests/unit/test_native_layers.py):
 *
 *   api.c        the symbol by which an engine finds us
 *   interpose.c  what programs find instead of libibverbs' own functions
 *   context.c    devices: which of their operations are patched
 *   lifecycle.c  the daemon, the thread, fork
 *   qp.c         a queue pair's creation and destruction
 *   cq_ex.c      completion queues with functions of their own
 *   poll.c       ibv_poll_cq
 *   flushed.c    completions that no provider makes
 *   builders.c   ibv_wr_*
 *   post.c       ibv_post_send
 *   sweep.c      the thread's account of what is held, and for how long
 *   trim.c       memory in which nothing is held goes back
 *   qp_state.c   another state, another daemon, an error
 *   classify.c   what a queue pair is for
 *   permits.c    permits that have arrived
 *   flush.c      what is held goes now
 *   pump.c       from the ring to the NIC
 *   task.c       tasks and what they wait for
 *   hold.c       the ring of held work requests
 *   gate.h       whether a work request waits
 *   complete.c   the accounting of completions
 *   ledger.c     the accounting of posts
 *   budget.c     the list of queue pairs that hold something
 *   owner.c      which thread may post
 *   profiler.c   what NCCL says
 *   nccl_abi.h   its profiler interface
 *   metadata.c   what the engine says
 *   thread.c     the posting thread's variables
 *   devices.c    records of devices and completion queues
 *   table.c      finding queue pairs
 *   wake.c       the thread's sleep
 *   session.c    the session, shared with an engine
 *   process.c    the state of the process
 *   mode.c       MFS_MODE
 *   mark.c       MFS_MARK
 *   service_level.c MFS_SERVICE_LEVELS
 *   rules.c      the rules
 *   records.h    what is kept of devices and queue pairs
 *   symbols.c    libc's dlsym, copies of libibverbs
 *   log.c        one line for each reason
 *   flag.c       flags that are locks
 *   chain.h      hash chains that are read without a lock
 *   counter.h    counters that others read
 *   compiler.h   hints to the compiler
 */
#ifndef MFS_SHIM_RECORDS_H
#define MFS_SHIM_RECORDS_H

#include "compiler.h"

#include <infiniband/verbs.h>
#include <mfs/api.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A task is closed before it has more bytes than this. The limit is lower where these bytes would take the
 * NIC longer than SHIM_QUANTUM_NS_MAX, and higher where they would take it less than SHIM_QUANTUM_NS_MIN:
 * a fast NIC would need more permits than one thread can give. SHIM_QUANTUM_NS_MIN is the time of 512 KiB at
 * 400 Gbit/s, and of 1 MiB at 800, so that whole work requests of 2^n bytes fill a task. With 10 us, two of
 * 256 KiB would be a few bytes too many. */
#define SHIM_QUANTUM_BYTES (256u << 10)
#define SHIM_QUANTUM_BYTES_MIN (32u << 10)
#define SHIM_QUANTUM_BYTES_MAX (2u << 20)
#define SHIM_QUANTUM_NS_MIN 10500
#define SHIM_QUANTUM_NS_MAX 200000
/* Tasks of a queue pair that wait for permits. Work requests that come later wait without a task, and then
 * make larger tasks. Where many queue pairs hold something, they share half of the slots that a process
 * has, but each may have at least the minimum. */
#define SHIM_TASKS_WAITING_MAX 32
#define SHIM_TASKS_WAITING_MIN 2

#define SHIM_FORCE_TIME 2 /* value of shim_qp.force */

/* ---- an open device ------------------------------------------------------------------------------------------------ */

struct shim_verbs;

struct shim_context {
	_Atomic(struct ibv_context *) context; /* NULL: free record */
	_Atomic(struct shim_context *) next;   /* same bucket */
	const struct shim_verbs *verbs;
	int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);
	struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
	/* a thread domain was used: providers then take no locks, so only the caller's threads may post */
	bool single_threaded;
	char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	bool inherited;  /* opened before a fork: passes through in the child */
	_Atomic int nic; /* index given by the daemon, or -1 */
	bool unanswered; /* the daemon was asked for that index and did not reply in time */
	int lane;        /* wire class of its queue pairs, or -1: see metadata.c */
};

/* A completion queue. It is polled by the patched poll_cq and, if it is extended, by functions of its own. */
struct shim_cq {
	_Atomic(struct ibv_cq *) cq; /* NULL: free record */
	_Atomic(struct shim_cq *) next;
	const struct ibv_context *context;
	_Atomic uint64_t claimed;    /* completions that its queue pairs may have outstanding */
	bool channel;                /* a thread may sleep on it */
	struct shim_cq_ex *extended; /* set if made by ibv_create_cq_ex: see cq_ex.c */
};

/* ---- a queue pair --------------------------------------------------------------------------------------------------- */

/* What a work request is for, as announced by the engine: struct mfs_context without its reserved fields. */
struct shim_tag {
	uint64_t request_id;
	uint64_t deadline_ns;
	uint32_t batch;
	uint16_t layer;
	uint8_t stage; /* 0: decided by the rules */
	uint8_t reserved;
	uint64_t hold_until_ns; /* 0: none */
};
_Static_assert(sizeof(struct shim_tag) == 32, "tags are compared as memory");

/* One signaled work request that went to the NIC, and what is complete when its completion is polled.
 * Everything that one entry finishes is of one stage: where the stage changes, an entry without a
 * completion (SHIM_SIGNAL_MARK) closes the old stage. */
struct shim_signal {
	_Atomic uint64_t bytes; /* posted on this queue pair so far */
	_Atomic uint64_t end;   /* index after this work request, with its stage and flags */
};
#define SHIM_SIGNAL_FORCED (1ULL << 63) /* signaled by the shim, not by the caller */
#define SHIM_SIGNAL_MARK (1ULL << 62)   /* no completion comes for this entry: it ends with the next one */
#define SHIM_SIGNAL_STAGE_SHIFT 56
#define SHIM_SIGNAL_STAGE (7ULL << SHIM_SIGNAL_STAGE_SHIFT)
#define SHIM_SIGNAL_END ((1ULL << SHIM_SIGNAL_STAGE_SHIFT) - 1)
_Static_assert(MFS_STAGES_MAX == 8, "a stage has three bits in a signal");

/* A held work request with copies of everything it needs. Slot = index modulo ring size; sge[] and payload follow. */
struct shim_held {
	_Atomic uint64_t published; /* index + 1 once the copy is complete */
	uint64_t enqueued_ns;
	uint64_t caller_wr_id;
	uint64_t bytes;
	uint64_t built_next; /* index of the next work request of the same builder */
	struct shim_tag tag;
	bool hole; /* nothing to post: its reservation was not used */
	struct ibv_send_wr wr;
	struct ibv_sge sge[];
};

struct shim_qp;

/* Consecutive held work requests of one queue pair with the same tag. They need one permit. */
struct shim_task {
	struct shim_qp *q;
	_Atomic uint64_t id; /* 0: not (yet) known */
	_Atomic uint32_t permitted;
	uint32_t bypass;   /* not submitted: ring or slots are full, or nothing is held now */
	uint64_t sequence; /* number of the task on its queue pair, from 1 */
	uint64_t end;      /* index after its last work request */
	/* the task is complete when the signal with this end has come back; 0: it has no signal */
	_Atomic uint64_t done_at;
	uint64_t bytes;
	uint64_t enqueued_ns;
	struct shim_tag tag;
	bool incoming; /* its work requests are RDMA reads */
	bool owed;     /* the arbiter counts it as in flight and still needs a message of its completion */
};

/* What one post adds to the accounting; see shim_ledger_publish. */
struct shim_ledger {
	uint64_t head;   /* of the signal ring */
	uint64_t bytes;  /* posted on this queue pair so far */
	uint64_t marked; /* of these, those up to the last entry of the signal ring */
	uint64_t requests;
	uint8_t stage;
};

/* The ibv_wr_* interface of a queue pair. */
struct shim_builder {
	struct ibv_qp_ex *qpx;
	struct ibv_qp_ex real; /* the provider's functions */
	_Atomic uint32_t busy; /* set between wr_start and wr_complete or wr_abort */
	bool held;             /* builds into our ring, not into the provider's */
	bool entered;          /* native: entered with shim_owner_enter */
	bool current;          /* a work request is being built */
	bool signaled;
	bool named; /* native: the stage of everything in this build is decided */
	int error;
	uint64_t first, last, count;    /* held: indices of what was built */
	struct shim_ledger before, now; /* native: what wr_complete publishes */
	uint64_t bytes, end;
};

struct shim_qp {
	/* read by all threads; changed while the queue pair is not in use, or under both flags */
	_Atomic(struct ibv_qp *) qp;
	_Atomic(struct shim_qp *) next_by_pointer;
	_Atomic(struct shim_qp *) next_by_number;
	struct shim_context *_Atomic context;
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	_Atomic uint32_t number;
	_Atomic uint8_t live;
	/* its completions come through the patched poll_cq and match the signal ring */
	_Atomic uint8_t accounted;
	_Atomic uint8_t broken; /* an error was seen: nothing is held or accounted until RESET */
	_Atomic uint8_t state;  /* enum ibv_qp_state */
	_Atomic uint8_t holds;  /* it has a ring of held work requests; never cleared while it lives */
	_Atomic uint8_t passes; /* the rules do not ask for permits, or no longer do */
	_Atomic uint8_t unsure; /* its role is a guess until its first post, see shim_role_at_post */
	uint8_t sq_sig_all;
	uint8_t type;
	_Atomic uint8_t stage, role, dscp; /* changed under both flags, when the rules change */
	/* DSCP with which it was connected, whether chosen here or not; MFS_DSCP_KEEP: none */
	_Atomic uint8_t wire_dscp;
	/* the gate for stage `stage`, and the counters of its bytes; never NULL, see shim_detached */
	_Atomic(_Atomic uint32_t *) gate;
	_Atomic(struct mfs_usage *) usage;
	/* owner side: where the thread that it is given to counts alone, in its own shard; see owner.h */
	struct mfs_usage_shard *posted_shards; /* NULL: the daemon has no shards */
	struct mfs_usage_shard *posted_shard;  /* NULL: given to no thread, or that thread has no shard */
	int shard_given;                       /* index of that shard; -1: none */
	struct shim_held *fifo;                /* NULL unless it holds */

	/* owner side */
	/* the owner flag, and the id of the thread that posts without setting it: see owner.h */
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t owner;
	_Atomic uint32_t inside; /* written by that thread only: it is posting */
	uint32_t signal_mask;
	struct shim_signal *signals;
	_Atomic uint64_t signal_head;
	/* bytes_marked: those up to the last entry of the signal ring */
	uint64_t bytes_posted, bytes_marked;
	uint8_t run_stage; /* stage of what was posted since then */
	/* all entries of the signal ring from this one on have one stage and are the caller's own */
	_Atomic uint64_t signal_even;
	_Atomic uint64_t wr_next;   /* next index to give out; changed by compare-and-swap */
	_Atomic uint64_t wr_posted; /* everything before it went to the NIC */
	_Atomic uint64_t wr_formed; /* everything before it belongs to a task */
	_Atomic uint64_t task_formed, task_posted;

	/* polling side */
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t polling;
	_Atomic uint32_t poll_deferred; /* completions seen while another thread was accounting */
	_Atomic uint64_t signal_tail;
	uint64_t bytes_completed;
	uint64_t completed_end;   /* index after the last work request known to be complete */
	_Atomic uint64_t retired; /* the caller's slots before this index are free again */
	_Atomic uint64_t task_done;
	_Atomic uint64_t flight_ns; /* time for which its tasks were under way, up to the last completion */
	/* start of the time to add to it: last completion or later post; 0: nothing is under way */
	_Atomic uint64_t flight_since_ns;

	/* rarely changed */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t permitted_sequence; /* tasks up to here may go */
	/* its hold budget is used up: nothing is held before this time, see sweep.c */
	_Atomic uint64_t free_until_ns;
	/* the first of its held work requests may not be held beyond this time; 0: no limit */
	_Atomic uint64_t hold_until_ns;
	/* it is in the list of those that hold something; it stays there until the next sweep */
	_Atomic uint32_t listed;
	struct shim_qp *next_listed;
	/* when the thread will give back the memory in which it held something; 0: nothing to give back */
	_Atomic uint64_t trim_at_ns;
	/* how long it has stood still since anything of it was last under way; used by the shim's thread only */
	_Atomic uint64_t stretch_ns;
	/* account kept by the shim's thread, see sweep.c; RESET clears it */
	_Atomic uint64_t lost_ns, accounted_ns, accounted_flight_ns;
	/* post everything held, without permits; SHIM_FORCE_TIME: because its time is over */
	_Atomic uint32_t force;
	_Atomic uint32_t blocked; /* the provider had no room: wait for a completion */
	_Atomic uint32_t starved; /* there was no slot for its next task: wait for the shim's thread */
	_Atomic uint32_t failed;  /* a deferred post was refused: what is held becomes flushed completions */
	_Atomic uint64_t held_since_ns; /* when the oldest held work request was posted; 0: none is held */
	uint64_t failed_ns;
	uint64_t fifo_stride, fifo_bytes;
	struct shim_task *tasks;
	uint32_t ring_mask;
	_Atomic(struct mfs_client *) client; /* the client that knows its tasks; changed under both flags */
	struct mfs_client_report *report;
	struct shim_cq *send_cq, *recv_cq;
	struct ibv_cq *send_cq_native;
	struct ibv_qp_cap cap;
	struct shim_builder builder;
	char library[128]; /* file name of the object that created it */
	uint8_t found_role;
	uint32_t quantum_bytes; /* largest task; changed under both flags */
	bool may_hold;          /* nothing about this queue pair forbids holding */
	bool shared_receive;
	/* time after which its library gives up what it has posted, by time-out or lease; 0: not known */
	uint64_t gives_up_ns;
	int lane;                 /* class of its lane, or -1 */
	_Atomic int communicator; /* index of the NCCL communicator, see profiler.c; -1: unknown */
	union ibv_gid peer;
	uint32_t peer_hash; /* hash of `peer`; 0: unknown */
	struct shim_qp *free_next;
	uint32_t poster, posts_in_a_row; /* owner side: the thread that posted last */
	/* owner side: several threads post, or it holds: it is given to no thread */
	bool shared;
};

#endif
