/* Queue pairs: creation, numbers, destruction. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "qp.h"

#include "builder.h"
#include "channel.h"
#include "connection.h"
#include "cq.h"
#include "datagram.h"
#include "mr.h"
#include "pacer.h"
#include "port.h"
#include "receive_queue.h"
#include "registry.h"

static const uint64_t SEND_OPERATIONS = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
					IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
					IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
					IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
static const uint64_t DATAGRAM_OPERATIONS = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

enum { NEW_PORT_TRIES = 8 };

/* Whether a queue pair of that kind can be reached there. */
static int check_port(struct mfs_context *context, struct mfs_port *port, const struct mfs_qp *qp)
{
	if (port->used == MFS_QPS_PER_PORT)
		return -ENOSPC;
	return mfs_qp_is_datagram(qp) && port->datagrams.fd < 0 ? mfs_datagrams_open(context, port) : 0;
}

/* A port for the queue pair. The system chose the number of a new one as a TCP port; where another program has
 * the UDP port of that number, the next may do for a UD queue pair, and RC ones can use the first. */
static int find_port(struct mfs_context *context, const struct mfs_qp *qp, struct mfs_port **port)
{
	uint32_t i, tries;
	int ret;

	for (i = 0; i < context->port_count; i++) {
		*port = context->ports[i];
		if (!check_port(context, *port, qp))
			return 0;
	}
	for (tries = 0; tries < NEW_PORT_TRIES; tries++) {
		ret = mfs_port_open(context, port);
		if (!ret)
			ret = check_port(context, *port, qp);
		if (ret != -EADDRINUSE)
			return ret;
	}
	return ret;
}

/* A QPN is the port, of TCP or UDP, on which the queue pair can be reached and an index of eight bits, so that
 * a GID and a QPN are all that a peer needs. Indices are used in turn: a number rests before it means another
 * queue pair. */
static int assign_number(struct mfs_context *context, struct mfs_qp *qp)
{
	struct mfs_port *port;
	uint32_t i;
	int ret = find_port(context, qp, &port);

	if (ret)
		return ret;
	while (port->qps[port->next % MFS_QPS_PER_PORT])
		port->next++;
	i = port->next++ % MFS_QPS_PER_PORT;
	port->qps[i] = qp;
	port->used++;
	qp->port = port;
	qp->verbs.qp.qp_num = (uint32_t)port->number << 8 | i;
	return 0;
}

static void release_number(struct mfs_qp *qp)
{
	qp->port->qps[qp->verbs.qp.qp_num & 0xff] = NULL;
	qp->port->used--;
}

static int check_attributes(const struct ibv_qp_init_attr *attr)
{
	const struct ibv_qp_cap *cap = &attr->cap;

	if (attr->qp_type != IBV_QPT_RC && attr->qp_type != IBV_QPT_UD)
		return EOPNOTSUPP;
	if (!attr->send_cq || !attr->recv_cq || cap->max_send_wr > MFS_MAX_QP_WR ||
	    cap->max_recv_wr > MFS_MAX_QP_WR || cap->max_send_sge > MFS_MAX_SGE ||
	    cap->max_recv_sge > MFS_MAX_SGE || cap->max_inline_data > MFS_MAX_INLINE)
		return EINVAL;
	return 0;
}

static int init_send_queue(struct mfs_send_queue *sq, const struct ibv_qp_cap *cap)
{
	sq->limit = cap->max_send_wr;
	sq->size = mfs_power_of_two(cap->max_send_wr);
	sq->max_sge = cap->max_send_sge ? cap->max_send_sge : 1;
	sq->max_inline = cap->max_inline_data;
	sq->wqes = calloc(sq->size, sizeof(*sq->wqes));
	sq->sges = calloc((size_t)sq->size * sq->max_sge, sizeof(*sq->sges));
	sq->inline_data = calloc(sq->size, sq->max_inline ? sq->max_inline : 1);
	return sq->wqes && sq->sges && sq->inline_data ? 0 : -ENOMEM;
}

static void free_memory(struct mfs_qp *qp)
{
	free(qp->sq.wqes);
	free(qp->sq.sges);
	free(qp->sq.inline_data);
	mfs_recv_queue_free(&qp->rq);
	free(qp);
}

static void count_users(struct mfs_qp *qp, int change)
{
	atomic_fetch_add(&mfs_cq_of(qp->init.send_cq)->users, change);
	atomic_fetch_add(&mfs_cq_of(qp->init.recv_cq)->users, change);
	if (qp->init.srq)
		atomic_fetch_add(&((struct mfs_srq *)qp->init.srq)->users, change);
	mfs_pd_use(qp->verbs.qp.pd, change);
}

static struct mfs_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct mfs_context *context = mfs_context_of(pd->context);
	struct mfs_qp *qp;
	struct ibv_qp *ibv;
	int ret = mfs_context_inherited(context) ? EINVAL : check_attributes(attr);

	if (ret) {
		errno = ret;
		return NULL;
	}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return NULL;
	if (init_send_queue(&qp->sq, &attr->cap) ||
	    (!attr->srq && mfs_recv_queue_init(&qp->rq, attr->cap.max_recv_wr, attr->cap.max_recv_sge))) {
		free_memory(qp);
		errno = ENOMEM;
		return NULL;
	}
	qp->receives = attr->srq ? &((struct mfs_srq *)attr->srq)->queue : &qp->rq;
	if (attr->srq)
		attr->cap.max_recv_wr = attr->cap.max_recv_sge = 0;
	qp->init = *attr;
	qp->attr.cap = attr->cap;

	ibv = &qp->verbs.qp;
	ibv->context = pd->context;
	ibv->qp_context = attr->qp_context;
	ibv->pd = pd;
	ibv->send_cq = attr->send_cq;
	ibv->recv_cq = attr->recv_cq;
	ibv->srq = attr->srq;
	ibv->qp_type = attr->qp_type;
	mfs_qp_enter(qp, IBV_QPS_RESET);
	pthread_mutex_init(&ibv->mutex, NULL);
	pthread_cond_init(&ibv->cond, NULL);
	pthread_mutex_init(&qp->post_lock, NULL);
	qp->pacer.resume = mfs_datagrams_resume;

	mfs_context_lock(context);
	ret = assign_number(context, qp);
	if (!ret) {
		TAILQ_INSERT_TAIL(&context->qps, qp, link);
		count_users(qp, 1);
	}
	mfs_context_unlock(context);
	if (ret) {
		free_memory(qp);
		errno = -ret;
		return NULL;
	}
	ibv->handle = ibv->qp_num;
	return qp;
}

struct ibv_qp *mfs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct mfs_qp *qp = create(pd, attr);

	return qp ? &qp->verbs.qp : NULL;
}

struct ibv_qp *mfs_create_qp_ex(struct ibv_context *ibv, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp_init_attr basic = {
		.qp_context = attr->qp_context,
		.send_cq = attr->send_cq,
		.recv_cq = attr->recv_cq,
		.srq = attr->srq,
		.cap = attr->cap,
		.qp_type = attr->qp_type,
		.sq_sig_all = attr->sq_sig_all,
	};
	uint64_t offered = attr->qp_type == IBV_QPT_UD ? DATAGRAM_OPERATIONS : SEND_OPERATIONS;
	struct mfs_qp *qp;
	int i;

	(void)ibv;
	if ((attr->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)) ||
	    !(attr->comp_mask & IBV_QP_INIT_ATTR_PD) ||
	    ((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && (attr->send_ops_flags & ~offered))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	qp = create(attr->pd, &basic);
	if (!qp)
		return NULL;
	attr->cap = basic.cap;
	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
		mfs_builder_setup(qp, attr->send_ops_flags);
		for (i = 0; i < VERBS_QP_MASK_PLACES; i++)
			qp->verbs.masks[i].comp_mask = VERBS_QP_HAS_EX;
	}
	return &qp->verbs.qp;
}

int mfs_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init)
{
	struct mfs_context *context = mfs_context_of(ibv->context);
	struct mfs_qp *qp = mfs_qp_of(ibv);

	(void)attr_mask;
	if (mfs_context_inherited(context))
		return EINVAL;
	mfs_context_lock(context);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = qp->state;
	attr->sq_draining = qp->state == IBV_QPS_SQD && qp->sq.head != qp->sq.sent;
	*init = qp->init;
	mfs_context_unlock(context);
	return 0;
}

int mfs_destroy_qp(struct ibv_qp *ibv)
{
	struct mfs_context *context = mfs_context_of(ibv->context);
	struct mfs_qp *qp = mfs_qp_of(ibv);

	if (mfs_context_inherited(context))
		return EINVAL;
	mfs_context_lock(context);
	mfs_connection_close_qp(qp);
	mfs_pacer_stop(context, &qp->pacer);
	if (qp->waiting)
		mfs_connection_close(qp->waiting);
	TAILQ_REMOVE(&context->qps, qp, link);
	release_number(qp);
	mfs_cq_remove(mfs_cq_of(ibv->send_cq), ibv->qp_num);
	if (ibv->recv_cq != ibv->send_cq)
		mfs_cq_remove(mfs_cq_of(ibv->recv_cq), ibv->qp_num);
	mfs_async_forget(context, ibv, &qp->async_events_raised, atomic_load(&qp->async_events_read));
	count_users(qp, -1);
	mfs_context_unlock(context);

	pthread_mutex_lock(&ibv->mutex);
	while (ibv->events_completed != qp->async_events_raised)
		pthread_cond_wait(&ibv->cond, &ibv->mutex);
	pthread_mutex_unlock(&ibv->mutex);
	free_memory(qp);
	return 0;
}
