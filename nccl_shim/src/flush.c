/* Posts what is held now, without permits: of one queue pair, of all, or what uses a memory key. */
#include "flush.h"

#include "hold.h"
#include "owner.h"
#include "process.h"
#include "pump.h"
#include "table.h"

void shim_flush(struct shim_qp *q)
{
	if (!q->fifo || atomic_load(&q->wr_posted) == atomic_load(&q->wr_next))
		return;
	atomic_store(&q->force, 1);
	shim_pump(q);
}

void shim_flush_all(void)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	while ((q = shim_qp_each(&cursor)))
		shim_flush(q);
}

/* True when a held work request uses the key, or when that cannot be found out now. */
static bool names_key(struct shim_qp *q, uint32_t lkey)
{
	bool named = false;
	uint64_t next;

	if (!atomic_load(&q->holds) || atomic_load(&q->wr_posted) == atomic_load(&q->wr_next))
		return false;
	if (!shim_owner_acquire_for(q, SHIM_KEY_WAIT_NS))
		return true;
	next = atomic_load(&q->wr_next);
	for (uint64_t i = atomic_load(&q->wr_posted); atomic_load(&q->live) && i != next && !named; i++) {
		struct shim_held *held = shim_held_at(q, i);

		if (atomic_load_explicit(&held->published, memory_order_acquire) != i + 1 || held->hole)
			continue;
		for (int s = 0; s < held->wr.num_sge && !(held->wr.send_flags & IBV_SEND_INLINE); s++)
			named |= held->sge[s].lkey == lkey;
	}
	shim_owner_leave(q);
	return named;
}

/* Called while the key is still valid. */
void shim_flush_key(const struct shim_context *context, uint32_t lkey)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	if (!atomic_load_explicit(&shim.held_requests, memory_order_acquire))
		return;
	while ((q = shim_qp_each(&cursor)))
		if (atomic_load(&q->context) == context && names_key(q, lkey))
			shim_flush(q);
}
