#include "shim_test.h"

#include <mfs/api.h>

const char *socket_path(void)
{
	return getenv("MFS_SOCKET");
}

struct rig *rig_open(int cqe)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct ibv_device **list = ibv_get_device_list(NULL);

	r->context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(r->context);
	WAIT(!mfs_api() || daemon_has_named());
	r->pd = ibv_alloc_pd(r->context);
	r->cq = ibv_create_cq(r->context, cqe, NULL, NULL, 0);
	r->mr = (ibv_reg_mr)(r->pd, r->buffer, sizeof(r->buffer), 0);
	return r;
}

struct ibv_qp *rig_qp(struct rig *r, uint32_t max_send_wr)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = r->cq,
		.recv_cq = r->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = max_send_wr, .max_send_sge = 4, .max_inline_data = 64},
	};
	struct ibv_qp *qp = ibv_create_qp(r->pd, &attr);

	CHECK(qp);
	return qp;
}

struct ibv_qp *rig_qp_ex(struct rig *r, uint32_t max_send_wr)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = r->cq,
		.recv_cq = r->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = max_send_wr, .max_send_sge = 4, .max_inline_data = 64},
		.pd = r->pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = 0x7f,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(r->context, &attr);

	CHECK(qp);
	return qp;
}

int rig_state(struct ibv_qp *qp, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = {.qp_state = state};

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

void rig_ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = 7,
				   .ah_attr = {.is_global = 1, .grh = {.traffic_class = 2}}};

	CHECK(rig_state(qp, IBV_QPS_INIT) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) == 0);
	CHECK(rig_state(qp, IBV_QPS_RTS) == 0);
}

int rig_poll(struct rig *r, struct ibv_wc *wc, int n)
{
	return ibv_poll_cq(r->cq, n, wc);
}

void rig_drain(struct rig *r, struct ibv_wc *wc, int n)
{
	int got = 0, rc = 0;

	WAIT((rc = rig_poll(r, wc + got, n - got), rc >= 0 ? (got += rc) == n : 0));
}

struct ibv_send_wr rig_write(struct rig *r, struct ibv_sge *sge, uint64_t wr_id, uint32_t bytes, int flags)
{
	*sge = (struct ibv_sge){(uintptr_t)r->buffer, bytes, r->mr->lkey};
	return (struct ibv_send_wr){.wr_id = wr_id, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = (unsigned)flags, .wr.rdma = {.remote_addr = wr_id * 16, .rkey = 9}};
}

void rig_post_writes(struct rig *r, struct ibv_qp *qp, uint64_t first, unsigned n, int flags)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	for (unsigned i = 0; i < n; i++) {
		wr = rig_write(r, &sge, first + i, 64, flags);
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	}
}

unsigned posted(struct ibv_qp *qp)
{
	unsigned n;

	fake_log(qp, &n);
	return n;
}

struct mfs_rule hold_rule(void)
{
	return (struct mfs_rule){.action = MFS_RULE_HOLD, .stage = HOLD_STAGE, .dscp = 10, .set_role = MFS_ROLE_KV};
}

struct daemon *hold_daemon(void)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE};

	return daemon_start(&options);
}

int run_tests(const struct test *tests, int argc, char **argv)
{
	if (argc == 2)
		for (; tests->name; tests++)
			if (!strcmp(tests->name, argv[1])) {
				tests->run();
				return 0;
			}
	for (; argc == 1 && tests->name; tests++)
		puts(tests->name);
	return argc == 1 ? 0 : 2;
}
