/* ibv_poll_cq: a poll that finds nothing moves the bytes itself. */
#include "poll.h"

#include <errno.h>

#include "progress.h"
#include "registry.h"

static int take(struct mfs_cq *cq, int num_entries, struct ibv_wc *wc)
{
	uint32_t head, available, i, count;

	pthread_mutex_lock(&cq->poll_lock);
	head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	available = atomic_load(&cq->tail) - head;
	count = mfs_min((uint32_t)num_entries, available);
	for (i = 0; i < count; i++)
		wc[i] = cq->ring[(head + i) & (cq->size - 1)];
	atomic_store_explicit(&cq->head, head + count, memory_order_release);
	pthread_mutex_unlock(&cq->poll_lock);
	return (int)count;
}

static bool is_empty(struct mfs_cq *cq)
{
	return atomic_load_explicit(&cq->head, memory_order_relaxed) == atomic_load(&cq->tail);
}

int mfs_poll_cq(struct ibv_cq *ibv, int num_entries, struct ibv_wc *wc)
{
	struct mfs_cq *cq = mfs_cq_of(ibv);
	struct mfs_context *context = mfs_context_of(ibv->context);

	if (num_entries <= 0)
		return num_entries ? -EINVAL : 0;
	if (mfs_context_inherited(context))
		return 0; /* the lock may be held for ever by a thread that only the parent has */
	if (is_empty(cq)) {
		mfs_progress_help(context);
		if (is_empty(cq))
			return 0;
	}
	atomic_store_explicit(&context->idle_since_ns, 0, memory_order_relaxed);
	return take(cq, num_entries, wc);
}
