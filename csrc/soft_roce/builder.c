/*
 * The ibv_wr_* interface. Requests are built in the slots behind the send queue's tail, and wr_complete
 * publishes them. It also returns the errors of the calls before it, since these return nothing.
 */
#include <endian.h>
#include <errno.h>
#include <string.h>

#include "builder.h"

#include "ah.h"
#include "post.h"
#include "registry.h"

static struct mfs_qp *qp_of(struct ibv_qp_ex *ex)
{
	return (struct mfs_qp *)ex;
}

static void build_start(struct ibv_qp_ex *ex)
{
	struct mfs_context *context = mfs_context_of(ex->qp_base.context);
	struct mfs_qp *qp = qp_of(ex);

	if (mfs_context_inherited(context)) {
		qp->build_error = EINVAL;
		return;
	}
	pthread_mutex_lock(&qp->post_lock);
	mfs_context_lock(context);
	qp->build_room = qp->sq.limit - (qp->sq.tail - qp->sq.head);
	mfs_context_unlock(context);
	qp->built = 0;
	qp->build_error = 0;
}

static int build_complete(struct ibv_qp_ex *ex)
{
	struct mfs_context *context = mfs_context_of(ex->qp_base.context);
	struct mfs_qp *qp = qp_of(ex);
	int ret = qp->build_error;

	if (mfs_context_inherited(context))
		return EINVAL;
	if (!ret) {
		mfs_context_lock(context);
		if (mfs_post_allowed(qp)) {
			while (qp->built--)
				mfs_post_publish(&qp->sq);
			mfs_post_start(qp);
		} else {
			ret = EINVAL;
		}
		mfs_context_unlock(context);
	}
	pthread_mutex_unlock(&qp->post_lock);
	return ret;
}

static void build_abort(struct ibv_qp_ex *ex)
{
	if (!mfs_context_inherited(mfs_context_of(ex->qp_base.context)))
		pthread_mutex_unlock(&qp_of(ex)->post_lock);
}

static uint32_t slot_of(const struct mfs_qp *qp, uint32_t nth)
{
	return (qp->sq.tail + nth) & (qp->sq.size - 1);
}

/* Returns the request being built, or NULL after an error. */
static struct mfs_send_wqe *current(struct mfs_qp *qp)
{
	if (!qp->build_error && !qp->built)
		qp->build_error = EINVAL;
	return qp->build_error ? NULL : &qp->sq.wqes[slot_of(qp, qp->built - 1)];
}

static struct mfs_send_wqe *next(struct ibv_qp_ex *ex, enum mfs_opcode opcode, enum ibv_wc_opcode wc_opcode)
{
	struct mfs_qp *qp = qp_of(ex);
	struct mfs_send_wqe *wqe;

	if (!qp->build_error && qp->built == qp->build_room)
		qp->build_error = ENOMEM;
	if (qp->build_error)
		return NULL;
	wqe = &qp->sq.wqes[slot_of(qp, qp->built++)];
	memset(wqe, 0, sizeof(*wqe));
	wqe->wr_id = ex->wr_id;
	wqe->wc_opcode = (uint8_t)wc_opcode;
	wqe->frame.opcode = (uint8_t)opcode;
	if (qp->init.sq_sig_all || (ex->wr_flags & IBV_SEND_SIGNALED))
		wqe->flags |= MFS_WQE_SIGNALED;
	if (ex->wr_flags & IBV_SEND_FENCE)
		wqe->flags |= MFS_WQE_FENCE;
	if (ex->wr_flags & IBV_SEND_SOLICITED)
		wqe->frame.flags |= MFS_FRAME_SOLICITED;
	return wqe;
}

static void set_immediate(struct mfs_send_wqe *wqe, __be32 value)
{
	if (!wqe)
		return;
	wqe->frame.flags |= MFS_FRAME_IMMEDIATE;
	wqe->frame.value = value;
}

static struct mfs_send_wqe *next_remote(struct ibv_qp_ex *ex, enum mfs_opcode opcode,
					enum ibv_wc_opcode wc_opcode, uint32_t key, uint64_t address)
{
	struct mfs_send_wqe *wqe = next(ex, opcode, wc_opcode);

	if (!wqe)
		return NULL;
	wqe->frame.key = htole32(key);
	wqe->frame.address = htole64(address);
	return wqe;
}

static void build_send(struct ibv_qp_ex *ex)
{
	next(ex, MFS_SEND, IBV_WC_SEND);
}

static void build_send_imm(struct ibv_qp_ex *ex, __be32 value)
{
	set_immediate(next(ex, MFS_SEND, IBV_WC_SEND), value);
}

static void set_datagram_address(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qp_num, uint32_t qkey)
{
	struct mfs_send_wqe *wqe = current(qp_of(ex));

	if (wqe)
		mfs_ah_address(&wqe->to, ah, qp_num, qkey);
}

static void build_write(struct ibv_qp_ex *ex, uint32_t key, uint64_t address)
{
	next_remote(ex, MFS_WRITE, IBV_WC_RDMA_WRITE, key, address);
}

static void build_write_imm(struct ibv_qp_ex *ex, uint32_t key, uint64_t address, __be32 value)
{
	set_immediate(next_remote(ex, MFS_WRITE, IBV_WC_RDMA_WRITE, key, address), value);
}

static void build_read(struct ibv_qp_ex *ex, uint32_t key, uint64_t address)
{
	next_remote(ex, MFS_READ, IBV_WC_RDMA_READ, key, address);
}

static void build_atomic(struct ibv_qp_ex *ex, enum mfs_opcode opcode, enum ibv_wc_opcode wc_opcode,
			 uint32_t key, uint64_t address, uint64_t first, uint64_t second)
{
	struct mfs_send_wqe *wqe = next_remote(ex, opcode, wc_opcode, key, address);

	if (!wqe)
		return;
	wqe->operands[0] = htole64(first);
	wqe->operands[1] = htole64(second);
}

static void build_compare_swap(struct ibv_qp_ex *ex, uint32_t key, uint64_t address, uint64_t compare,
			       uint64_t swap)
{
	build_atomic(ex, MFS_COMPARE_SWAP, IBV_WC_COMP_SWAP, key, address, compare, swap);
}

static void build_fetch_add(struct ibv_qp_ex *ex, uint32_t key, uint64_t address, uint64_t add)
{
	build_atomic(ex, MFS_FETCH_ADD, IBV_WC_FETCH_ADD, key, address, add, 0);
}

static void set_length(struct mfs_qp *qp, struct mfs_send_wqe *wqe, uint64_t length)
{
	if (length > MFS_MAX_MESSAGE)
		qp->build_error = EINVAL;
	wqe->length = (uint32_t)length;
	wqe->frame.length =
		htole32(wqe->frame.opcode >= MFS_COMPARE_SWAP ? MFS_ATOMIC_OPERANDS_SIZE : wqe->length);
}

static void set_sge_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_sge *list)
{
	struct mfs_qp *qp = qp_of(ex);
	struct mfs_send_wqe *wqe = current(qp);
	uint64_t length = 0;
	size_t i;

	if (wqe && count > qp->sq.max_sge)
		qp->build_error = EINVAL;
	if (!wqe || qp->build_error)
		return;
	for (i = 0; i < count; i++) {
		qp->sq.sges[(size_t)slot_of(qp, qp->built - 1) * qp->sq.max_sge + i] = list[i];
		length += list[i].length;
	}
	wqe->num_sge = (uint32_t)count;
	set_length(qp, wqe, length);
}

static void set_sge(struct ibv_qp_ex *ex, uint32_t key, uint64_t address, uint32_t length)
{
	struct ibv_sge sge = {.addr = address, .length = length, .lkey = key};

	set_sge_list(ex, 1, &sge);
}

static void set_inline_list(struct ibv_qp_ex *ex, size_t count, const struct ibv_data_buf *list)
{
	struct mfs_qp *qp = qp_of(ex);
	struct mfs_send_wqe *wqe = current(qp);
	size_t length = 0, i;
	uint8_t *data;

	if (!wqe)
		return;
	data = qp->sq.inline_data + (size_t)slot_of(qp, qp->built - 1) * qp->sq.max_inline;
	for (i = 0; i < count; i++) {
		if (list[i].length > qp->sq.max_inline - length || wqe->frame.opcode >= MFS_READ) {
			qp->build_error = EINVAL;
			return;
		}
		memcpy(data + length, list[i].addr, list[i].length);
		length += list[i].length;
	}
	wqe->flags |= MFS_WQE_INLINE;
	set_length(qp, wqe, length);
}

static void set_inline(struct ibv_qp_ex *ex, void *address, size_t length)
{
	struct ibv_data_buf buffer = {.addr = address, .length = length};

	set_inline_list(ex, 1, &buffer);
}

void mfs_builder_setup(struct mfs_qp *qp, uint64_t operations)
{
	struct ibv_qp_ex *ex = &qp->verbs.qp_ex;

	ex->wr_start = build_start;
	ex->wr_complete = build_complete;
	ex->wr_abort = build_abort;
	ex->wr_set_sge = set_sge;
	ex->wr_set_sge_list = set_sge_list;
	ex->wr_set_inline_data = set_inline;
	ex->wr_set_inline_data_list = set_inline_list;
	if (mfs_qp_is_datagram(qp))
		ex->wr_set_ud_addr = set_datagram_address;
	if (operations & IBV_QP_EX_WITH_SEND)
		ex->wr_send = build_send;
	if (operations & IBV_QP_EX_WITH_SEND_WITH_IMM)
		ex->wr_send_imm = build_send_imm;
	if (operations & IBV_QP_EX_WITH_RDMA_WRITE)
		ex->wr_rdma_write = build_write;
	if (operations & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		ex->wr_rdma_write_imm = build_write_imm;
	if (operations & IBV_QP_EX_WITH_RDMA_READ)
		ex->wr_rdma_read = build_read;
	if (operations & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		ex->wr_atomic_cmp_swp = build_compare_swap;
	if (operations & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		ex->wr_atomic_fetch_add = build_fetch_add;
}
