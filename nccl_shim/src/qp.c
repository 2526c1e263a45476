/* The table of queue pairs, and what happens to one from creation to destruction.
 *
 * Records come from a pool that only grows, so a thread may look at one whose queue pair is just being destroyed; it takes
 * a flag and looks at `live` before it does anything.
 */
#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define BUCKETS 16384
#define CHUNK 64
#define CHUNKS_MAX 1024

pthread_mutex_t shim_table_lock = PTHREAD_MUTEX_INITIALIZER;
struct shim_detached shim_detached;

static struct shim_qp *_Atomic chunks[CHUNKS_MAX];
static _Atomic unsigned used; /* records ever handed out */
static struct shim_qp *free_list;
static _Atomic(struct shim_qp *) by_pointer[BUCKETS], by_number[BUCKETS];
static _Atomic uint32_t version; /* odd while a chain changes */

/* ---- finding ------------------------------------------------------------------------------------------------------------- */

static inline unsigned pointer_bucket(const struct ibv_qp *qp)
{
	return (unsigned)(((uintptr_t)qp >> 4) * 0x9E3779B97F4A7C15u >> 32) & (BUCKETS - 1);
}

static inline unsigned number_bucket(const struct shim_context *context, uint32_t number)
{
	return (unsigned)((number ^ (uintptr_t)context >> 6) * 0x9E3779B97F4A7C15u >> 32) & (BUCKETS - 1);
}

struct shim_qp *shim_qp_find(const struct ibv_qp *qp)
{
	uint32_t before;
	unsigned tries = 0;

	do {
		before = atomic_load_explicit(&version, memory_order_acquire);
		struct shim_qp *q = atomic_load_explicit(&by_pointer[pointer_bucket(qp)], memory_order_acquire);

		for (unsigned steps = 0; q && steps < BUCKETS; steps++) {
			if (likely(atomic_load_explicit(&q->qp, memory_order_relaxed) == qp))
				return q;
			q = atomic_load_explicit(&q->next_by_pointer, memory_order_acquire);
		}
		atomic_thread_fence(memory_order_acquire);
	} while (((before & 1) || before != atomic_load_explicit(&version, memory_order_relaxed)) && ++tries < 1000);
	return NULL;
}

struct shim_qp *shim_qp_find_number(const struct shim_context *context, uint32_t number)
{
	uint32_t before;
	unsigned tries = 0;

	do {
		before = atomic_load_explicit(&version, memory_order_acquire);
		struct shim_qp *q =
			atomic_load_explicit(&by_number[number_bucket(context, number)], memory_order_acquire);

		for (unsigned steps = 0; q && steps < BUCKETS; steps++) {
			if (likely(atomic_load_explicit(&q->number, memory_order_relaxed) == number &&
				   atomic_load_explicit(&q->context, memory_order_relaxed) == context))
				return q;
			q = atomic_load_explicit(&q->next_by_number, memory_order_acquire);
		}
		atomic_thread_fence(memory_order_acquire);
	} while (((before & 1) || before != atomic_load_explicit(&version, memory_order_relaxed)) && ++tries < 1000);
	return NULL;
}

struct shim_qp *shim_qp_each(unsigned *cursor)
{
	unsigned n = atomic_load_explicit(&used, memory_order_acquire);

	while (*cursor < n) {
		struct shim_qp *q = &atomic_load(&chunks[*cursor / CHUNK])[*cursor % CHUNK];

		(*cursor)++;
		if (atomic_load_explicit(&q->live, memory_order_acquire))
			return q;
	}
	return NULL;
}

/* ---- the table (callers hold shim_table_lock) ------------------------------------------------------------------------------ */

static void *map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

static struct shim_qp *record_get(void)
{
	struct shim_qp *q = free_list;
	unsigned n = atomic_load(&used);

	if (q) {
		free_list = q->free_next;
		return q;
	}
	if (n == CHUNK * CHUNKS_MAX)
		return NULL;
	if (!atomic_load(&chunks[n / CHUNK])) {
		q = map(CHUNK * sizeof(*q));
		if (!q)
			return NULL;
		atomic_store(&chunks[n / CHUNK], q);
	}
	atomic_store_explicit(&used, n + 1, memory_order_release);
	return &atomic_load(&chunks[n / CHUNK])[n % CHUNK];
}

static void table_insert(struct shim_qp *q)
{
	unsigned p = pointer_bucket(atomic_load(&q->qp));
	unsigned n = number_bucket(atomic_load(&q->context), atomic_load(&q->number));

	atomic_fetch_add(&version, 1);
	atomic_store_explicit(&q->next_by_pointer, atomic_load(&by_pointer[p]), memory_order_relaxed);
	atomic_store_explicit(&by_pointer[p], q, memory_order_release);
	atomic_store_explicit(&q->next_by_number, atomic_load(&by_number[n]), memory_order_relaxed);
	atomic_store_explicit(&by_number[n], q, memory_order_release);
	atomic_fetch_add(&version, 1);
}

static void table_remove(struct shim_qp *q)
{
	_Atomic(struct shim_qp *) *link = &by_pointer[pointer_bucket(atomic_load(&q->qp))];

	atomic_fetch_add(&version, 1);
	while (atomic_load(link) && atomic_load(link) != q)
		link = &atomic_load(link)->next_by_pointer;
	if (atomic_load(link))
		atomic_store(link, atomic_load(&q->next_by_pointer));
	link = &by_number[number_bucket(atomic_load(&q->context), atomic_load(&q->number))];
	while (atomic_load(link) && atomic_load(link) != q)
		link = &atomic_load(link)->next_by_number;
	if (atomic_load(link))
		atomic_store(link, atomic_load(&q->next_by_number));
	atomic_fetch_add(&version, 1);
}

static void claim(struct shim_qp *q, bool give)
{
	uint64_t receives = q->cap.max_recv_wr;

	if (q->send_cq)
		atomic_fetch_add(&q->send_cq->claimed, give ? -(uint64_t)q->cap.max_send_wr : q->cap.max_send_wr);
	if (q->recv_cq)
		atomic_fetch_add(&q->recv_cq->claimed, give ? -receives : receives);
}

/* ---- creation ---------------------------------------------------------------------------------------------------------------- */

static void reset_counts(struct shim_qp *q)
{
	atomic_store(&q->signal_head, 0);
	atomic_store(&q->signal_tail, 0);
	atomic_store(&q->wr_next, 0);
	atomic_store(&q->wr_posted, 0);
	atomic_store(&q->wr_formed, 0);
	atomic_store(&q->task_formed, 0);
	atomic_store(&q->task_posted, 0);
	atomic_store(&q->task_done, 0);
	atomic_store(&q->permitted_sequence, 0);
	atomic_store(&q->expired_sequence, 0);
	atomic_store(&q->retired, 0);
	atomic_store(&q->poll_deferred, 0);
	atomic_store(&q->held_since_ns, 0);
	atomic_store(&q->force, 0);
	atomic_store(&q->blocked, 0);
	if (atomic_exchange(&q->failed, 0))
		atomic_fetch_sub(&shim.failures, 1);
	atomic_store(&q->broken, 0);
	q->bytes_posted = q->bytes_completed = q->completed_end = 0;
	if (q->fifo) /* old numbers must not look published */
		for (uint64_t i = 0; i <= q->ring_mask; i++)
			atomic_store_explicit(&shim_held_at(q, i)->published, 0, memory_order_relaxed);
}

static uint32_t ring_size(uint32_t n)
{
	uint32_t size = 2;

	while (size < n && size < 1u << 30)
		size *= 2;
	return size;
}

/* `attr` is what the device gave, `asked` what the program had asked for. */
void shim_qp_add(struct ibv_qp *qp, const struct ibv_qp_init_attr *attr, const struct ibv_qp_cap *asked, uint64_t ops,
		 const void *caller)
{
	struct shim_context *context = shim_context_find(qp->context);
	struct shim_qp *q;
	Dl_info object;

	if (!context || context->inherited)
		return;
	pthread_mutex_lock(&shim_table_lock);
	q = record_get();
	if (!q) {
		pthread_mutex_unlock(&shim_table_lock);
		shim_log(SHIM_REASON_MEMORY, "no memory to follow more queue pairs: the later ones pass through");
		return;
	}
	atomic_store(&q->qp, qp);
	atomic_store(&q->context, context);
	atomic_store(&q->number, qp->qp_num);
	q->post_send = context->post_send;
	q->cap = attr->cap;
	q->sq_sig_all = attr->sq_sig_all != 0;
	q->type = (uint8_t)attr->qp_type;
	q->shared_receive = attr->srq != NULL;
	q->send_cq_native = attr->send_cq;
	q->send_cq = shim_cq_find(attr->send_cq);
	q->recv_cq = attr->recv_cq ? shim_cq_find(attr->recv_cq) : NULL;
	atomic_store(&q->state, IBV_QPS_RESET);
	/* twice the slots: completions of a chain may free slots while the provider still walks its copies */
	q->ring_mask = ring_size(2 * q->cap.max_send_wr) - 1;
	q->signal_mask = ring_size(2 * q->cap.max_send_wr) - 1; /* some providers take a little more than they say */
	q->signals = q->send_cq ? map((q->signal_mask + 1) * sizeof(*q->signals)) : NULL;
	q->fifo = NULL;
	q->tasks = NULL;
	atomic_store(&q->holds, 0);
	reset_counts(q);
	memset(&q->builder, 0, sizeof(q->builder));
	memset(&q->peer, 0, sizeof(q->peer));
	q->client = NULL;
	q->report = &shim_detached.report;
	atomic_store(&q->gate, &shim_detached.gate);
	atomic_store(&q->usage, &shim_detached.usage);
	atomic_store(&q->accounted, q->signals != NULL && shim_builder_can_hold(ops));
	q->may_hold = atomic_load(&q->accounted) && q->type == IBV_QPT_RC && !context->single_threaded &&
		      shim_mode() == MFS_MODE_ENFORCE;
	q->dscp = MFS_DSCP_KEEP;
	q->library[0] = 0;
	if (dladdr(caller, &object) && object.dli_fname) {
		size_t length = strlen(object.dli_fname);

		/* the end of a long path says more than its beginning */
		strcpy(q->library, object.dli_fname + (length < sizeof(q->library) ? 0 : length - sizeof(q->library) + 1));
	}
	q->found_role = q->role = shim_role_at_create(q->library, asked);
	atomic_store(&q->unsure, q->found_role == MFS_ROLE_NCCL_CTS);
	q->stage = MFS_STAGE_CONTROL;
	claim(q, false);
	table_insert(q);
	atomic_store_explicit(&q->live, 1, memory_order_release);
	pthread_mutex_unlock(&shim_table_lock);

	shim_classify(q);
	shim_bind_current(q);
	if (ops && context->verbs->qp_to_qp_ex && atomic_load(&q->accounted))
		shim_builder_patch(q, context->verbs->qp_to_qp_ex(qp), ops);
}

/* ---- the daemon's side of a queue pair ---------------------------------------------------------------------------------------- */

/* Moves the queue pair to another daemon (NULL: none). Afterwards nothing of it touches the old segment. False when the
 * queue pair stayed busy for too long. */
bool shim_qp_bind(struct shim_qp *q, struct mfs_client *client)
{
	struct shim_context *context;
	struct mfs_segment *segment;
	int nic;

	if (!shim_acquire_for(&q->owner, 100000000))
		return false;
	if (!shim_acquire_for(&q->polling, 100000000)) {
		shim_owner_leave(q);
		return false;
	}
	context = atomic_load(&q->context);
	nic = context ? context->nic : -1;
	if (atomic_load(&q->live) && q->client != client) {
		/* the old daemon is gone, or never was: what it permitted needs no report, what it did not will not be */
		for (uint64_t i = atomic_load(&q->task_done); i != atomic_load(&q->task_formed); i++) {
			q->tasks[i & q->ring_mask].owed = false;
			q->tasks[i & q->ring_mask].bypass = 1;
		}
		q->client = client;
		if (!client || nic < 0) {
			q->client = NULL;
			q->report = &shim_detached.report;
			atomic_store(&q->gate, &shim_detached.gate);
			atomic_store(&q->usage, &shim_detached.usage);
		} else {
			segment = mfs_client_segment(client);
			q->report = &segment->report;
			atomic_store(&q->gate, &segment->gate[nic].word);
			atomic_store(&q->usage, &segment->usage[nic]);
			atomic_fetch_add_explicit(&segment->report.queue_pairs[q->role], 1, memory_order_relaxed);
			shim_count(&segment->usage[nic].posted.bytes[q->stage], q->bytes_posted - q->bytes_completed);
		}
	}
	shim_release(&q->polling);
	shim_owner_leave(q);
	return true;
}

/* ---- the end of accounting (caller has both flags) ------------------------------------------------------------------------------ */

/* Everything posted counts as complete: the queue pair was reset, destroyed or has failed. */
void shim_qp_settle(struct shim_qp *q)
{
	struct mfs_usage *usage = atomic_load_explicit(&q->usage, memory_order_relaxed);

	shim_count(&usage->completed.bytes[q->stage], q->bytes_posted - q->bytes_completed);
	q->bytes_completed = q->bytes_posted;
	atomic_store(&q->signal_tail, atomic_load(&q->signal_head));
	q->completed_end = atomic_load(&q->wr_posted);
	atomic_store(&q->retired, q->completed_end);
	for (uint64_t i = atomic_load(&q->task_done); i != atomic_load(&q->task_posted); i++) {
		struct shim_task *t = &q->tasks[i & q->ring_mask];

		if (t->owed && q->client)
			mfs_client_complete(q->client, atomic_load(&t->id));
		t->owed = false;
		atomic_store(&q->task_done, i + 1);
	}
}

/* An error was seen: what is held is posted now, so that the provider flushes it in order. */
void shim_qp_break(struct shim_qp *q)
{
	atomic_store(&q->broken, 1);
	if (!atomic_load(&q->live))
		return;
	if (q->fifo)
		shim_flush(q);
	if (shim_acquire_for(&q->owner, 1000000)) {
		if (shim_acquire_for(&q->polling, 1000000)) {
			if (atomic_load(&q->live))
				shim_qp_settle(q);
			shim_release(&q->polling);
		}
		shim_owner_leave(q);
	}
}

/* ---- transitions ------------------------------------------------------------------------------------------------------------------ */

static int real_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask)
{
	return atomic_load(&q->context)->verbs->modify_qp(atomic_load(&q->qp), attr, mask);
}

/* Owner held. Moves the queue pair to the error state, for a deferred post that was refused. */
int shim_qp_to_error(struct shim_qp *q)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	int rc = real_modify(q, &attr, IBV_QP_STATE);

	atomic_store(&q->broken, 1);
	if (!rc)
		atomic_store(&q->state, IBV_QPS_ERR);
	return rc;
}

static void note_peer(struct shim_qp *q, const struct ibv_qp_attr *attr, int mask)
{
	if (mask & IBV_QP_AV && attr->ah_attr.is_global)
		q->peer = attr->ah_attr.grh.dgid;
	if (mask & IBV_QP_DEST_QPN && attr->dest_qp_num == atomic_load(&q->number) &&
	    (q->found_role == MFS_ROLE_NCCL_DATA || q->found_role == MFS_ROLE_NCCL_CTS))
		q->found_role = MFS_ROLE_NCCL_FLUSH; /* connected to itself */
	shim_classify(q);
}

int shim_qp_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask)
{
	int state = mask & IBV_QP_STATE ? (int)attr->qp_state : -1;
	struct ibv_qp_attr changed;
	int rc;

	if (state == IBV_QPS_RTR) {
		note_peer(q, attr, mask);
		if (mask & IBV_QP_AV && attr->ah_attr.is_global && q->dscp != MFS_DSCP_KEEP &&
		    atomic_load(&shim.enforcing)) {
			changed = *attr;
			changed.ah_attr.grh.traffic_class =
				(uint8_t)(q->dscp << 2 | (changed.ah_attr.grh.traffic_class & 3));
			attr = &changed;
		}
	}
	if (state != IBV_QPS_RESET && state != IBV_QPS_ERR) {
		rc = real_modify(q, attr, mask);
		if (!rc && state >= 0)
			atomic_store(&q->state, (uint8_t)state);
		return rc;
	}

	/* nothing may be posted while the queue pair turns over */
	bool owned = shim_acquire_for(&q->owner, 1000000000);

	rc = real_modify(q, attr, mask);
	if (!rc)
		atomic_store(&q->state, (uint8_t)state);
	if (!rc && owned && state == IBV_QPS_RESET) {
		if (shim_acquire_for(&q->polling, 1000000000)) {
			shim_hold_drop(q);
			shim_qp_settle(q);
			reset_counts(q);
			shim_release(&q->polling);
		}
	} else if (!rc && owned && q->fifo) {
		atomic_store(&q->force, 1);
		shim_pump_owned(q);
	}
	if (owned)
		shim_owner_leave(q);
	return rc;
}

/* ---- destruction -------------------------------------------------------------------------------------------------------------------- */

static void forget(struct shim_qp *q)
{
	pthread_mutex_lock(&shim_table_lock);
	table_remove(q);
	claim(q, true);
	if (q->client)
		atomic_fetch_add_explicit(&q->report->queue_pairs[q->role], -1, memory_order_relaxed);
	atomic_store(&q->live, 0);
	pthread_mutex_unlock(&shim_table_lock);
	shim_hold_drop(q);
	shim_qp_settle(q);
	/* a permit that is being handed out names memory that goes away now */
	shim_acquire_for(&shim.draining, 1000000000);
	shim_release(&shim.draining);
	if (atomic_exchange(&q->failed, 0))
		atomic_fetch_sub(&shim.failures, 1);
	shim_hold_free(q);
	if (q->signals)
		munmap(q->signals, (q->signal_mask + 1) * sizeof(*q->signals));
	q->signals = NULL;
	q->client = NULL;
	q->report = &shim_detached.report;
	atomic_store(&q->gate, &shim_detached.gate);
	atomic_store(&q->usage, &shim_detached.usage);
}

static void record_put(struct shim_qp *q)
{
	shim_release(&q->polling);
	shim_release(&q->owner);
	pthread_mutex_lock(&shim_table_lock);
	q->free_next = free_list;
	free_list = q;
	pthread_mutex_unlock(&shim_table_lock);
}

int shim_qp_destroy(struct shim_qp *q)
{
	const struct shim_verbs *verbs = atomic_load(&q->context)->verbs;
	bool owned = shim_acquire_for(&q->owner, 1000000000);
	bool polling = owned && shim_acquire_for(&q->polling, 1000000000);
	int rc = verbs->destroy_qp(atomic_load(&q->qp));

	if (rc || !polling) {
		if (!rc) { /* a thread died inside: leave the record to it */
			pthread_mutex_lock(&shim_table_lock);
			table_remove(q);
			atomic_store(&q->live, 0);
			pthread_mutex_unlock(&shim_table_lock);
		}
		if (polling)
			shim_release(&q->polling);
		if (owned)
			shim_owner_leave(q);
		return rc;
	}
	forget(q);
	record_put(q);
	return 0;
}

/* The device is being closed; queue pairs that were not destroyed go with it. */
void shim_qp_forget_context(const struct shim_context *context)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	while ((q = shim_qp_each(&cursor))) {
		if (atomic_load(&q->context) != context || !shim_acquire_for(&q->owner, 100000000))
			continue;
		if (shim_acquire_for(&q->polling, 100000000)) {
			forget(q);
			record_put(q);
		} else {
			shim_release(&q->owner);
		}
	}
}

/* In the child: what the parent holds stays the parent's. Devices opened by the parent pass through from now on. */
void shim_qp_after_fork(void)
{
	unsigned n = atomic_load(&used);

	pthread_mutex_init(&shim_table_lock, NULL);
	memset(by_pointer, 0, n ? sizeof(by_pointer) : 0);
	memset(by_number, 0, n ? sizeof(by_number) : 0);
	atomic_store(&version, 0);
	for (unsigned i = 0; i < n; i++) {
		struct shim_qp *q = &atomic_load(&chunks[i / CHUNK])[i % CHUNK];

		if (atomic_load(&q->live))
			shim_builder_unpatch(q);
		atomic_store(&q->live, 0);
	}
	free_list = NULL; /* records of the parent are not used again */
}
