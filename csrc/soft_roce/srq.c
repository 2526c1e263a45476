/* Shared receive queues. */
#include <errno.h>
#include <stdlib.h>

#include "srq.h"

#include "channel.h"
#include "mr.h"
#include "receive.h"
#include "receive_queue.h"
#include "registry.h"

struct ibv_srq *mfs_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr)
{
	struct mfs_srq *srq;

	if (mfs_context_inherited(mfs_context_of(pd->context)) || !attr->attr.max_wr ||
	    attr->attr.max_wr > MFS_MAX_SRQ_WR || attr->attr.max_sge > MFS_MAX_SGE) {
		errno = EINVAL;
		return NULL;
	}
	srq = calloc(1, sizeof(*srq));
	if (!srq)
		return NULL;
	if (mfs_recv_queue_init(&srq->queue, attr->attr.max_wr, attr->attr.max_sge)) {
		free(srq);
		errno = ENOMEM;
		return NULL;
	}
	srq->verbs.srq_type = IBV_SRQT_BASIC;
	mfs_pd_use(pd, 1);
	return &srq->verbs.srq;
}

struct ibv_srq *mfs_create_srq_ex(struct ibv_context *ibv, struct ibv_srq_init_attr_ex *attr)
{
	struct ibv_srq_init_attr basic = {.attr = attr->attr};
	struct ibv_srq *srq;

	if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD) ||
	    ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && attr->srq_type != IBV_SRQT_BASIC)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	srq = mfs_create_srq(attr->pd, &basic);
	if (!srq)
		return NULL;
	/* unlike for ibv_create_srq, libibverbs leaves all this to the provider */
	srq->context = ibv;
	srq->srq_context = attr->srq_context;
	srq->pd = attr->pd;
	pthread_mutex_init(&srq->mutex, NULL);
	pthread_cond_init(&srq->cond, NULL);
	return srq;
}

int mfs_modify_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr, int attr_mask)
{
	struct mfs_srq *srq = (struct mfs_srq *)ibv;
	struct mfs_context *context = mfs_context_of(ibv->context);

	if (mfs_context_inherited(context) || (attr_mask & ~IBV_SRQ_LIMIT))
		return EINVAL; /* a shared receive queue cannot be resized */
	if (attr->srq_limit > srq->queue.limit)
		return EINVAL;
	mfs_context_lock(context);
	srq->watermark = attr->srq_limit;
	mfs_srq_check(context, srq);
	mfs_context_unlock(context);
	return 0;
}

int mfs_query_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr)
{
	struct mfs_srq *srq = (struct mfs_srq *)ibv;

	attr->max_wr = srq->queue.limit;
	attr->max_sge = srq->queue.max_sge;
	attr->srq_limit = srq->watermark;
	return 0;
}

int mfs_destroy_srq(struct ibv_srq *ibv)
{
	struct mfs_srq *srq = (struct mfs_srq *)ibv;
	struct mfs_context *context = mfs_context_of(ibv->context);

	if (mfs_context_inherited(context))
		return EINVAL;
	if (atomic_load(&srq->users))
		return EBUSY;
	mfs_context_lock(context);
	mfs_async_forget(context, ibv, &srq->async_events_raised, atomic_load(&srq->async_events_read));
	mfs_context_unlock(context);
	pthread_mutex_lock(&ibv->mutex);
	while (ibv->events_completed != srq->async_events_raised)
		pthread_cond_wait(&ibv->cond, &ibv->mutex);
	pthread_mutex_unlock(&ibv->mutex);
	mfs_pd_use(ibv->pd, -1);
	mfs_recv_queue_free(&srq->queue);
	free(srq);
	return 0;
}

static struct mfs_qp *first_stalled(struct mfs_context *context, const struct mfs_srq *srq)
{
	struct mfs_qp *qp;

	TAILQ_FOREACH (qp, &context->qps, link)
		if (qp->receives == &srq->queue && qp->responder && qp->responder->stalled &&
		    !qp->responder->nak)
			break;
	return qp;
}

/* Resumes the queue pairs that wait for a receive, in turn: otherwise a peer that always has a message
 * would leave none to the others. */
static void resume_stalled(struct mfs_context *context, struct mfs_srq *srq)
{
	struct mfs_qp *qp;

	while (srq->stalled && srq->queue.head != srq->queue.tail) {
		qp = first_stalled(context, srq);
		srq->stalled = qp != NULL;
		if (!qp)
			return;
		TAILQ_REMOVE(&context->qps, qp, link);
		TAILQ_INSERT_TAIL(&context->qps, qp, link);
		mfs_receive_resume(qp->responder);
	}
}

int mfs_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct mfs_srq *srq = (struct mfs_srq *)ibv;
	struct mfs_context *context = mfs_context_of(ibv->context);
	int ret;

	if (mfs_context_inherited(context)) {
		*bad_wr = wr;
		return EINVAL;
	}
	mfs_context_lock(context);
	ret = mfs_recv_queue_post(&srq->queue, wr, bad_wr);
	resume_stalled(context, srq);
	mfs_context_unlock(context);
	return ret;
}
