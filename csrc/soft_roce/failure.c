/* What happens to requests and receives on an error: completed in order, as flushed. */
#include "failure.h"

#include "channel.h"
#include "connection.h"
#include "cq.h"
#include "pacer.h"
#include "receive_queue.h"
#include "timer.h"

void mfs_qp_raise(struct mfs_qp *qp, enum ibv_event_type type)
{
	qp->async_events_raised += mfs_async_raise(mfs_context_of(qp->verbs.qp.context), type, &qp->verbs.qp);
}

static void push_send(struct mfs_qp *qp, const struct mfs_send_wqe *wqe, enum ibv_wc_status status)
{
	struct ibv_wc wc = {
		.wr_id = wqe->wr_id,
		.status = status,
		.opcode = wqe->wc_opcode,
		.qp_num = qp->verbs.qp.qp_num,
	};

	mfs_cq_push(mfs_cq_of(qp->init.send_cq), &wc, false);
}

/* Completes every request that was posted, in order, as flushed. */
void mfs_qp_flush_sends(struct mfs_qp *qp)
{
	struct mfs_send_queue *sq = &qp->sq;

	for (; sq->head != sq->tail; sq->head++)
		push_send(qp, &sq->wqes[sq->head & (sq->size - 1)], IBV_WC_WR_FLUSH_ERR);
	sq->sent = sq->tail;
	sq->sent_bytes = sq->reads_in_flight = 0;
	sq->unsent_bytes = 0;
}

/* And every receive. */
void mfs_qp_flush(struct mfs_qp *qp)
{
	struct mfs_recv_wqe receive;
	struct ibv_sge sges[MFS_MAX_SGE];
	struct ibv_wc wc = {.status = IBV_WC_WR_FLUSH_ERR,
			    .opcode = IBV_WC_RECV,
			    .qp_num = qp->verbs.qp.qp_num};

	mfs_qp_flush_sends(qp);
	if (qp->receiving_taken) {
		qp->receiving_taken = false;
		wc.wr_id = qp->receiving.wr_id;
		mfs_cq_push(mfs_cq_of(qp->init.recv_cq), &wc, false);
	}
	if (qp->init.srq)
		return;
	while (mfs_recv_queue_take(&qp->rq, &receive, sges)) {
		wc.wr_id = receive.wr_id;
		mfs_cq_push(mfs_cq_of(qp->init.recv_cq), &wc, false);
	}
}

static void fail_oldest(struct mfs_qp *qp, enum ibv_wc_status status)
{
	struct mfs_send_queue *sq = &qp->sq;

	if (sq->head == sq->tail)
		return;
	push_send(qp, &sq->wqes[sq->head & (sq->size - 1)], status);
	sq->head++;
}

/* Of a UD queue pair only the sending half fails: it receives on, and can be made ready to send again. */
void mfs_qp_fail_send(struct mfs_qp *qp, enum ibv_wc_status status)
{
	mfs_qp_enter(qp, IBV_QPS_SQE);
	mfs_pacer_stop(mfs_context_of(qp->verbs.qp.context), &qp->pacer);
	fail_oldest(qp, status);
	mfs_qp_flush_sends(qp);
}

/*
 * Moves a queue pair to the error state: the oldest request that waits for the peer completes with that
 * status (none does when the status is that of a flush), all others are flushed. The requester's connection
 * is closed, the responder's stays until the peer has read why.
 */
void mfs_qp_fail(struct mfs_qp *qp, enum ibv_wc_status status)
{
	if (qp->state == IBV_QPS_ERR || qp->state == IBV_QPS_RESET)
		return;
	mfs_qp_enter(qp, IBV_QPS_ERR);
	if (qp->requester) {
		mfs_connection_close(qp->requester);
		qp->requester = NULL;
	}
	qp->requester_lost = false;
	if (qp->waiting)
		mfs_connection_close(qp->waiting);
	if (qp->responder && !qp->responder->nak) {
		mfs_connection_close(qp->responder);
		qp->responder = NULL;
	}
	mfs_timer_stop(qp);
	mfs_pacer_stop(mfs_context_of(qp->verbs.qp.context), &qp->pacer);
	if (status != IBV_WC_WR_FLUSH_ERR)
		fail_oldest(qp, status);
	mfs_qp_flush(qp);
	if (qp->init.srq)
		mfs_qp_raise(qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

void mfs_qp_check_drained(struct mfs_qp *qp)
{
	if (qp->state != IBV_QPS_SQD || !qp->notify_drained || qp->sq.head != qp->sq.sent ||
	    qp->sq.sent_bytes)
		return;
	qp->notify_drained = false;
	mfs_qp_raise(qp, IBV_EVENT_SQ_DRAINED);
}
