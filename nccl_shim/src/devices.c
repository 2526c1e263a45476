/* The records of open devices and completion queues: found by pointer on every post and poll, so without a lock. */
#include "devices.h"

#include "mark.h"
#include "table.h"

#define BUCKETS 256

static struct shim_context context_pool[SHIM_DEVICES_MAX];
static _Atomic(struct shim_context *) context_bucket[BUCKETS];
static struct shim_cq cq_pool[4 * SHIM_DEVICES_MAX];
static _Atomic(struct shim_cq *) cq_bucket[4 * BUCKETS];
static _Atomic uint32_t version; /* odd while a chain changes: a reader that missed tries again */

static unsigned bucket_of(const void *pointer, unsigned buckets)
{
	return (unsigned)(((uintptr_t)pointer >> 4) * 0x9E3779B97F4A7C15u >> 40) & (buckets - 1);
}

/* Records are never given back to the system, so a reader may stand on one that is removed under it; it can then only
 * miss, and tries again because the version has changed. */
#define CHAIN_FIND(type, buckets, count, field, key)                                                         \
	do {                                                                                                 \
		uint32_t before;                                                                             \
		unsigned tries = 0;                                                                          \
		do {                                                                                         \
			before = atomic_load_explicit(&version, memory_order_acquire);                       \
			type *found =                                                                        \
				atomic_load_explicit(&buckets[bucket_of(key, count)], memory_order_acquire); \
			for (unsigned steps = 0; found && steps < SHIM_DEVICES_MAX; steps++) {               \
				if (likely(atomic_load_explicit(&found->field, memory_order_relaxed) ==      \
					   key))                                                             \
					return found;                                                        \
				found = atomic_load_explicit(&found->next, memory_order_acquire);            \
			}                                                                                    \
			atomic_thread_fence(memory_order_acquire);                                           \
		} while (unlikely((before & 1) ||                                                            \
				  before != atomic_load_explicit(&version, memory_order_relaxed)) &&         \
			 ++tries < 1000);                                                                    \
		return NULL;                                                                                 \
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
#define CHAIN_ADD(record, bucket)                                                                  \
	do {                                                                                       \
		atomic_fetch_add(&version, 1);                                                     \
		atomic_store_explicit(&(record)->next, atomic_load(bucket), memory_order_relaxed); \
		atomic_store_explicit(bucket, record, memory_order_release);                       \
		atomic_fetch_add(&version, 1);                                                     \
	} while (0)

#define CHAIN_REMOVE(type, record, bucket)                                 \
	do {                                                               \
		_Atomic(type *) *link = bucket;                            \
		atomic_fetch_add(&version, 1);                             \
		while (atomic_load(link) && atomic_load(link) != (record)) \
			link = &atomic_load(link)->next;                   \
		if (atomic_load(link))                                     \
			atomic_store(link, atomic_load(&(record)->next));  \
		atomic_fetch_add(&version, 1);                             \
	} while (0)

/* ---- completion queues ------------------------------------------------------------------------------------------------- */

bool shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel,
		 struct shim_cq_ex *extended)
{
	struct shim_cq *record = NULL;

	if (shim_marking())
		return false; /* completions are not followed then */
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
	CHAIN_ADD(c, &context_bucket[bucket_of(context, BUCKETS)]);
}

void shim_context_drop(struct shim_context *c)
{
	CHAIN_REMOVE(struct shim_context, c, &context_bucket[bucket_of(atomic_load(&c->context), BUCKETS)]);
	atomic_store(&c->context, NULL);
}

void shim_context_drop_cqs(const struct ibv_context *context, void (*release)(struct shim_cq_ex *))
{
	for (unsigned i = 0; i < sizeof(cq_pool) / sizeof(cq_pool[0]); i++) {
		struct ibv_cq *cq = atomic_load(&cq_pool[i].cq);

		if (cq && cq_pool[i].context == context) {
			if (cq_pool[i].extended)
				release(cq_pool[i].extended);
			CHAIN_REMOVE(struct shim_cq, &cq_pool[i], &cq_bucket[bucket_of(cq, 4 * BUCKETS)]);
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
