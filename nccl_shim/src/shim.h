/* The shim's data, and the locks that protect it. One page of invariants: docs/internals/shim.md.
 *
 * A queue pair has two ownership flags. `owner` covers everything that is done before and during a native post; `polling`
 * covers the accounting of completions. Nobody waits for `polling`, and nobody waits for the `owner` of a queue pair that
 * can hold: whoever finds it taken leaves his work in the queue, and the owner looks again after letting go.
 */
#ifndef MFS_SHIM_H
#define MFS_SHIM_H

#include <infiniband/verbs.h>
#include <mfs/api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define SHIM_QUANTUM_BYTES (256u << 10) /* a task is closed once it has this many bytes */
#define SHIM_TASKS_WAITING_MAX 32	/* per queue pair; what comes later waits unformed, and makes larger tasks */

/* ---- one copy of libibverbs: a process may hold several (wheels carry their own) ---------------------------------- */

struct shim_verbs {
	struct ibv_context *(*open_device)(struct ibv_device *);
	struct ibv_context *(*import_device)(int);
	int (*close_device)(struct ibv_context *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	int (*dereg_mr)(struct ibv_mr *);
	int (*rereg_mr)(struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *);
	uint64_t (*get_device_guid)(struct ibv_device *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
};

/* ---- an open device ------------------------------------------------------------------------------------------------ */

struct shim_context {
	_Atomic(struct ibv_context *) context; /* NULL: free record */
	_Atomic(struct shim_context *) next;   /* same bucket */
	const struct shim_verbs *verbs;
	int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	int (*bind_mw)(struct ibv_qp *, struct ibv_mw *, struct ibv_mw_bind *);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *, struct ibv_qp_init_attr_ex *);
	struct ibv_pd *(*alloc_parent_domain)(struct ibv_context *, struct ibv_parent_domain_init_attr *);
	bool single_threaded; /* a thread domain was used: providers drop their locks, so only the caller's threads post */
	char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	bool inherited; /* opened before a fork: passes through in the child */
	int nic;	/* index given by the daemon, or -1 */
	int lane;	/* class on the wire of its queue pairs, or -1: see metadata.c */
};

/* A completion queue made by ibv_create_cq, hence polled by the poll_cq that is patched. */
struct shim_cq {
	_Atomic(struct ibv_cq *) cq; /* NULL: free record */
	_Atomic(struct shim_cq *) next;
	const struct ibv_context *context;
	_Atomic uint64_t claimed; /* completions that its queue pairs can have outstanding */
	bool channel;		  /* somebody may sleep on it */
};

/* ---- a queue pair --------------------------------------------------------------------------------------------------- */

/* What a work request is for, as the engine has said: struct mfs_context without what is reserved. */
struct shim_tag {
	uint64_t request_id;
	uint64_t deadline_ns;
	uint32_t batch;
	uint16_t layer;
	uint8_t stage; /* 0: as the rules say */
	uint8_t reserved;
};
_Static_assert(sizeof(struct shim_tag) == 24, "tags are compared as memory");
extern const struct shim_tag shim_untagged;

/* One signaled work request that went to the NIC: what is complete when its completion is polled. Everything that it
 * finishes was of one stage: where the stage changes, an entry without a completion (SHIM_SIGNAL_MARK) closes the old one. */
struct shim_signal {
	_Atomic uint64_t bytes; /* posted on this queue pair so far */
	_Atomic uint64_t end;	/* index after this work request, its stage, and flags */
};
#define SHIM_SIGNAL_FORCED (1ULL << 63) /* signaled by the shim, not by the caller */
#define SHIM_SIGNAL_MARK (1ULL << 62)	/* no completion comes for this entry: it goes with the next */
#define SHIM_SIGNAL_STAGE_SHIFT 56
#define SHIM_SIGNAL_STAGE (7ULL << SHIM_SIGNAL_STAGE_SHIFT)
#define SHIM_SIGNAL_END ((1ULL << SHIM_SIGNAL_STAGE_SHIFT) - 1)
_Static_assert(MFS_STAGES_MAX == 8, "a stage has three bits in a signal");

/* A held work request: everything it needs, copied. Slot = index modulo ring size; sge[] and payload follow. */
struct shim_held {
	_Atomic uint64_t published; /* index + 1 once the copy is complete */
	uint64_t enqueued_ns;
	uint64_t caller_wr_id;
	uint64_t bytes;
	uint64_t built_next; /* index of the builder's next work request */
	struct shim_tag tag;
	bool hole;	     /* nothing to post: the reservation was not used */
	struct ibv_send_wr wr;
	struct ibv_sge sge[];
};

struct shim_qp;

/* Consecutive held work requests of one queue pair, of one tag, that need one permit. */
struct shim_task {
	struct shim_qp *q;
	_Atomic uint64_t id;	  /* 0: not (yet) known */
	_Atomic uint32_t permitted;
	uint32_t bypass;	  /* never submitted: ring or slots full, or nothing is held now */
	uint64_t sequence;	  /* number of the task on its queue pair, from 1 */
	uint64_t end;		  /* index after its last work request */
	_Atomic uint64_t done_at; /* complete when the signal with this end has come back; 0: nothing tells */
	uint64_t bytes;
	uint64_t enqueued_ns;
	struct shim_tag tag;
	bool incoming; /* RDMA reads */
	bool owed; /* the arbiter counts it in flight: tell it when it is complete */
};

/* What one post adds to the accounting; see shim_ledger_publish. */
struct shim_ledger {
	uint64_t head;	 /* of the signal ring */
	uint64_t bytes;	 /* posted on this queue pair so far */
	uint64_t marked; /* of these, up to the last entry of the signal ring */
	uint64_t requests;
	uint8_t stage;
};

/* The ibv_wr_* interface of a queue pair. */
struct shim_builder {
	struct ibv_qp_ex *qpx;
	struct ibv_qp_ex real; /* the provider's functions */
	_Atomic uint32_t busy; /* between wr_start and wr_complete or wr_abort */
	bool held;	       /* built into our queue, not into the provider's */
	bool current;	       /* a work request is being built */
	bool signaled;
	bool named; /* native: the stage of all that is built now is settled */
	int error;
	uint64_t first, last, count; /* held: indices of what was built */
	struct shim_ledger before, now; /* native: what wr_complete publishes */
	uint64_t bytes, end;
};

struct shim_qp {
	/* read by everyone, changed while nobody uses the queue pair or under both flags */
	_Atomic(struct ibv_qp *) qp;
	_Atomic(struct shim_qp *) next_by_pointer;
	_Atomic(struct shim_qp *) next_by_number;
	struct shim_context *_Atomic context;
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	_Atomic uint32_t number;
	_Atomic uint8_t live;
	_Atomic uint8_t accounted; /* completions come through the patched poll_cq and match the signal ring */
	_Atomic uint8_t broken;	   /* error seen: nothing is held or accounted until RESET */
	_Atomic uint8_t state;	   /* enum ibv_qp_state */
	_Atomic uint8_t holds;	   /* it has a queue; never unset while it lives */
	_Atomic uint8_t passes;	   /* the rules do not ask for permits (any more) */
	_Atomic uint8_t unsure;	   /* its role is a guess until its first post, see shim_role_at_post */
	uint8_t sq_sig_all;
	uint8_t type;
	_Atomic uint8_t stage, role, dscp; /* changed under both flags, when the rules change */
	/* what stage `stage` must obey and where it is counted; never NULL, see shim_detached */
	_Atomic(_Atomic uint32_t *) gate;
	_Atomic(struct mfs_usage *) usage;
	struct shim_held *fifo; /* NULL unless it holds */

	/* owner side */
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t owner;
	uint32_t signal_mask;
	struct shim_signal *signals;
	_Atomic uint64_t signal_head;
	uint64_t bytes_posted, bytes_marked; /* marked: up to the last entry of the signal ring */
	uint8_t run_stage;		     /* of what was posted since */
	_Atomic uint64_t wr_next;   /* next index to give out; changed by compare-and-swap */
	_Atomic uint64_t wr_posted; /* everything before went to the NIC */
	_Atomic uint64_t wr_formed; /* everything before belongs to a task */
	_Atomic uint64_t task_formed, task_posted;

	/* polling side */
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t polling;
	_Atomic uint32_t poll_deferred; /* completions seen while another thread was accounting */
	_Atomic uint64_t signal_tail;
	uint64_t bytes_completed;
	uint64_t completed_end;	  /* index after the last work request known to be complete */
	_Atomic uint64_t retired; /* the caller's slots before this index are free again */
	_Atomic uint64_t task_done;

	/* seldom changed */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t permitted_sequence; /* tasks up to here may go */
	_Atomic uint64_t expired_sequence;   /* tasks up to here were held for too long */
	_Atomic uint32_t force;	  /* post everything held, without permits */
	_Atomic uint32_t blocked; /* the provider had no room: wait for a completion */
	_Atomic uint32_t failed;  /* a deferred post was refused: what is held becomes flushed completions */
	_Atomic uint64_t held_since_ns; /* when the oldest held work request came; 0: none */
	uint64_t failed_ns;
	uint64_t fifo_stride, fifo_bytes;
	struct shim_task *tasks;
	uint32_t ring_mask;
	_Atomic(struct mfs_client *) client; /* where its tasks are; changed under both flags */
	struct mfs_client_report *report;
	struct shim_cq *send_cq, *recv_cq;
	struct ibv_cq *send_cq_native;
	struct ibv_qp_cap cap;
	struct shim_builder builder;
	char library[128]; /* file name of the object that created it */
	uint8_t found_role;
	bool may_hold; /* nothing about this queue pair forbids holding */
	bool shared_receive;
	int lane;	  /* class on the wire, or -1 */
	_Atomic int communicator; /* NCCL's, see profiler.c; -1: unknown */
	union ibv_gid peer;
	struct shim_qp *free_next;
};

/* ---- the process ---------------------------------------------------------------------------------------------------- */

/* Written where a daemon's segment would be, when there is none: no branch on the path. */
struct shim_detached {
	_Atomic uint32_t gate;
	struct mfs_usage usage;
	struct mfs_client_report report;
};
extern struct shim_detached shim_detached;

struct shim {
	_Atomic uint32_t mode; /* 1 + enum mfs_mode from the environment; 0: not read yet, see shim_mode */
	_Atomic(struct mfs_client *) client; /* NULL: no daemon */
	_Atomic uint32_t enforcing;	     /* attached, alive, and both sides allow holding */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t attention; /* work requests held: poll_cq has something to do */
	_Atomic uint64_t held_bytes;
	_Atomic uint32_t failures;	     /* queue pairs whose held requests become flushed completions */
	_Atomic uint32_t draining;	     /* somebody takes permits */
	_Atomic uint32_t polls;		     /* grows while pollers look for permits */
};
extern struct shim shim;

static inline void shim_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline uint64_t shim_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void shim_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline bool shim_try(_Atomic uint32_t *flag)
{
	return !atomic_load_explicit(flag, memory_order_relaxed) &&
	       !atomic_exchange_explicit(flag, 1, memory_order_acquire);
}

static inline void shim_release(_Atomic uint32_t *flag)
{
	atomic_store_explicit(flag, 0, memory_order_release);
}

void shim_acquire_slow(_Atomic uint32_t *flag);
static inline void shim_acquire(_Atomic uint32_t *flag)
{
	if (unlikely(!shim_try(flag)))
		shim_acquire_slow(flag);
}
bool shim_acquire_for(_Atomic uint32_t *flag, uint64_t ns);

/* log.c: one line for each reason, once, on stderr, prefix "mfs: " */
enum shim_reason {
	SHIM_REASON_ATTACH,
	SHIM_REASON_LOST,
	SHIM_REASON_HUNG,
	SHIM_REASON_BACK,
	SHIM_REASON_MODE,
	SHIM_REASON_SECURE,
	SHIM_REASON_MEMORY,
	SHIM_REASON_THREAD,
	SHIM_REASON_NIC,
	SHIM_REASON_POST,
	SHIM_REASON_COMMUNICATORS,
	SHIM_REASON_CLASS,
	SHIM_REASON_MAX
};
void shim_log(enum shim_reason reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* symbols.c: the functions behind ours */
const struct shim_verbs *shim_verbs_of_caller(const void *return_address);
const struct shim_verbs *shim_verbs_of_handle(void *handle);
bool shim_symbol_is_ours(const void *address);

/* context.c */
void shim_context_patch(struct ibv_context *context, const struct shim_verbs *verbs);
void shim_context_remove(struct ibv_context *context);
struct shim_context *shim_context_find(const struct ibv_context *context);
struct shim_context *shim_context_each(unsigned *cursor);
void shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel);
struct shim_cq *shim_cq_find(const struct ibv_cq *cq);
void shim_cq_remove(struct ibv_cq *cq);
void shim_context_after_fork(void);

/* table.c: finding queue pairs */
struct shim_qp *shim_qp_find(const struct ibv_qp *qp);
struct shim_qp *shim_qp_find_number(const struct shim_context *context, uint32_t number);
struct shim_qp *shim_qp_each(unsigned *cursor);
struct shim_qp *shim_table_get(void);
void shim_table_insert(struct shim_qp *q);
void shim_table_remove(struct shim_qp *q);
void shim_table_put(struct shim_qp *q);
void shim_table_after_fork(void);
extern pthread_mutex_t shim_table_lock;

/* qp.c: creation and destruction */
void shim_qp_add(struct ibv_qp *qp, const struct ibv_qp_init_attr *attr, const struct ibv_qp_cap *asked, uint64_t ops,
		 const void *caller);
int shim_qp_destroy(struct shim_qp *q);
void shim_qp_forget_context(const struct shim_context *context);
void shim_qp_reset_counts(struct shim_qp *q);
void *shim_map(size_t bytes);

/* qp_state.c: from one state to another, from one daemon to another */
int shim_qp_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask);
void shim_qp_break(struct shim_qp *q);
void shim_qp_settle(struct shim_qp *q);
bool shim_qp_bind(struct shim_qp *q, struct mfs_client *client);
int shim_qp_to_error(struct shim_qp *q);

/* classify.c */
uint8_t shim_role_at_create(const char *library, const struct ibv_qp_cap *asked);
bool shim_classify(struct shim_qp *q);
void shim_role_at_post(struct shim_qp *q, const struct ibv_send_wr *wr);
void shim_communicator_at_connect(struct shim_qp *q);
int shim_rules_load(struct mfs_client *client);
bool shim_rules_changed(struct mfs_client *client);
void shim_rules_after_fork(void);

/* hold.c */
bool shim_hold_allocate(struct shim_qp *q);
void shim_hold_free(struct shim_qp *q);
int shim_hold_chain(struct shim_qp *q, struct ibv_send_wr *wr, const struct shim_tag *tag, struct ibv_send_wr **rest);
bool shim_hold_reserve(struct shim_qp *q, uint64_t wanted, uint64_t *first, uint64_t *count);
void shim_hold_publish(struct shim_qp *q, uint64_t index, uint64_t now_ns);
void shim_hold_void(struct shim_qp *q, uint64_t index);
void shim_hold_drop(struct shim_qp *q);
bool shim_hold_names(struct shim_qp *q, uint32_t lkey);
static inline struct shim_held *shim_held_at(const struct shim_qp *q, uint64_t index)
{
	return (struct shim_held *)((char *)q->fifo + (index & q->ring_mask) * q->fifo_stride);
}

/* pump.c */
void shim_pump(struct shim_qp *q);
int shim_pump_owned(struct shim_qp *q);
void shim_owner_leave(struct shim_qp *q);
void shim_flush(struct shim_qp *q);
void shim_permits(void);
void shim_held_left(struct shim_qp *q, uint64_t first, uint64_t end);
void shim_report_held(struct shim_qp *q);

/* metadata.c: what the engine says, see mfs/api.h */
int shim_context_set(const struct mfs_context *context);
int shim_range_add(uint64_t address, uint64_t bytes, const struct mfs_context *context);
int shim_range_remove(uint64_t address);
int shim_lane_set(int wire_class);
int shim_lane_now(void);
struct shim_tag shim_tag_find(bool any, uint64_t address);
void shim_metadata_after_fork(void);

extern __thread bool shim_context_given __attribute__((tls_model("initial-exec")));
struct shim_ranges;
extern _Atomic(struct shim_ranges *) shim_ranges;

/* profiler.c: what NCCL says */
struct shim_collective { /* what this thread sends next */
	bool given;
	uint8_t communicator;
	uint8_t operation; /* enum mfs_operation */
	uint16_t layer;
	uint32_t batch;
};
extern __thread struct shim_collective shim_collective __attribute__((tls_model("initial-exec")));
void shim_collective_sent(uint64_t bytes, uint64_t requests);
int shim_communicator_connecting(void);
const char *shim_communicator_name(int communicator);
bool shim_communicators_exist(void);
void shim_communicators_report(struct mfs_segment *segment);
void shim_profiler_after_fork(void);

/* True when a work request of this thread may have a tag. Three loads. */
static inline bool shim_tags_exist(void)
{
	return shim_context_given || shim_collective.given || atomic_load_explicit(&shim_ranges, memory_order_relaxed);
}

/* A tag's stage stands in for that of the rules, except that nobody turns NCCL's traffic into something that waits. */
static inline uint8_t shim_stage_of(const struct shim_qp *q, const struct shim_tag *tag)
{
	uint8_t stage = atomic_load_explicit(&q->stage, memory_order_relaxed);

	if (likely(!tag->stage) || stage == MFS_STAGE_COLLECTIVE ||
	    (stage == MFS_STAGE_CONTROL && atomic_load_explicit(&q->role, memory_order_relaxed) != MFS_ROLE_UNKNOWN))
		return stage;
	return tag->stage;
}

/* post.c */
int shim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int shim_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);
bool shim_must_hold(struct shim_qp *q, uint8_t stage);

static inline uint64_t shim_wr_bytes(const struct ibv_send_wr *wr)
{
	uint64_t bytes = 0;

	if (unlikely(wr->opcode == IBV_WR_LOCAL_INV || wr->opcode == IBV_WR_BIND_MW))
		return 0;
	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	return bytes;
}

/* ---- accounting of native posts: the owner adds work requests to a ledger, publishes it, then posts -------------------- */

/* Closes what was posted without a signal under another stage: its bytes complete with the next signal, apart. */
void shim_ledger_mark(struct shim_qp *q, struct shim_ledger *ledger);

static inline struct shim_ledger shim_ledger_open(struct shim_qp *q, uint8_t stage)
{
	struct shim_ledger ledger = {
		.head = atomic_load_explicit(&q->signal_head, memory_order_relaxed),
		.bytes = q->bytes_posted,
		.marked = q->bytes_marked,
		.stage = stage,
	};

	if (unlikely(stage != q->run_stage && ledger.bytes != ledger.marked))
		shim_ledger_mark(q, &ledger);
	return ledger;
}

static inline void shim_ledger_signal(struct shim_qp *q, struct shim_ledger *ledger, uint64_t end, uint8_t stage)
{
	struct shim_signal *signal = &q->signals[ledger->head++ & q->signal_mask];

	atomic_store_explicit(&signal->bytes, ledger->bytes, memory_order_relaxed);
	atomic_store_explicit(&signal->end, end | (uint64_t)stage << SHIM_SIGNAL_STAGE_SHIFT, memory_order_relaxed);
	ledger->marked = ledger->bytes;
}

static inline void shim_ledger_add(struct shim_qp *q, struct shim_ledger *ledger, uint64_t bytes, bool signaled,
				   uint64_t end, bool forced)
{
	ledger->bytes += bytes;
	ledger->requests++;
	if (signaled && q->signals)
		shim_ledger_signal(q, ledger, end | (forced ? SHIM_SIGNAL_FORCED : 0), ledger->stage);
}

/* Makes `now` the truth in place of `before`, which may be ahead of it when a post has failed. */
static inline void shim_ledger_publish(struct shim_qp *q, const struct shim_ledger *before, const struct shim_ledger *now)
{
	struct mfs_usage *usage = atomic_load_explicit(&q->usage, memory_order_relaxed);

	shim_count(&usage->posted.bytes[now->stage], now->bytes - before->bytes);
	shim_count(&usage->posted.work_requests[now->stage], now->requests - before->requests);
	if (unlikely(!atomic_load_explicit(&q->accounted, memory_order_relaxed) ||
		     atomic_load_explicit(&q->broken, memory_order_relaxed))) {
		/* completions will not be seen, or not in order */
		shim_count(&usage->completed.bytes[now->stage], now->bytes - before->bytes);
		shim_count(&usage->completed.work_requests[now->stage], now->requests - before->requests);
		return;
	}
	q->bytes_posted = now->bytes;
	q->bytes_marked = now->marked;
	q->run_stage = now->stage;
	if (unlikely(now->head - atomic_load_explicit(&q->signal_tail, memory_order_relaxed) > q->signal_mask + 1))
		atomic_store(&q->broken, 1); /* more in flight than the provider promised: stop accounting */
	atomic_store_explicit(&q->signal_head, now->head, memory_order_release);
}

/* poll.c */
int shim_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
void shim_complete(struct shim_qp *q, uint32_t signals);
void shim_settle(struct shim_qp *q);
void shim_in_flight(struct shim_qp *q, uint64_t bytes[MFS_STAGES_MAX]);

/* builders.c */
void shim_builder_patch(struct shim_qp *q, struct ibv_qp_ex *qpx, uint64_t ops);
void shim_builder_unpatch(struct shim_qp *q);
void shim_builder_after_fork(struct shim_qp *q);
bool shim_builder_can_hold(uint64_t ops);

/* lifecycle.c */
void shim_start(struct shim_context *context);
void shim_wake(void);
void shim_bind_current(struct shim_qp *q);
enum mfs_mode shim_mode(void);
struct mfs_client *shim_client_share(void);
void shim_batch_now(uint32_t *batch, uint16_t *layer);

#endif
