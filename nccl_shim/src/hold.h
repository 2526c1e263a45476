/* The ring of held work requests of one queue pair. */
#ifndef MFS_SHIM_HOLD_H
#define MFS_SHIM_HOLD_H

#include "records.h"

bool shim_hold_allocate(struct shim_qp *q);
void shim_hold_free(struct shim_qp *q);
int shim_hold_chain(struct shim_qp *q, struct ibv_send_wr *wr, const struct shim_tag *tag,
		    struct ibv_send_wr **rest);
bool shim_hold_reserve(struct shim_qp *q, uint64_t wanted, uint64_t *first, uint64_t *count);
void shim_hold_publish(struct shim_qp *q, uint64_t index, uint64_t now_ns);
void shim_hold_void(struct shim_qp *q, uint64_t index);
void shim_hold_drop(struct shim_qp *q);
void shim_held_left(struct shim_qp *q, uint64_t first, uint64_t end);
void shim_report_held(struct shim_qp *q);

static inline struct shim_held *shim_held_at(const struct shim_qp *q, uint64_t index)
{
	return (struct shim_held *)((char *)q->fifo + (index & q->ring_mask) * q->fifo_stride);
}

/* Returns the held copy whose address is the wr_id of this completion, or NULL. Such a completion was
 * requested by the shim itself. */
static inline struct shim_held *shim_forced(const struct shim_qp *q, uint64_t wr_id)
{
	uint64_t offset;

	/* acquire: the ring is visible with it */
	if (!atomic_load_explicit(&q->holds, memory_order_acquire))
		return NULL;
	offset = wr_id - (uintptr_t)q->fifo;
	return q->fifo && offset < q->fifo_bytes && offset % q->fifo_stride == 0
		       ? (struct shim_held *)(uintptr_t)wr_id
		       : NULL;
}

#endif
