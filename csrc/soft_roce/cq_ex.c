/* The extended polling interface (ibv_start_poll, ibv_next_poll, ibv_wc_read_*), on top of the plain one. */
#include <errno.h>

#include "cq_ex.h"

#include "cq.h"
#include "poll.h"

static struct mfs_cq *cq_of(struct ibv_cq_ex *ex)
{
	return (struct mfs_cq *)ex;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	struct mfs_cq *cq = cq_of(ex);

	if (mfs_poll_cq(&cq->verbs.cq, 1, &cq->current) != 1)
		return ENOENT;
	ex->wr_id = cq->current.wr_id;
	ex->status = cq->current.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	return attr->comp_mask ? EINVAL : next_poll(ex);
}

static void end_poll(struct ibv_cq_ex *ex)
{
	(void)ex;
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.wc_flags;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
	return cq_of(ex)->current.sl;
}

static uint32_t read_nothing32(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

static uint8_t read_nothing8(struct ibv_cq_ex *ex)
{
	(void)ex;
	return 0;
}

struct ibv_cq_ex *mfs_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq *cq;
	struct ibv_cq_ex *ex;

	/* no timestamps, flow tags or VLANs; a promise of a single thread changes nothing */
	if ((attr->wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS) ||
	    (attr->comp_mask & ~(uint32_t)IBV_CQ_INIT_ATTR_MASK_FLAGS) ||
	    ((attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) &&
	     (attr->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	cq = mfs_create_cq(context, (int)attr->cqe, attr->channel, (int)attr->comp_vector);
	if (!cq)
		return NULL;
	ex = &mfs_cq_of(cq)->verbs.cq_ex;
	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_byte_len = read_byte_len;
	ex->read_imm_data = read_imm_data;
	ex->read_qp_num = read_qp_num;
	ex->read_src_qp = read_src_qp;
	ex->read_wc_flags = read_wc_flags;
	ex->read_slid = read_nothing32;
	ex->read_sl = read_sl;
	ex->read_dlid_path_bits = read_nothing8;
	return ex;
}
