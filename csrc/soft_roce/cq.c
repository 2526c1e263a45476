/* Completion queues: rings that the holder of the context's lock fills and that pollers drain. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cq.h"

#include "channel.h"
#include "registry.h"

struct ibv_cq *mfs_create_cq(struct ibv_context *ibv, int cqe, struct ibv_comp_channel *channel, int vector)
{
	struct mfs_context *context = mfs_context_of(ibv);
	struct mfs_cq *cq;

	if (mfs_context_inherited(context) || cqe <= 0 || cqe > MFS_MAX_CQE || vector < 0 ||
	    vector >= ibv->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return NULL;
	cq->size = mfs_power_of_two((uint32_t)cqe);
	cq->ring = calloc(cq->size, sizeof(*cq->ring));
	if (!cq->ring) {
		free(cq);
		return NULL;
	}
	pthread_mutex_init(&cq->poll_lock, NULL);
	cq->verbs.cq.context = ibv;
	cq->verbs.cq.cqe = (int)cq->size;
	if (channel) {
		mfs_context_lock(context);
		cq->channel = mfs_channel_find(context, channel->fd);
		mfs_context_unlock(context);
	}
	return &cq->verbs.cq;
}

/* Waits until the user has acknowledged every event that it fetched, as ibv_destroy_cq(3) promises. */
static void wait_for_acknowledgements(struct mfs_cq *cq)
{
	struct ibv_cq *ibv = &cq->verbs.cq;

	pthread_mutex_lock(&ibv->mutex);
	while (ibv->comp_events_completed != cq->channel_events_written ||
	       ibv->async_events_completed != cq->async_events_raised)
		pthread_cond_wait(&ibv->cond, &ibv->mutex);
	pthread_mutex_unlock(&ibv->mutex);
}

int mfs_destroy_cq(struct ibv_cq *ibv)
{
	struct mfs_cq *cq = mfs_cq_of(ibv);
	struct mfs_context *context = mfs_context_of(ibv->context);

	if (mfs_context_inherited(context))
		return EINVAL;
	mfs_context_lock(context);
	if (atomic_load(&cq->users)) {
		mfs_context_unlock(context);
		return EBUSY;
	}
	if (cq->channel)
		mfs_channel_forget(context, cq);
	mfs_async_forget(context, ibv, &cq->async_events_raised, atomic_load(&cq->async_events_read));
	mfs_context_unlock(context);
	wait_for_acknowledgements(cq);
	pthread_mutex_destroy(&cq->poll_lock);
	free(cq->ring);
	free(cq);
	return 0;
}

int mfs_resize_cq(struct ibv_cq *ibv, int cqe)
{
	struct mfs_cq *cq = mfs_cq_of(ibv);
	struct mfs_context *context = mfs_context_of(ibv->context);
	struct ibv_wc *ring;
	uint32_t size, head, tail, i;
	int ret = 0;

	if (mfs_context_inherited(context) || cqe <= 0 || cqe > MFS_MAX_CQE)
		return EINVAL;
	size = mfs_power_of_two((uint32_t)cqe);
	ring = calloc(size, sizeof(*ring));
	if (!ring)
		return ENOMEM;
	mfs_context_lock(context);
	pthread_mutex_lock(&cq->poll_lock);
	head = atomic_load(&cq->head);
	tail = atomic_load(&cq->tail);
	if (tail - head > size) {
		free(ring);
		ret = EINVAL;
	} else {
		for (i = head; i != tail; i++)
			ring[i & (size - 1)] = cq->ring[i & (cq->size - 1)];
		free(cq->ring);
		cq->ring = ring;
		cq->size = size;
		ibv->cqe = (int)size;
	}
	pthread_mutex_unlock(&cq->poll_lock);
	mfs_context_unlock(context);
	return ret;
}

/* Adds a completion. Called with the context's lock held. If the ring is full, the completion is lost, and
 * the first loss raises IBV_EVENT_CQ_ERR. */
void mfs_cq_push(struct mfs_cq *cq, const struct ibv_wc *wc, bool solicited)
{
	uint32_t tail = atomic_load_explicit(&cq->tail, memory_order_relaxed);
	uint32_t armed;

	/* acquire, paired with the poller's release: it has read the entry that is about to be overwritten */
	if (tail - atomic_load_explicit(&cq->head, memory_order_acquire) >= cq->size) {
		if (!cq->overflown)
			cq->async_events_raised += mfs_async_raise(mfs_context_of(cq->verbs.cq.context),
								   IBV_EVENT_CQ_ERR, &cq->verbs.cq);
		cq->overflown = true;
		return;
	}
	cq->ring[tail & (cq->size - 1)] = *wc;
	/* Sequentially consistent, like the store to `armed` in mfs_req_notify_cq and its caller's next
	 * poll: either this thread sees the queue armed, or that poll sees the completion. */
	atomic_store(&cq->tail, tail + 1);
	if (!cq->channel)
		return;
	armed = atomic_load(&cq->armed);
	if (armed == 1 || (armed == 2 && (solicited || wc->status != IBV_WC_SUCCESS))) {
		atomic_store(&cq->armed, 0);
		mfs_channel_notify(cq->channel, cq);
	}
}

int mfs_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	struct mfs_cq *cq = mfs_cq_of(ibv);

	/* a pending request for any completion is not narrowed to solicited ones */
	if (!solicited_only)
		atomic_store(&cq->armed, 1);
	else if (!atomic_load(&cq->armed))
		atomic_store(&cq->armed, 2);
	return 0;
}

/* Called by libibverbs when the user has fetched a completion event. */
void mfs_cq_event(struct ibv_cq *ibv)
{
	atomic_fetch_add(&mfs_cq_of(ibv)->channel_events_read, 1);
}

/* Drops the completions of a queue pair that is destroyed or reset, and keeps the order of the others.
 * Called with the context's lock held. */
void mfs_cq_remove(struct mfs_cq *cq, uint32_t qp_num)
{
	uint32_t head, tail, from, to;

	pthread_mutex_lock(&cq->poll_lock);
	head = atomic_load(&cq->head);
	tail = atomic_load(&cq->tail);
	for (from = to = head; from != tail; from++) {
		struct ibv_wc *wc = &cq->ring[from & (cq->size - 1)];

		if (wc->qp_num != qp_num)
			cq->ring[to++ & (cq->size - 1)] = *wc;
	}
	atomic_store(&cq->tail, to);
	pthread_mutex_unlock(&cq->poll_lock);
}
