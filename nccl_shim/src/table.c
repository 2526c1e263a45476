/* The table of queue pairs: found by pointer when they are posted to, by number when they complete.
 *
 * Records come from a pool that only grows, so a thread may read the record of a queue pair that is just
 * being destroyed. It takes a flag and checks `live` before it changes anything. */
#include "table.h"

#include "chain.h"

#include <string.h>
#include <sys/mman.h>

#define BUCKETS SHIM_POINTER_BUCKETS
#define CHUNK 64
#define CHUNKS_MAX 1024

pthread_mutex_t shim_table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct shim_qp *_Atomic chunks[CHUNKS_MAX];
static _Atomic unsigned used; /* records ever handed out */
static struct shim_qp *free_list;
_Atomic(struct shim_qp *) shim_by_pointer[SHIM_POINTER_BUCKETS];
static _Atomic(struct shim_qp *) by_number[BUCKETS];
static _Atomic uint32_t version; /* see chain.h */

/* ---- finding ------------------------------------------------------------------------------------------------------------- */

static inline unsigned number_bucket(const struct shim_context *context, uint32_t number)
{
	return (unsigned)((number ^ (uintptr_t)context >> 6) * 0x9E3779B97F4A7C15u >> 32) & (BUCKETS - 1);
}

struct shim_qp *shim_qp_find(const struct ibv_qp *qp)
{
	SHIM_CHAIN_FIND(struct shim_qp, &shim_by_pointer[shim_pointer_bucket(qp)], next_by_pointer,
			atomic_load_explicit(&found->qp, memory_order_relaxed) == qp, version, BUCKETS);
}

struct shim_qp *shim_qp_find_number(const struct shim_context *context, uint32_t number)
{
	SHIM_CHAIN_FIND(struct shim_qp, &by_number[number_bucket(context, number)], next_by_number,
			atomic_load_explicit(&found->number, memory_order_relaxed) == number &&
				atomic_load_explicit(&found->context, memory_order_relaxed) == context,
			version, BUCKETS);
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

/* ---- changing it (callers hold shim_table_lock) ---------------------------------------------------------------------------- */

void *shim_map(size_t bytes)
{
	void *p =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

struct shim_qp *shim_table_get(void)
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
		q = shim_map(CHUNK * sizeof(*q));
		if (!q)
			return NULL;
		atomic_store(&chunks[n / CHUNK], q);
	}
	atomic_store_explicit(&used, n + 1, memory_order_release);
	return &atomic_load(&chunks[n / CHUNK])[n % CHUNK];
}

void shim_table_insert(struct shim_qp *q)
{
	unsigned p = shim_pointer_bucket(atomic_load(&q->qp));
	unsigned n = number_bucket(atomic_load(&q->context), atomic_load(&q->number));

	atomic_fetch_add(&version, 1);
	SHIM_CHAIN_ADD(q, &shim_by_pointer[p], next_by_pointer);
	SHIM_CHAIN_ADD(q, &by_number[n], next_by_number);
	atomic_fetch_add(&version, 1);
}

void shim_table_remove(struct shim_qp *q)
{
	unsigned p = shim_pointer_bucket(atomic_load(&q->qp));
	unsigned n = number_bucket(atomic_load(&q->context), atomic_load(&q->number));

	atomic_fetch_add(&version, 1);
	SHIM_CHAIN_REMOVE(struct shim_qp, q, &shim_by_pointer[p], next_by_pointer);
	SHIM_CHAIN_REMOVE(struct shim_qp, q, &by_number[n], next_by_number);
	atomic_fetch_add(&version, 1);
}

/* Puts the record back, so that it can be used again. */
void shim_table_put(struct shim_qp *q)
{
	pthread_mutex_lock(&shim_table_lock);
	q->free_next = free_list;
	free_list = q;
	pthread_mutex_unlock(&shim_table_lock);
}

/* For the child: what the parent holds stays the parent's. Devices opened by the parent pass through from now on. */
void shim_table_after_fork(void)
{
	unsigned n = atomic_load(&used);

	pthread_mutex_init(&shim_table_lock, NULL);
	memset(shim_by_pointer, 0, n ? sizeof(shim_by_pointer) : 0);
	memset(by_number, 0, n ? sizeof(by_number) : 0);
	atomic_store(&version, 0);
	for (unsigned i = 0; i < n; i++) {
		struct shim_qp *q = &atomic_load(&chunks[i / CHUNK])[i % CHUNK];

		atomic_store(&q->live, 0);
	}
	free_list = NULL; /* records of the parent are not used again */
}
