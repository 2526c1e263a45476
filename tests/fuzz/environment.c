/* A program as any other: opens a device and sends. With the shim preloaded it must do so whatever the environment says. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	struct ibv_context *context = ibv_open_device(ibv_get_device_list(NULL)[0]);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 16, .max_send_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_qp_attr state = {.qp_state = IBV_QPS_RTS};
	struct ibv_sge sge = {.addr = 4096, .length = 8};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

	if (!qp || ibv_modify_qp(qp, &state, IBV_QP_STATE) || ibv_post_send(qp, &wr, &bad) || ibv_destroy_qp(qp) ||
	    ibv_close_device(context))
		return 1;
	puts("sent");
	return 0;
}
