/* Finding queue pairs. */
#ifndef MFS_SHIM_TABLE_H
#define MFS_SHIM_TABLE_H

#include "records.h"

#include <pthread.h>

#define SHIM_POINTER_BUCKETS 16384
extern _Atomic(struct shim_qp *) shim_by_pointer[SHIM_POINTER_BUCKETS] __attribute__((visibility("hidden")));

struct shim_qp *shim_qp_find(const struct ibv_qp *qp);
static inline unsigned shim_pointer_bucket(const struct ibv_qp *qp)
{
	return (unsigned)(((uintptr_t)qp >> 4) * 0x9E3779B97F4A7C15u >> 32) & (SHIM_POINTER_BUCKETS - 1);
}

/* Returns the queue pair if it is the first of its bucket, as nearly all are. Otherwise NULL: use shim_qp_find. */
static inline struct shim_qp *shim_qp_first(const struct ibv_qp *qp)
{
	struct shim_qp *q =
		atomic_load_explicit(&shim_by_pointer[shim_pointer_bucket(qp)], memory_order_acquire);

	return likely(q && atomic_load_explicit(&q->qp, memory_order_relaxed) == qp) ? q : NULL;
}

struct shim_qp *shim_qp_find_number(const struct shim_context *context, uint32_t number);
struct shim_qp *shim_qp_each(unsigned *cursor);

/* Changes to the table. Callers hold the lock, which also protects the records of devices. */
extern pthread_mutex_t shim_table_lock;
struct shim_qp *shim_table_get(void);
void shim_table_insert(struct shim_qp *q);
void shim_table_remove(struct shim_qp *q);
void shim_table_put(struct shim_qp *q);
void *shim_map(size_t bytes);
void shim_table_after_fork(void);

#endif
