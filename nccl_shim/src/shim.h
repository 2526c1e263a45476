/* What the shim's files offer each other, and the state of the process. One page of invariants: docs/internals/shim.md. */
#ifndef MFS_SHIM_H
#define MFS_SHIM_H

#include "records.h"

#include <pthread.h>
#include <time.h>

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* ---- the process ---------------------------------------------------------------------------------------------------- */

/* Written where a daemon's segment would be, when there is none: no branch on the path. */
struct shim_detached {
	_Atomic uint32_t gate;
	struct mfs_usage usage;
	struct mfs_usage_shard posted_shard[MFS_USAGE_SHARDS];
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
	_Atomic uint32_t listed;	     /* queue pairs that hold something, or did when the thread last looked */
};
extern struct shim shim;

static inline void shim_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* For a counter that this thread alone adds to: without a locked instruction where one instruction adds to memory, so that
 * no signal handler of the thread comes in between. */
static inline void shim_count_alone(_Atomic uint64_t *counter, uint64_t n)
{
#if defined(__x86_64__)
	__asm__ volatile("addq %1, %0" : "+m"(*(volatile uint64_t *)counter) : "r"(n) : "cc");
#else
	shim_count(counter, n);
#endif
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
	SHIM_REASON_NIC_LATE,
	SHIM_REASON_POST,
	SHIM_REASON_COMMUNICATORS,
	SHIM_REASON_CLASS,
	SHIM_REASON_VERSION,
	SHIM_REASON_MAX
};
void shim_log_load(void);
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
bool shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel, struct shim_cq_ex *extended);
struct shim_cq *shim_cq_find(const struct ibv_cq *cq);
void shim_cq_remove(struct ibv_cq *cq);
void shim_context_after_fork(void);

/* table.c: finding queue pairs */
#define SHIM_POINTER_BUCKETS 16384
extern _Atomic(struct shim_qp *) shim_by_pointer[SHIM_POINTER_BUCKETS] __attribute__((visibility("hidden")));
struct shim_qp *shim_qp_find(const struct ibv_qp *qp);
static inline unsigned shim_pointer_bucket(const struct ibv_qp *qp)
{
	return (unsigned)(((uintptr_t)qp >> 4) * 0x9E3779B97F4A7C15u >> 32) & (SHIM_POINTER_BUCKETS - 1);
}

/* The queue pair if it is the first of its bucket, as nearly all are; else NULL, and shim_qp_find may find it. */
static inline struct shim_qp *shim_qp_first(const struct ibv_qp *qp)
{
	struct shim_qp *q = atomic_load_explicit(&shim_by_pointer[shim_pointer_bucket(qp)], memory_order_acquire);

	return likely(q && atomic_load_explicit(&q->qp, memory_order_relaxed) == qp) ? q : NULL;
}
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
void shim_rules_set(const struct mfs_rule *given, int count, const uint8_t *dscp);
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
bool shim_hold_trim(struct shim_qp *q);
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
bool shim_permits_settle(void);
void shim_held_left(struct shim_qp *q, uint64_t first, uint64_t end);
void shim_report_held(struct shim_qp *q);

/* hold_budget.c: for how long a queue pair may be held; who holds anything */
void shim_budget_limit(void);
bool shim_budget_over(const struct shim_qp *q);
void shim_list(struct shim_qp *q);
void shim_lease_note(struct shim_qp *q, uint64_t hold_until_ns);
void shim_sweep(uint64_t now_ns, uint64_t max_hold_ns);
void shim_listed_after_fork(void);

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
extern _Atomic(struct shim_ranges *) shim_ranges __attribute__((visibility("hidden")));

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

/* owner.c: whose posts they are. The second is the same while the thread has said nothing of what it posts, else
 * SHIM_THREAD_NONE: one look for both. */
#define SHIM_THREAD_NONE UINT32_MAX /* no id yet */
extern __thread uint32_t shim_thread_id __attribute__((tls_model("initial-exec"))); /* even, not 0 */
extern __thread uint32_t shim_plain_id __attribute__((tls_model("initial-exec")));

/* After what the thread says has changed, or its id. */
static inline void shim_plain_set(void)
{
	shim_plain_id = shim_context_given || shim_collective.given ? SHIM_THREAD_NONE : shim_thread_id;
}

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
	if (likely(wr->num_sge == 1))
		return wr->sg_list->length;
	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	return bytes;
}

/* poll.c */
int shim_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
void shim_complete(struct shim_qp *q, uint32_t signals);
void shim_settle(struct shim_qp *q);
void shim_in_flight(struct shim_qp *q, uint64_t bytes[MFS_STAGES_MAX]);

/* The held copy whose address is this completion's wr_id: its signal was the shim's own. */
static inline struct shim_held *shim_forced(const struct shim_qp *q, uint64_t wr_id)
{
	uint64_t offset;

	if (!atomic_load_explicit(&q->holds, memory_order_acquire)) /* with it comes the queue */
		return NULL;
	offset = wr_id - (uintptr_t)q->fifo;
	return q->fifo && offset < q->fifo_bytes && offset % q->fifo_stride == 0 ? (struct shim_held *)(uintptr_t)wr_id : NULL;
}
int shim_flushed(struct ibv_cq *cq, int n, struct ibv_wc *wc);
void shim_attend(void);

/* cq_ex.c: completion queues with functions of their own */
struct shim_cq_ex *shim_cq_ex_patch(struct ibv_cq_ex *ex);
void shim_cq_ex_unpatch(struct shim_cq_ex *p);

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
