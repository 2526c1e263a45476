/* ibv_modify_qp: the state machines of RC and UD queue pairs, with the attributes each transition needs and
 * allows. */
#include <errno.h>
#include <string.h>

#include "qp_state.h"

#include "connection.h"
#include "cq.h"
#include "datagram.h"
#include "failure.h"
#include "handshake.h"
#include "pacer.h"
#include "registry.h"
#include "requester.h"

enum {
	INIT_ATTRIBUTES = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR_ATTRIBUTES = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS_ATTRIBUTES = IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC,
	LIVE_OPTIONS = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER,
	DATAGRAM_INIT_ATTRIBUTES = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
	DATAGRAM_LIVE_OPTIONS = IBV_QP_CUR_STATE | IBV_QP_QKEY,
};

struct transition {
	enum ibv_qp_state from, to;
	int required, optional;
};

/* Every state may go to RESET and ERR, with no other attribute; alternate paths are not offered. */
static const struct transition transitions[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, INIT_ATTRIBUTES, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, INIT_ATTRIBUTES},
	{IBV_QPS_INIT, IBV_QPS_RTR, RTR_ATTRIBUTES, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
	{IBV_QPS_RTR, IBV_QPS_RTS, RTS_ATTRIBUTES, LIVE_OPTIONS},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, LIVE_OPTIONS},
	{IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
	{IBV_QPS_SQD, IBV_QPS_RTS, 0, LIVE_OPTIONS},
	{IBV_QPS_SQD, IBV_QPS_SQD, 0,
	 LIVE_OPTIONS | INIT_ATTRIBUTES | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		 IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC},
};

static const struct transition datagram_transitions[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, DATAGRAM_INIT_ATTRIBUTES, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, DATAGRAM_INIT_ATTRIBUTES},
	{IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
	{IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, DATAGRAM_LIVE_OPTIONS},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, DATAGRAM_LIVE_OPTIONS},
	{IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
	{IBV_QPS_SQD, IBV_QPS_RTS, 0, DATAGRAM_LIVE_OPTIONS},
	{IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
	{IBV_QPS_SQE, IBV_QPS_RTS, 0, DATAGRAM_LIVE_OPTIONS},
};

static bool transition_allowed(const struct mfs_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to,
			       int mask)
{
	bool datagram = mfs_qp_is_datagram(qp);
	const struct transition *table = datagram ? datagram_transitions : transitions;
	size_t i, count = datagram ? sizeof(datagram_transitions) : sizeof(transitions);

	mask &= ~IBV_QP_STATE;
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return !(mask & ~IBV_QP_CUR_STATE);
	for (i = 0; i < count / sizeof(*table); i++)
		if (table[i].from == from && table[i].to == to)
			return (mask & table[i].required) == table[i].required &&
			       !(mask & ~(table[i].required | table[i].optional));
	return false;
}

static bool values_allowed(const struct ibv_qp_attr *attr, int mask)
{
	const struct ibv_global_route *route = &attr->ah_attr.grh;

	if ((mask & IBV_QP_PORT) && attr->port_num != 1)
		return false;
	if ((mask & IBV_QP_PKEY_INDEX) && attr->pkey_index != 0)
		return false;
	if ((mask & IBV_QP_AV) &&
	    (!attr->ah_attr.is_global || attr->ah_attr.port_num != 1 || route->sgid_index != 0 ||
	     !IN6_IS_ADDR_V4MAPPED((const struct in6_addr *)route->dgid.raw)))
		return false;
	if ((mask & IBV_QP_PATH_MTU) && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_4096))
		return false;
	if ((mask & IBV_QP_DEST_QPN) && attr->dest_qp_num > 0xffffff)
		return false;
	if (((mask & IBV_QP_MAX_QP_RD_ATOMIC) && attr->max_rd_atomic > MFS_MAX_READS) ||
	    ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && attr->max_dest_rd_atomic > MFS_MAX_READS))
		return false;
	return !((mask & IBV_QP_MIN_RNR_TIMER) && attr->min_rnr_timer > 31) &&
	       !((mask & IBV_QP_TIMEOUT) && attr->timeout > 31) &&
	       !((mask & IBV_QP_RETRY_CNT) && attr->retry_cnt > 7) &&
	       !((mask & IBV_QP_RNR_RETRY) && attr->rnr_retry > 7);
}

static void take_values(struct ibv_qp_attr *own, const struct ibv_qp_attr *attr, int mask)
{
#define TAKE(flag, field)                         \
	do {                                      \
		if (mask & (flag))                \
			own->field = attr->field; \
	} while (0)
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	TAKE(IBV_QP_QKEY, qkey);
#undef TAKE
}

static void reset(struct mfs_qp *qp)
{
	struct mfs_send_queue *sq = &qp->sq;
	struct ibv_qp *ibv = &qp->verbs.qp;

	mfs_connection_close_qp(qp);
	mfs_pacer_stop(mfs_context_of(ibv->context), &qp->pacer);
	sq->head = sq->sent = sq->tail = sq->sent_bytes = sq->reads_in_flight = 0;
	sq->unsent_bytes = 0;
	qp->rq.head = qp->rq.tail = 0;
	qp->receiving_taken = qp->notify_drained = false;
	mfs_cq_remove(mfs_cq_of(ibv->send_cq), ibv->qp_num);
	if (ibv->recv_cq != ibv->send_cq)
		mfs_cq_remove(mfs_cq_of(ibv->recv_cq), ibv->qp_num);
	memset(&qp->attr, 0, sizeof(qp->attr));
	qp->attr.cap = qp->init.cap;
}

/* Its peer may have been here before it was ready to receive. */
static void accept_waiting(struct mfs_qp *qp)
{
	if (qp->waiting)
		mfs_connection_greet(qp->waiting);
}

static void enter(struct mfs_qp *qp, enum ibv_qp_state from, enum ibv_qp_state to,
		  const struct ibv_qp_attr *attr, int mask)
{
	if (to == IBV_QPS_ERR) {
		mfs_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
		mfs_qp_enter(qp, IBV_QPS_ERR); /* from RESET nothing is flushed */
		return;
	}
	if (to == IBV_QPS_RESET)
		reset(qp);
	take_values(&qp->attr, attr, mask);
	mfs_qp_enter(qp, to);
	if (mask & IBV_QP_AV) {
		if (qp->requester)
			mfs_connection_set_class(qp->requester, attr->ah_attr.grh.traffic_class);
		if (qp->responder)
			mfs_connection_set_class(qp->responder, attr->ah_attr.grh.traffic_class);
	}
	if (to == IBV_QPS_RTR && from == IBV_QPS_INIT)
		accept_waiting(qp);
	else if (to == IBV_QPS_RTS && from == IBV_QPS_RTR && !mfs_qp_is_datagram(qp))
		mfs_requester_open(qp);
	else if (to == IBV_QPS_RTS && from == IBV_QPS_SQD && mfs_qp_is_datagram(qp))
		mfs_datagrams_send(qp);
	else if (to == IBV_QPS_RTS && from == IBV_QPS_SQD)
		mfs_requester_send(qp);
	else if (to == IBV_QPS_SQD && from == IBV_QPS_RTS) {
		qp->notify_drained = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr->en_sqd_async_notify;
		mfs_qp_check_drained(qp);
	}
}

int mfs_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct mfs_context *context = mfs_context_of(ibv->context);
	struct mfs_qp *qp = mfs_qp_of(ibv);
	enum ibv_qp_state from, to;
	int ret = 0;

	if (mfs_context_inherited(context))
		return EINVAL;
	mfs_context_lock(context);
	from = qp->state;
	to = mask & IBV_QP_STATE ? attr->qp_state : from;
	if (((mask & IBV_QP_CUR_STATE) && attr->cur_qp_state != from) ||
	    !transition_allowed(qp, from, to, mask) || !values_allowed(attr, mask))
		ret = EINVAL;
	else
		enter(qp, from, to, attr, mask);
	mfs_context_unlock(context);
	return ret;
}
