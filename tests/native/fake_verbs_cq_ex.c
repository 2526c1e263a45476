/* Extended completion queues of the fake device. As providers do, they hold their lock from start_poll to end_poll. */
#include "fake_verbs_state.h"

#include <errno.h>

static int next_poll(struct ibv_cq_ex *ex)
{
	struct fake_cq *c = (struct fake_cq *)ex;

	if (!fake_poll_locked(c, &c->current))
		return ENOENT;
	ex->wr_id = c->current.wr_id;
	ex->status = c->current.status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct fake_cq *c = (struct fake_cq *)ex;
	int rc;

	if (attr->comp_mask)
		return EINVAL;
	pthread_mutex_lock(&c->lock);
	rc = next_poll(ex);
	if (rc)
		pthread_mutex_unlock(&c->lock);
	return rc;
}

static void end_poll(struct ibv_cq_ex *ex)
{
	pthread_mutex_unlock(&((struct fake_cq *)ex)->lock);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
	return ((struct fake_cq *)ex)->current.opcode;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
	return ((struct fake_cq *)ex)->current.qp_num;
}

struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct ibv_cq_ex *ex = (struct ibv_cq_ex *)ibv_create_cq(context, (int)attr->cqe, attr->cq_context, attr->channel, 0);

	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	if (attr->wc_flags & IBV_WC_EX_WITH_QP_NUM)
		ex->read_qp_num = read_qp_num;
	return ex;
}
