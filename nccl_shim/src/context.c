/* Open devices and completion queues that we know, and the operations that we patch in each device.
 *
 * ibv_post_send and ibv_poll_cq are inline calls through context->ops, so every open device has its own table to patch;
 * create_qp_ex goes through struct verbs_context in the same way. Fields are patched one by one and once: a provider may
 * fill its table in several steps, and several libraries may open the same device.
 *
 * post_recv stays the provider's: receives put no bytes on the wire, wait for nobody and are not ordered against sends.
 */
#include "mark.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 256
#define POOL 1024 /* open devices, and completion queues, at once; what is beyond passes through */

static struct shim_context context_pool[POOL];
static _Atomic(struct shim_context *) context_bucket[BUCKETS];
static struct shim_cq cq_pool[4 * POOL];
static _Atomic(struct shim_cq *) cq_bucket[4 * BUCKETS];
static _Atomic uint32_t version; /* odd while a chain changes: a reader that missed looks again */

static unsigned bucket_of(const void *pointer, unsigned buckets)
{
	return (unsigned)(((uintptr_t)pointer >> 4) * 0x9E3779B97F4A7C15u >> 40) & (buckets - 1);
}

/* Records are never given back to the system, so a reader may stand on one that is removed under it; it can then only
 * miss, and looks again because the version has changed. */
#define CHAIN_FIND(type, buckets, count, field, key)                                                                   \
	do {                                                                                                           \
		uint32_t before;                                                                                       \
		unsigned tries = 0;                                                                                    \
		do {                                                                                                   \
			before = atomic_load_explicit(&version, memory_order_acquire);                                 \
			type *found =                                                                                  \
				atomic_load_explicit(&buckets[bucket_of(key, count)], memory_order_acquire);           \
			for (unsigned steps = 0; found && steps < POOL; steps++) {                                     \
				if (likely(atomic_load_explicit(&found->field, memory_order_relaxed) == key))          \
					return found;                                                                  \
				found = atomic_load_explicit(&found->next, memory_order_acquire);                      \
			}                                                                                              \
			atomic_thread_fence(memory_order_acquire);                                                     \
		} while (unlikely((before & 1) ||                                                                      \
				  before != atomic_load_explicit(&version, memory_order_relaxed)) &&                   \
			 ++tries < 1000);                                                                              \
		return NULL;                                                                                           \
	} while (0)

struct shim_context *shim_context_find(const struct ibv_context *context)
{
	CHAIN_FIND(struct shim_context, context_bucket, BUCKETS, context, context);
}

struct shim_cq *shim_cq_find(const struct ibv_cq *cq)
{
	CHAIN_FIND(struct shim_cq, cq_bucket, 4 * BUCKETS, cq, cq);
}

/* Caller holds shim_table_lock. */
#define CHAIN_ADD(record, bucket)                                                                                      \
	do {                                                                                                           \
		atomic_fetch_add(&version, 1);                                                                         \
		atomic_store_explicit(&(record)->next, atomic_load(bucket), memory_order_relaxed);                     \
		atomic_store_explicit(bucket, record, memory_order_release);                                           \
		atomic_fetch_add(&version, 1);                                                                         \
	} while (0)

#define CHAIN_REMOVE(type, record, bucket)                                                                             \
	do {                                                                                                           \
		_Atomic(type *) *link = bucket;                                                                        \
		atomic_fetch_add(&version, 1);                                                                         \
		while (atomic_load(link) && atomic_load(link) != (record))                                             \
			link = &atomic_load(link)->next;                                                               \
		if (atomic_load(link))                                                                                 \
			atomic_store(link, atomic_load(&(record)->next));                                              \
		atomic_fetch_add(&version, 1);                                                                         \
	} while (0)

/* ---- completion queues ------------------------------------------------------------------------------------------------- */

bool shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel, struct shim_cq_ex *extended)
{
	struct shim_cq *record = NULL;

	if (shim_marking())
		return false; /* completions are nobody's business then */
	pthread_mutex_lock(&shim_table_lock);
	for (unsigned i = 0; i < sizeof(cq_pool) / sizeof(cq_pool[0]) && !record; i++)
		if (!atomic_load(&cq_pool[i].cq))
			record = &cq_pool[i];
	if (record) {
		record->channel = channel;
		record->context = context;
		record->extended = extended;
		atomic_store(&record->claimed, 0);
		atomic_store(&record->cq, cq);
		CHAIN_ADD(record, &cq_bucket[bucket_of(cq, 4 * BUCKETS)]);
	}
	pthread_mutex_unlock(&shim_table_lock);
	return record != NULL;
}

void shim_cq_remove(struct ibv_cq *cq)
{
	struct shim_cq *record;

	pthread_mutex_lock(&shim_table_lock);
	record = shim_cq_find(cq);
	if (record) {
		CHAIN_REMOVE(struct shim_cq, record, &cq_bucket[bucket_of(cq, 4 * BUCKETS)]);
		atomic_store(&record->cq, NULL);
	}
	pthread_mutex_unlock(&shim_table_lock);
}

/* ---- devices ----------------------------------------------------------------------------------------------------------- */

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct shim_context *c = shim_context_find(context);
	const void *caller = __builtin_extract_return_addr(__builtin_return_address(0));
	const struct ibv_qp_cap asked = attr->cap;
	struct ibv_qp *qp = c->create_qp_ex(context, attr);

	if (qp) /* the first fields of both attribute structures are the same */
		shim_qp_add(qp, (const struct ibv_qp_init_attr *)attr, &asked,
			    attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? attr->send_ops_flags : 0, caller);
	return qp;
}

/* The number of a completion's queue pair is asked for in any case, since it tells whose it is. */
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct shim_context *c = shim_context_find(context);
	struct ibv_cq_init_attr_ex asked = *attr;
	struct shim_cq_ex *extended = NULL;
	struct ibv_cq_ex *ex;

	if (c->inherited)
		return c->create_cq_ex(context, attr);
	asked.wc_flags |= IBV_WC_EX_WITH_QP_NUM;
	ex = c->create_cq_ex(context, &asked);
	if (!ex)
		return c->create_cq_ex(context, attr); /* the caller gets the provider's own error */
	extended = shim_cq_ex_patch(ex);
	if (extended && !shim_cq_add(ibv_cq_ex_to_cq(ex), context, attr->channel != NULL, extended)) {
		shim_cq_ex_unpatch(extended);
		free(extended);
	}
	return ex;
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context, struct ibv_parent_domain_init_attr *attr)
{
	struct shim_context *c = shim_context_find(context);

	if (attr->td)
		c->single_threaded = true;
	return c->alloc_parent_domain(context, attr);
}

static uint64_t port_rate_bytes_per_s(struct ibv_context *context, const struct shim_verbs *verbs)
{
	static const struct {
		uint8_t code;
		uint32_t mbit_per_s;
	} speeds[] = {{1, 2500}, {2, 5000}, {4, 10000}, {8, 10000}, {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
	struct verbs_context *v = verbs_get_ctx_op(context, query_port);
	struct ibv_port_attr attr;
	uint64_t lanes;

	memset(&attr, 0, sizeof(attr));
	if (v ? v->query_port(context, 1, &attr, sizeof(attr))
	      : !verbs->query_port || verbs->query_port(context, 1, &attr))
		return 0;
	lanes = attr.active_width == 1 ? 1 : attr.active_width == 2 ? 4 : attr.active_width == 4 ? 8
	      : attr.active_width == 8 ? 12 : attr.active_width == 16 ? 2 : 0;
	for (unsigned i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
		if (speeds[i].code == attr.active_speed)
			return lanes * speeds[i].mbit_per_s * 125000;
	return 0;
}

void shim_context_patch(struct ibv_context *context, const struct shim_verbs *verbs)
{
	const char *single = getenv("MLX5_SINGLE_THREADED");
	struct shim_context *c = NULL;
	struct verbs_context *v;

	if (context->ops.post_send == shim_post_send || (shim_marking() && shim_context_find(context)))
		return; /* opened by another copy of libibverbs that shares this object */
	pthread_mutex_lock(&shim_table_lock);
	for (unsigned i = 0; i < POOL && !c; i++)
		if (!atomic_load(&context_pool[i].context))
			c = &context_pool[i];
	if (!c) {
		pthread_mutex_unlock(&shim_table_lock);
		shim_log(SHIM_REASON_MEMORY, "more than %d devices open: the later ones pass through", POOL);
		return;
	}
	c->verbs = verbs;
	c->poll_cq = context->ops.poll_cq;
	c->post_send = context->ops.post_send;
	c->bind_mw = context->ops.bind_mw;
	c->create_qp_ex = NULL;
	c->create_cq_ex = NULL;
	c->alloc_parent_domain = NULL;
	c->single_threaded = single && !strcmp(single, "1");
	c->inherited = false;
	c->nic = -1;
	c->unanswered = false;
	c->lane = shim_lane_now();
	atomic_store(&c->context, context);
	CHAIN_ADD(c, &context_bucket[bucket_of(context, BUCKETS)]);
	if (!shim_marking()) {
		context->ops.poll_cq = shim_poll_cq;
		context->ops.post_send = shim_post_send;
		if (c->bind_mw)
			context->ops.bind_mw = shim_bind_mw;
	}
	v = verbs_get_ctx_op(context, create_qp_ex);
	if (v) {
		c->create_qp_ex = v->create_qp_ex;
		v->create_qp_ex = create_qp_ex;
	}
	v = shim_marking() ? NULL : verbs_get_ctx_op(context, create_cq_ex);
	if (v) {
		c->create_cq_ex = v->create_cq_ex;
		v->create_cq_ex = create_cq_ex;
	}
	v = shim_marking() ? NULL : verbs_get_ctx_op(context, alloc_parent_domain);
	if (v) {
		c->alloc_parent_domain = v->alloc_parent_domain;
		v->alloc_parent_domain = alloc_parent_domain;
	}
	pthread_mutex_unlock(&shim_table_lock);

	snprintf(c->name, sizeof(c->name), "%.31s", context->device ? context->device->name : "");
	c->guid = verbs->get_device_guid && context->device ? verbs->get_device_guid(context->device) : 0;
	c->rate_bytes_per_s = port_rate_bytes_per_s(context, verbs);
	shim_start(c);
}

void shim_context_remove(struct ibv_context *context)
{
	struct shim_context *c = shim_context_find(context);

	if (!c)
		return;
	shim_qp_forget_context(c);
	pthread_mutex_lock(&shim_table_lock);
	for (unsigned i = 0; i < sizeof(cq_pool) / sizeof(cq_pool[0]); i++) {
		struct ibv_cq *cq = atomic_load(&cq_pool[i].cq);

		if (cq && cq_pool[i].context == context) {
			if (cq_pool[i].extended)
				shim_cq_ex_unpatch(cq_pool[i].extended);
			free(cq_pool[i].extended);
			CHAIN_REMOVE(struct shim_cq, &cq_pool[i], &cq_bucket[bucket_of(cq, 4 * BUCKETS)]);
			atomic_store(&cq_pool[i].cq, NULL);
		}
	}
	/* a device that refuses to close goes on without us */
	context->ops.poll_cq = c->poll_cq;
	context->ops.post_send = c->post_send;
	context->ops.bind_mw = c->bind_mw;
	if (c->create_qp_ex)
		verbs_get_ctx(context)->create_qp_ex = c->create_qp_ex;
	if (c->create_cq_ex)
		verbs_get_ctx(context)->create_cq_ex = c->create_cq_ex;
	if (c->alloc_parent_domain)
		verbs_get_ctx(context)->alloc_parent_domain = c->alloc_parent_domain;
	CHAIN_REMOVE(struct shim_context, c, &context_bucket[bucket_of(context, BUCKETS)]);
	atomic_store(&c->context, NULL);
	pthread_mutex_unlock(&shim_table_lock);
}

struct shim_context *shim_context_each(unsigned *cursor)
{
	while (*cursor < POOL) {
		struct shim_context *c = &context_pool[(*cursor)++];

		if (atomic_load(&c->context))
			return c;
	}
	return NULL;
}

/* The child keeps the patched tables of the devices that its parent opened, so they must still be found. */
void shim_context_after_fork(void)
{
	unsigned cursor = 0;
	struct shim_context *c;

	atomic_store(&version, 0);
	while ((c = shim_context_each(&cursor)))
		c->inherited = true;
}
