/* The records of open devices and completion queues. They are found by pointer on every post and poll, so
 * without a lock. */
#include "devices.h"

#include "chain.h"
#include "mark.h"
#include "table.h"

#define BUCKETS 256

static struct shim_context context_pool[SHIM_DEVICES_MAX];
static _Atomic(struct shim_context *) context_bucket[BUCKETS];
static struct shim_cq cq_pool[4 * SHIM_DEVICES_MAX];
static _Atomic(struct shim_cq *) cq_bucket[4 * BUCKETS];
static _Atomic uint32_t version; /* see chain.h */

static unsigned bucket_of(const void *pointer, unsigned buckets)
{
	return (unsigned)(((uintptr_t)pointer >> 4) * 0x9E3779B97F4A7C15u >> 40) & (buckets - 1);
}

struct shim_context *shim_context_find(const struct ibv_context *context)
{
	SHIM_CHAIN_FIND(struct shim_context, &context_bucket[bucket_of(context, BUCKETS)], next,
			atomic_load_explicit(&found->context, memory_order_relaxed) == context, version,
			SHIM_DEVICES_MAX);
}

struct shim_cq *shim_cq_find(const struct ibv_cq *cq)
{
	SHIM_CHAIN_FIND(struct shim_cq, &cq_bucket[bucket_of(cq, 4 * BUCKETS)], next,
			atomic_load_explicit(&found->cq, memory_order_relaxed) == cq, version,
			SHIM_DEVICES_MAX);
}

/* ---- completion queues ------------------------------------------------------------------------------------------------- */

static _Atomic(struct shim_cq *) *cq_chain(const struct shim_cq *record)
{
	return &cq_bucket[bucket_of(atomic_load(&record->cq), 4 * BUCKETS)];
}

/* Caller holds shim_table_lock. */
static void chain(struct shim_cq *record)
{
	atomic_fetch_add(&version, 1);
	SHIM_CHAIN_ADD(record, cq_chain(record), next);
	atomic_fetch_add(&version, 1);
}

bool shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel,
		 struct shim_cq_ex *extended)
{
	struct shim_cq *record = NULL;

	if (shim_marking())
		return false; /* completions are not followed in this mode */
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
		chain(record);
	}
	pthread_mutex_unlock(&shim_table_lock);
	return record != NULL;
}

void shim_cq_hide(struct shim_cq *record)
{
	pthread_mutex_lock(&shim_table_lock);
	atomic_fetch_add(&version, 1);
	SHIM_CHAIN_REMOVE(struct shim_cq, record, cq_chain(record), next);
	atomic_fetch_add(&version, 1);
	pthread_mutex_unlock(&shim_table_lock);
}

void shim_cq_show(struct shim_cq *record, struct shim_cq_ex *extended)
{
	pthread_mutex_lock(&shim_table_lock);
	record->extended = extended;
	chain(record);
	pthread_mutex_unlock(&shim_table_lock);
}

void shim_cq_put(struct shim_cq *record)
{
	pthread_mutex_lock(&shim_table_lock);
	atomic_store(&record->cq, NULL);
	pthread_mutex_unlock(&shim_table_lock);
}

/* ---- devices ----------------------------------------------------------------------------------------------------------- */

struct shim_context *shim_context_get(void)
{
	for (unsigned i = 0; i < SHIM_DEVICES_MAX; i++)
		if (!atomic_load(&context_pool[i].context))
			return &context_pool[i];
	return NULL;
}

void shim_context_insert(struct shim_context *c, struct ibv_context *context)
{
	atomic_store(&c->context, context);
	atomic_fetch_add(&version, 1);
	SHIM_CHAIN_ADD(c, &context_bucket[bucket_of(context, BUCKETS)], next);
	atomic_fetch_add(&version, 1);
}

void shim_context_drop(struct shim_context *c)
{
	atomic_fetch_add(&version, 1);
	SHIM_CHAIN_REMOVE(struct shim_context, c,
			  &context_bucket[bucket_of(atomic_load(&c->context), BUCKETS)], next);
	atomic_fetch_add(&version, 1);
	atomic_store(&c->context, NULL);
}

void shim_context_drop_cqs(const struct ibv_context *context, void (*release)(struct shim_cq_ex *))
{
	for (unsigned i = 0; i < sizeof(cq_pool) / sizeof(cq_pool[0]); i++) {
		struct ibv_cq *cq = atomic_load(&cq_pool[i].cq);

		if (cq && cq_pool[i].context == context) {
			if (cq_pool[i].extended)
				release(cq_pool[i].extended);
			atomic_fetch_add(&version, 1);
			SHIM_CHAIN_REMOVE(struct shim_cq, &cq_pool[i], &cq_bucket[bucket_of(cq, 4 * BUCKETS)],
					  next);
			atomic_fetch_add(&version, 1);
			atomic_store(&cq_pool[i].cq, NULL);
		}
	}
}

struct shim_context *shim_context_each(unsigned *cursor)
{
	while (*cursor < SHIM_DEVICES_MAX) {
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
