/* Posting: work requests are checked, copied into the queue and sent at once unless waiting makes batches. */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "post.h"

#include "ah.h"
#include "datagram.h"
#include "failure.h"
#include "receive.h"
#include "receive_queue.h"
#include "registry.h"
#include "requester.h"
#include "timer.h"

/* While the peer owes an acknowledgement, fewer and smaller requests than this wait for company: they are
 * sent with the next ones, by the next poll of an empty completion queue, or when the acknowledgement comes.
 */
enum { BATCH_REQUESTS = 32, BATCH_BYTES = 8192 };

static const struct {
	uint8_t opcode;
	uint8_t flags;
	uint8_t wc_opcode;
} operations[] = {
	[IBV_WR_RDMA_WRITE] = {MFS_WRITE, 0, IBV_WC_RDMA_WRITE},
	[IBV_WR_RDMA_WRITE_WITH_IMM] = {MFS_WRITE, MFS_FRAME_IMMEDIATE, IBV_WC_RDMA_WRITE},
	[IBV_WR_SEND] = {MFS_SEND, 0, IBV_WC_SEND},
	[IBV_WR_SEND_WITH_IMM] = {MFS_SEND, MFS_FRAME_IMMEDIATE, IBV_WC_SEND},
	[IBV_WR_RDMA_READ] = {MFS_READ, 0, IBV_WC_RDMA_READ},
	[IBV_WR_ATOMIC_CMP_AND_SWP] = {MFS_COMPARE_SWAP, 0, IBV_WC_COMP_SWAP},
	[IBV_WR_ATOMIC_FETCH_AND_ADD] = {MFS_FETCH_ADD, 0, IBV_WC_FETCH_ADD},
};

static int copy_data(struct mfs_send_queue *sq, uint32_t slot, const struct ibv_send_wr *wr,
		     struct mfs_send_wqe *wqe)
{
	uint8_t *data = sq->inline_data + (size_t)slot * sq->max_inline;
	uint64_t length = 0;
	int i;

	for (i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (length > MFS_MAX_MESSAGE)
		return EINVAL;
	wqe->length = (uint32_t)length;
	wqe->num_sge = (uint32_t)wr->num_sge;
	if (!(wr->send_flags & IBV_SEND_INLINE)) {
		if (wr->num_sge)
			memcpy(&sq->sges[(size_t)slot * sq->max_sge], wr->sg_list,
			       (size_t)wr->num_sge * sizeof(*wr->sg_list));
		return 0;
	}
	if (length > sq->max_inline || wqe->frame.opcode >= MFS_READ)
		return EINVAL;
	for (i = 0; i < wr->num_sge; i++) {
		memcpy(data, (const void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
		data += wr->sg_list[i].length;
	}
	wqe->flags |= MFS_WQE_INLINE;
	return 0;
}

/* Hands the next slot, filled, to the requester; with the context's lock held. */
void mfs_post_publish(struct mfs_send_queue *sq)
{
	sq->unsent_bytes += mfs_wqe_wire_bytes(&sq->wqes[sq->tail & (sq->size - 1)]);
	sq->tail++;
}

static int post_one(struct mfs_qp *qp, const struct ibv_send_wr *wr)
{
	struct mfs_send_queue *sq = &qp->sq;
	uint32_t slot = sq->tail & (sq->size - 1);
	struct mfs_send_wqe *wqe = &sq->wqes[slot];
	int ret;

	if ((unsigned int)wr->opcode >= sizeof(operations) / sizeof(operations[0]) || wr->num_sge < 0 ||
	    (uint32_t)wr->num_sge > sq->max_sge)
		return EINVAL;
	if (mfs_qp_is_datagram(qp) && operations[wr->opcode].opcode != MFS_SEND)
		return EINVAL;
	if (sq->tail - sq->head >= sq->limit)
		return ENOMEM;
	wqe->wr_id = wr->wr_id;
	wqe->wc_opcode = operations[wr->opcode].wc_opcode;
	wqe->flags = 0;
	if (qp->init.sq_sig_all || (wr->send_flags & IBV_SEND_SIGNALED))
		wqe->flags |= MFS_WQE_SIGNALED;
	if (wr->send_flags & IBV_SEND_FENCE)
		wqe->flags |= MFS_WQE_FENCE;
	wqe->frame = (struct mfs_frame){.opcode = operations[wr->opcode].opcode,
					.flags = operations[wr->opcode].flags};
	if (wr->send_flags & IBV_SEND_SOLICITED)
		wqe->frame.flags |= MFS_FRAME_SOLICITED;
	ret = copy_data(sq, slot, wr, wqe);
	if (ret)
		return ret;
	if (wqe->frame.opcode >= MFS_COMPARE_SWAP) {
		wqe->frame.length = htole32(MFS_ATOMIC_OPERANDS_SIZE);
		wqe->frame.address = htole64(wr->wr.atomic.remote_addr);
		wqe->frame.key = htole32(wr->wr.atomic.rkey);
		wqe->operands[0] = htole64(wr->wr.atomic.compare_add);
		wqe->operands[1] = htole64(wr->wr.atomic.swap);
	} else if (mfs_qp_is_datagram(qp)) {
		mfs_ah_address(&wqe->to, wr->wr.ud.ah, wr->wr.ud.remote_qpn, wr->wr.ud.remote_qkey);
		wqe->frame.value = wr->imm_data;
	} else {
		wqe->frame.length = htole32(wqe->length);
		wqe->frame.address = htole64(wr->wr.rdma.remote_addr);
		wqe->frame.key = htole32(wr->wr.rdma.rkey);
		wqe->frame.value = wr->imm_data;
	}
	mfs_post_publish(sq);
	return 0;
}

static bool worth_waiting(const struct mfs_qp *qp)
{
	const struct mfs_send_queue *sq = &qp->sq;

	return sq->sent != sq->head && sq->tail - sq->sent < BATCH_REQUESTS && sq->unsent_bytes < BATCH_BYTES;
}

/* Starts what was posted; with the context's lock held. */
void mfs_post_start(struct mfs_qp *qp)
{
	if (qp->state == IBV_QPS_ERR)
		mfs_qp_flush(qp);
	else if (qp->state == IBV_QPS_SQE)
		mfs_qp_flush_sends(qp);
	else if (mfs_qp_is_datagram(qp))
		mfs_datagrams_send(qp);
	else if (worth_waiting(qp))
		mfs_defer(qp);
	else
		mfs_requester_send(qp);
}

bool mfs_post_allowed(const struct mfs_qp *qp)
{
	enum ibv_qp_state state = qp->state;

	return state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE || state == IBV_QPS_ERR;
}

int mfs_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr)
{
	struct mfs_context *context = mfs_context_of(ibv->context);
	struct mfs_qp *qp = mfs_qp_of(ibv);
	int ret = EINVAL;

	if (mfs_context_inherited(context)) {
		*bad_wr = wr;
		return ret;
	}
	pthread_mutex_lock(&qp->post_lock);
	mfs_context_lock(context);
	if (mfs_post_allowed(qp)) {
		for (ret = 0; wr && !ret;) {
			ret = post_one(qp, wr);
			if (!ret)
				wr = wr->next;
		}
		mfs_post_start(qp);
	}
	mfs_context_unlock(context);
	pthread_mutex_unlock(&qp->post_lock);
	if (ret)
		*bad_wr = wr;
	return ret;
}

int mfs_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct mfs_context *context = mfs_context_of(ibv->context);
	struct mfs_qp *qp = mfs_qp_of(ibv);
	int ret;

	if (mfs_context_inherited(context) || qp->init.srq) {
		*bad_wr = wr;
		return EINVAL;
	}
	mfs_context_lock(context);
	if (qp->state == IBV_QPS_RESET) {
		*bad_wr = wr;
		ret = EINVAL;
	} else {
		ret = mfs_recv_queue_post(&qp->rq, wr, bad_wr);
		if (qp->state == IBV_QPS_ERR)
			mfs_qp_flush(qp);
		else if (qp->responder && qp->responder->stalled)
			mfs_receive_resume(qp->responder);
	}
	mfs_context_unlock(context);
	return ret;
}
