/* The ibv_wr_* interface of the fake device: builds work requests and posts them all or none. */
#include "fake_verbs_state.h"

#include <errno.h>
#include <string.h>

static struct ibv_send_wr *build(struct ibv_qp_ex *qpx, enum ibv_wr_opcode opcode)
{
	struct fake_qp *f = (struct fake_qp *)qpx;
	struct ibv_send_wr *wr = &f->built[f->building];

	memset(wr, 0, sizeof(*wr));
	wr->wr_id = qpx->wr_id;
	wr->send_flags = qpx->wr_flags;
	wr->opcode = opcode;
	wr->sg_list = f->built_sge[f->building];
	if (f->building)
		f->built[f->building - 1].next = wr;
	f->building++;
	return wr;
}

static void wr_start(struct ibv_qp_ex *qpx)
{
	struct fake_qp *f = (struct fake_qp *)qpx;

	pthread_mutex_lock(&f->lock);
	f->building = 0;
	f->build_error = 0;
}

static int wr_complete(struct ibv_qp_ex *qpx)
{
	struct fake_qp *f = (struct fake_qp *)qpx;
	struct ibv_send_wr *bad;
	uint64_t used = f->posted - __atomic_load_n(&f->freed, __ATOMIC_ACQUIRE);
	int rc = f->build_error;

	if (!rc && f->building + used > f->attr.cap.max_send_wr)
		rc = ENOMEM;
	if (!rc && f->building)
		rc = fake_post_locked(f, f->built, &bad, true);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

static void wr_abort(struct ibv_qp_ex *qpx)
{
	pthread_mutex_unlock(&((struct fake_qp *)qpx)->lock);
}

static void rdma(struct ibv_qp_ex *qpx, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t address, __be32 imm)
{
	struct ibv_send_wr *wr = build(qpx, opcode);

	wr->wr.rdma.rkey = rkey;
	wr->wr.rdma.remote_addr = address;
	wr->imm_data = imm;
}

static void wr_rdma_write(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t address)
{
	rdma(qpx, IBV_WR_RDMA_WRITE, rkey, address, 0);
}
static void wr_rdma_write_imm(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t address, __be32 imm)
{
	rdma(qpx, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, address, imm);
}
static void wr_rdma_read(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t address)
{
	rdma(qpx, IBV_WR_RDMA_READ, rkey, address, 0);
}
static void wr_send(struct ibv_qp_ex *qpx)
{
	build(qpx, IBV_WR_SEND);
}
static void wr_send_imm(struct ibv_qp_ex *qpx, __be32 imm)
{
	build(qpx, IBV_WR_SEND_WITH_IMM)->imm_data = imm;
}
static void wr_atomic_fetch_add(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t address, uint64_t add)
{
	struct ibv_send_wr *wr = build(qpx, IBV_WR_ATOMIC_FETCH_AND_ADD);

	wr->wr.atomic.rkey = rkey;
	wr->wr.atomic.remote_addr = address;
	wr->wr.atomic.compare_add = add;
}
static void wr_atomic_cmp_swp(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t address, uint64_t compare, uint64_t swap)
{
	wr_atomic_fetch_add(qpx, rkey, address, compare);
	((struct fake_qp *)qpx)->built[((struct fake_qp *)qpx)->building - 1].opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	((struct fake_qp *)qpx)->built[((struct fake_qp *)qpx)->building - 1].wr.atomic.swap = swap;
}

static void wr_set_sge_list(struct ibv_qp_ex *qpx, size_t n, const struct ibv_sge *sges)
{
	struct fake_qp *f = (struct fake_qp *)qpx;
	struct ibv_send_wr *wr = &f->built[f->building - 1];

	if (n > f->attr.cap.max_send_sge) {
		f->build_error = ENOMEM;
		return;
	}
	wr->num_sge = (int)n;
	memcpy(wr->sg_list, sges, n * sizeof(*sges));
}
static void wr_set_sge(struct ibv_qp_ex *qpx, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge sge = {addr, length, lkey};

	wr_set_sge_list(qpx, 1, &sge);
}
static void wr_set_inline_data_list(struct ibv_qp_ex *qpx, size_t n, const struct ibv_data_buf *buffers)
{
	struct fake_qp *f = (struct fake_qp *)qpx;
	struct ibv_send_wr *wr = &f->built[f->building - 1];
	unsigned char *data = f->built_data[f->building - 1];
	size_t length = 0;

	for (size_t i = 0; i < n; i++) {
		if (length + buffers[i].length > f->attr.cap.max_inline_data) {
			f->build_error = ENOMEM;
			return;
		}
		memcpy(data + length, buffers[i].addr, buffers[i].length);
		length += buffers[i].length;
	}
	wr->send_flags |= IBV_SEND_INLINE;
	wr->num_sge = 1;
	wr->sg_list[0] = (struct ibv_sge){(uintptr_t)data, (uint32_t)length, 0};
}
static void wr_set_inline_data(struct ibv_qp_ex *qpx, void *addr, size_t length)
{
	struct ibv_data_buf buffer = {addr, length};

	wr_set_inline_data_list(qpx, 1, &buffer);
}

void fake_builders_set(struct ibv_qp_ex *qpx)
{
	qpx->wr_start = wr_start;
	qpx->wr_complete = wr_complete;
	qpx->wr_abort = wr_abort;
	qpx->wr_rdma_write = wr_rdma_write;
	qpx->wr_rdma_write_imm = wr_rdma_write_imm;
	qpx->wr_rdma_read = wr_rdma_read;
	qpx->wr_send = wr_send;
	qpx->wr_send_imm = wr_send_imm;
	qpx->wr_atomic_fetch_add = wr_atomic_fetch_add;
	qpx->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	qpx->wr_set_sge = wr_set_sge;
	qpx->wr_set_sge_list = wr_set_sge_list;
	qpx->wr_set_inline_data = wr_set_inline_data;
	qpx->wr_set_inline_data_list = wr_set_inline_data_list;
}
