/* UD queue pairs: what arrives, what is dropped, errors and states. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <arpa/inet.h>
#include <netinet/ip.h>
#include <sys/wait.h>

enum { GRH = 40, MTU = 4096, QKEY = 0x11223344, TRAFFIC_CLASS = 0x6a };

static struct ibv_qp *make_ud(struct side *side, struct ibv_srq *srq, uint32_t depth)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = side->cq,
		.recv_cq = side->cq,
		.srq = srq,
		.qp_type = IBV_QPT_UD,
		.cap = { depth, depth, 4, 4, 512 },
	};
	struct ibv_qp *qp = ibv_create_qp(side->pd, &attr);

	CHECK(qp);
	return qp;
}

static int change(struct ibv_qp *qp, enum ibv_qp_state to, int mask)
{
	struct ibv_qp_attr attr = { .qp_state = to, .port_num = 1, .qkey = QKEY };

	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static void ready(struct ibv_qp *qp)
{
	CHECK_EQUAL(change(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	CHECK_EQUAL(change(qp, IBV_QPS_RTR, 0), 0);
	CHECK_EQUAL(change(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
}

static struct ibv_ah_attr own_address(struct ibv_context *context)
{
	struct ibv_ah_attr attr = { .is_global = 1,
				    .port_num = 1,
				    .grh = { .hop_limit = 1, .traffic_class = TRAFFIC_CLASS } };

	CHECK_EQUAL(ibv_query_gid(context, 1, 0, &attr.grh.dgid), 0);
	return attr;
}

static struct ibv_ah *make_ah(struct side *side)
{
	struct ibv_ah_attr attr = own_address(side->context);
	struct ibv_ah *ah = ibv_create_ah(side->pd, &attr);

	CHECK(ah);
	return ah;
}

/* Opens two sides, each with a queue pair that is ready. Returns the first one's handle of their address. */
static struct ibv_ah *ud_open(struct side pair[2])
{
	for (int i = 0; i < 2; i++) {
		side_open(&pair[i], 16384, &defaults);
		pair[i].qp = make_ud(&pair[i], NULL, 64);
		ready(pair[i].qp);
	}
	return make_ah(&pair[0]);
}

static void ud_close(struct side pair[2], struct ibv_ah *ah)
{
	CHECK_EQUAL(ibv_destroy_ah(ah), 0);
	pair_close(pair);
}

struct message {
	struct ibv_ah *ah;
	uint32_t qp_num, qkey;
	enum ibv_wr_opcode opcode;
	size_t length;
	unsigned flags;
};

static int send_message(struct side *from, uint64_t wr_id, struct message message)
{
	struct ibv_sge sge = sge_of(from, 0, message.length);
	struct ibv_send_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = message.length ? 1 : 0,
				  .opcode = message.opcode,
				  .send_flags = IBV_SEND_SIGNALED | message.flags,
				  .imm_data = htobe32((uint32_t)wr_id) },
			   *bad;

	wr.wr.ud.ah = message.ah;
	wr.wr.ud.remote_qpn = message.qp_num;
	wr.wr.ud.remote_qkey = message.qkey;
	return ibv_post_send(from->qp, &wr, &bad);
}

static struct message to_peer(struct side pair[2], struct ibv_ah *ah, size_t length)
{
	return (struct message){ ah, pair[1].qp->qp_num, QKEY, IBV_WR_SEND, length, 0 };
}

/* Returns 0 for a header with the right checksum. */
static uint16_t checksum(const struct ip *header)
{
	const uint8_t *bytes = (const uint8_t *)header;
	uint32_t sum = 0;

	for (size_t i = 0; i < sizeof(*header); i += 2)
		sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static void exchange(struct side pair[2], uint64_t wr_id, struct message message)
{
	const uint8_t *received = pair[1].memory;
	const struct ip *header = (const struct ip *)(received + 20);
	struct ibv_wc wc;

	fill(pair[0].memory, message.length, (uint32_t)wr_id);
	memset(pair[1].memory, 0xee, pair[1].size);
	CHECK_EQUAL(post_recv(&pair[1], 1000 + wr_id, 0, GRH + MTU), 0);
	CHECK_EQUAL(send_message(&pair[0], wr_id, message), 0);
	wc = expect(pair[0].cq, wr_id, IBV_WC_SUCCESS);
	CHECK_EQUAL(wc.opcode, IBV_WC_SEND);
	wc = expect(pair[1].cq, 1000 + wr_id, IBV_WC_SUCCESS);
	CHECK_EQUAL(wc.opcode, IBV_WC_RECV);
	CHECK_EQUAL(wc.byte_len, GRH + message.length);
	CHECK_EQUAL(wc.src_qp, pair[0].qp->qp_num);
	CHECK_EQUAL(wc.qp_num, pair[1].qp->qp_num);
	CHECK_EQUAL(wc.wc_flags, IBV_WC_GRH | (message.opcode == IBV_WR_SEND ? 0 : IBV_WC_WITH_IMM));
	if (message.opcode == IBV_WR_SEND_WITH_IMM)
		CHECK_EQUAL(wc.imm_data, htobe32((uint32_t)wr_id));
	CHECK_EQUAL(header->ip_v, 4);
	CHECK_EQUAL(header->ip_src.s_addr, header->ip_dst.s_addr);
	CHECK_EQUAL(header->ip_tos, TRAFFIC_CLASS);
	CHECK_EQUAL(checksum(header), 0);
	CHECK(!memcmp(received + GRH, pair[0].memory, message.length));
	for (size_t i = GRH + message.length; i < pair[1].size; i++)
		CHECK_EQUAL(received[i], 0xee);
}

void datagrams(void)
{
	static const size_t lengths[] = { 0, 1, 100, MTU };
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct message message = to_peer(pair, ah, 0);

	for (size_t i = 0; i < 4; i++) {
		message.length = lengths[i];
		message.opcode = IBV_WR_SEND;
		exchange(pair, i, message);
		message.opcode = IBV_WR_SEND_WITH_IMM;
		exchange(pair, 10 + i, message);
	}
	message.length = 512;
	message.flags = IBV_SEND_INLINE | IBV_SEND_SOLICITED;
	exchange(pair, 20, message);
	/* to itself */
	CHECK_EQUAL(post_recv(&pair[0], 30, 8192, GRH + 16), 0);
	message = (struct message){ ah, pair[0].qp->qp_num, QKEY, IBV_WR_SEND, 16, 0 };
	CHECK_EQUAL(send_message(&pair[0], 31, message), 0);
	expect(pair[0].cq, 31, IBV_WC_SUCCESS);
	expect(pair[0].cq, 30, IBV_WC_SUCCESS);
	CHECK(!memcmp(pair[0].memory, pair[0].memory + 8192 + GRH, 16));
	ud_close(pair, ah);
}

/* The route header and the message are split at any place. */
void datagram_scatter(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct ibv_sge sges[4] = { sge_of(&pair[1], 0, 13), sge_of(&pair[1], 1000, 60),
				   sge_of(&pair[1], 2000, 0), sge_of(&pair[1], 3000, 500) };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = sges, .num_sge = 4 }, *bad;

	fill(pair[0].memory, 300, 5);
	CHECK_EQUAL(ibv_post_recv(pair[1].qp, &wr, &bad), 0);
	CHECK_EQUAL(send_message(&pair[0], 2, to_peer(pair, ah, 300)), 0);
	CHECK_EQUAL(expect(pair[1].cq, 1, IBV_WC_SUCCESS).byte_len, GRH + 300);
	CHECK(!memcmp(pair[1].memory + 1000 + GRH - 13, pair[0].memory, 33));
	CHECK(!memcmp(pair[1].memory + 3000, pair[0].memory + 33, 300 - 33));
	CHECK_EQUAL(pair[1].memory[3000 + 267], 0);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	ud_close(pair, ah);
}

/* A server knows no more of its clients than what their messages say. */
void datagram_reply(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair), *back;
	struct ibv_ah_attr attr;
	struct ibv_wc wc;

	CHECK_EQUAL(post_recv(&pair[1], 1, 0, GRH + 8), 0);
	CHECK_EQUAL(send_message(&pair[0], 2, to_peer(pair, ah, 8)), 0);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	wc = expect(pair[1].cq, 1, IBV_WC_SUCCESS);
	CHECK_EQUAL(ibv_init_ah_from_wc(pair[1].context, 1, &wc, (struct ibv_grh *)pair[1].memory, &attr), 0);
	CHECK_EQUAL(attr.grh.sgid_index, 0);
	CHECK_EQUAL(attr.grh.traffic_class, TRAFFIC_CLASS);
	back = ibv_create_ah_from_wc(pair[1].pd, &wc, (struct ibv_grh *)pair[1].memory, 1);
	CHECK(back);
	CHECK_EQUAL(post_recv(&pair[0], 3, 0, GRH + 8), 0);
	struct message answer = { back, wc.src_qp, QKEY, IBV_WR_SEND, 8, 0 };
	CHECK_EQUAL(send_message(&pair[1], 4, answer), 0);
	CHECK_EQUAL(expect(pair[0].cq, 3, IBV_WC_SUCCESS).src_qp, pair[1].qp->qp_num);
	CHECK_EQUAL(ibv_destroy_ah(back), 0);
	expect(pair[1].cq, 4, IBV_WC_SUCCESS);
	ud_close(pair, ah);
}

/* Sends with ibv_wr_* and polls an extended completion queue. */
void datagram_builders(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(pair[0].context, &cq_attr);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(cq),
		.recv_cq = ibv_cq_ex_to_cq(cq),
		.qp_type = IBV_QPT_UD,
		.cap = { 16, 16, 2, 2, 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
		.pd = pair[0].pd,
	};
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_qp *qp = ibv_create_qp_ex(pair[0].context, &attr);
	struct ibv_sge sge = sge_of(&pair[0], 0, 32), into = sge_of(&pair[0], 4096, GRH + 32);
	struct ibv_recv_wr wr = { .wr_id = 7, .sg_list = &into, .num_sge = 1 }, *bad;
	struct ibv_qp_ex *ex;
	double end = seconds() + WAIT_S;
	int seen = 0;

	CHECK(qp);
	ready(qp);
	ex = ibv_qp_to_qp_ex(qp);
	CHECK(ex);
	CHECK_EQUAL(ibv_post_recv(qp, &wr, &bad), 0);
	ibv_wr_start(ex);
	ex->wr_id = 8;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(ex, htobe32(99));
	ibv_wr_set_ud_addr(ex, ah, qp->qp_num, QKEY);
	ibv_wr_set_sge_list(ex, 1, &sge);
	CHECK_EQUAL(ibv_wr_complete(ex), 0);
	while (seen < 2 && seconds() < end) {
		if (ibv_start_poll(cq, &poll_attr))
			continue;
		CHECK_EQUAL(cq->status, IBV_WC_SUCCESS);
		if (cq->wr_id == 7) {
			CHECK_EQUAL(ibv_wc_read_byte_len(cq), GRH + 32);
			CHECK_EQUAL(ibv_wc_read_src_qp(cq), qp->qp_num);
			CHECK_EQUAL(ibv_wc_read_imm_data(cq), htobe32(99));
			CHECK_EQUAL(ibv_wc_read_wc_flags(cq), IBV_WC_GRH | IBV_WC_WITH_IMM);
		}
		seen++;
		ibv_end_poll(cq);
	}
	CHECK_EQUAL(seen, 2);
	/* RDMA operations are not offered */
	attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE;
	CHECK(!ibv_create_qp_ex(pair[0].context, &attr));
	CHECK_EQUAL(errno, EOPNOTSUPP);
	CHECK_EQUAL(ibv_destroy_qp(qp), 0);
	CHECK_EQUAL(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	ud_close(pair, ah);
}

/* The sender is not notified of what is dropped; what is sent after it arrives. */
void datagram_drops(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct message good = to_peer(pair, ah, 8), other;

	CHECK_EQUAL(send_message(&pair[0], 1, good), 0); /* no receive */
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	for (int i = 0; i < 100; i++)
		expect_nothing(pair[1].cq); /* it has been polled */
	CHECK_EQUAL(post_recv(&pair[1], 100, 0, GRH + 8), 0);
	other = good;
	other.qkey = QKEY + 1;
	CHECK_EQUAL(send_message(&pair[0], 2, other), 0);
	other = good;
	other.qp_num = good.qp_num ^ 0x80; /* the same port */
	CHECK_EQUAL(send_message(&pair[0], 3, other), 0);
	other.qp_num = 0x0100; /* port 1 */
	CHECK_EQUAL(send_message(&pair[0], 4, other), 0);
	other.qp_num = 0; /* port 0: the system refuses */
	CHECK_EQUAL(send_message(&pair[0], 5, other), 0);
	for (uint64_t i = 2; i < 6; i++)
		expect(pair[0].cq, i, IBV_WC_SUCCESS);
	pair[0].memory[0] = 0x77;
	other = good;
	other.qkey = 1u << 31; /* means the queue pair's own */
	CHECK_EQUAL(send_message(&pair[0], 6, other), 0);
	expect(pair[0].cq, 6, IBV_WC_SUCCESS);
	expect(pair[1].cq, 100, IBV_WC_SUCCESS);
	CHECK_EQUAL(pair[1].memory[GRH], 0x77);
	/* a queue pair that is not ready */
	CHECK_EQUAL(change(pair[1].qp, IBV_QPS_RESET, 0), 0);
	CHECK_EQUAL(change(pair[1].qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY), 0);
	CHECK_EQUAL(post_recv(&pair[1], 101, 0, GRH + 8), 0);
	CHECK_EQUAL(send_message(&pair[0], 7, good), 0);
	expect(pair[0].cq, 7, IBV_WC_SUCCESS);
	for (int i = 0; i < 100; i++)
		expect_nothing(pair[1].cq);
	CHECK_EQUAL(change(pair[1].qp, IBV_QPS_RTR, 0), 0);
	CHECK_EQUAL(send_message(&pair[0], 8, good), 0);
	expect(pair[1].cq, 101, IBV_WC_SUCCESS);
	expect_nothing(pair[1].cq);
	expect(pair[0].cq, 8, IBV_WC_SUCCESS);
	ud_close(pair, ah);
}

/* An error of a request stops only the sending half. */
static void expect_send_error(struct side pair[2], struct message bad, enum ibv_wc_status status,
			      struct ibv_ah *ah)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK_EQUAL(send_message(&pair[0], 1, bad), 0);
	CHECK_EQUAL(send_message(&pair[0], 2, to_peer(pair, ah, 8)), 0);
	expect(pair[0].cq, 1, status);
	expect(pair[0].cq, 2, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQUAL(ibv_query_qp(pair[0].qp, &attr, IBV_QP_STATE | IBV_QP_QKEY, &init), 0);
	CHECK_EQUAL(attr.qp_state, IBV_QPS_SQE);
	CHECK_EQUAL(attr.qkey, QKEY);
	CHECK_EQUAL(init.qp_type, IBV_QPT_UD);
	CHECK_EQUAL(post_recv(&pair[0], 3, 8192, GRH + 8), 0);
	struct message back = { make_ah(&pair[1]), pair[0].qp->qp_num, QKEY, IBV_WR_SEND, 8, 0 };
	CHECK_EQUAL(send_message(&pair[1], 4, back), 0);
	expect(pair[0].cq, 3, IBV_WC_SUCCESS);
	expect(pair[1].cq, 4, IBV_WC_SUCCESS);
	CHECK_EQUAL(ibv_destroy_ah(back.ah), 0);
	CHECK_EQUAL(change(pair[0].qp, IBV_QPS_RTS, 0), 0);
	exchange(pair, 5, to_peer(pair, ah, 64));
}

void datagram_send_errors(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair), *foreign = make_ah(&pair[1]);
	struct message bad = to_peer(pair, ah, MTU + 1);
	struct ibv_mr *mr = pair[0].mr, none = { .lkey = 0 };

	expect_send_error(pair, bad, IBV_WC_LOC_LEN_ERR, ah);
	bad = to_peer(pair, foreign, 8);
	expect_send_error(pair, bad, IBV_WC_LOC_QP_OP_ERR, ah);
	bad.ah = NULL;
	expect_send_error(pair, bad, IBV_WC_LOC_QP_OP_ERR, ah);
	bad = to_peer(pair, ah, 8);
	pair[0].mr = &none;
	CHECK_EQUAL(send_message(&pair[0], 1, bad), 0);
	expect(pair[0].cq, 1, IBV_WC_LOC_PROT_ERR);
	pair[0].mr = mr;
	CHECK_EQUAL(change(pair[0].qp, IBV_QPS_RTS, 0), 0);
	bad.opcode = IBV_WR_RDMA_WRITE;
	CHECK_EQUAL(send_message(&pair[0], 1, bad), EINVAL);
	bad.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	CHECK_EQUAL(send_message(&pair[0], 1, bad), EINVAL);
	exchange(pair, 6, to_peer(pair, ah, 64));
	CHECK_EQUAL(ibv_destroy_ah(foreign), 0);
	ud_close(pair, ah);
}

void datagram_receive_errors(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);

	memset(pair[1].memory, 0xee, 4096);
	CHECK_EQUAL(post_recv(&pair[1], 1, 0, GRH + 8), 0);
	CHECK_EQUAL(post_recv(&pair[1], 2, 0, GRH + 9), 0);
	CHECK_EQUAL(send_message(&pair[0], 3, to_peer(pair, ah, 9)), 0);
	expect(pair[0].cq, 3, IBV_WC_SUCCESS);
	expect(pair[1].cq, 1, IBV_WC_LOC_LEN_ERR);
	expect(pair[1].cq, 2, IBV_WC_WR_FLUSH_ERR);
	for (int i = 0; i < 100; i++)
		CHECK_EQUAL(pair[1].memory[i], 0xee);
	/* in the error state everything is flushed; then it starts again */
	CHECK_EQUAL(post_recv(&pair[1], 4, 0, GRH + 9), 0);
	expect(pair[1].cq, 4, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQUAL(send_message(&pair[1], 5, to_peer(pair, ah, 8)), 0);
	expect(pair[1].cq, 5, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQUAL(change(pair[1].qp, IBV_QPS_RESET, 0), 0);
	ready(pair[1].qp);
	exchange(pair, 6, to_peer(pair, ah, 9));
	/* memory that is no longer registered */
	CHECK_EQUAL(post_recv(&pair[1], 7, 0, GRH + 9), 0);
	CHECK_EQUAL(ibv_dereg_mr(pair[1].mr), 0);
	CHECK_EQUAL(send_message(&pair[0], 8, to_peer(pair, ah, 9)), 0);
	expect(pair[1].cq, 7, IBV_WC_LOC_PROT_ERR);
	expect(pair[0].cq, 8, IBV_WC_SUCCESS);
	pair[1].mr = ibv_reg_mr(pair[1].pd, pair[1].memory, pair[1].size, ALL_ACCESS);
	CHECK(pair[1].mr);
	ud_close(pair, ah);
}

void datagram_states(void)
{
	enum { INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY };
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_async_event event;
	struct side side;
	struct ibv_ah *ah;

	side_open(&side, 4096, &defaults);
	side.qp = make_ud(&side, NULL, 64);
	CHECK_EQUAL(post_recv(&side, 1, 0, 8), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, 0), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT & ~IBV_QP_QKEY), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT | IBV_QP_ACCESS_FLAGS), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT), 0);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, IBV_QP_SQ_PSN), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, IBV_QP_PATH_MTU), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, IBV_QP_QKEY), 0);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, 0), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, IBV_QP_SQ_PSN), 0);
	/* drained, requests wait */
	ah = make_ah(&side);
	struct message message = { ah, side.qp->qp_num, QKEY, IBV_WR_SEND, 8, 0 };
	CHECK_EQUAL(ibv_modify_qp(side.qp, &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	event = expect_event(side.context, IBV_EVENT_SQ_DRAINED);
	ibv_ack_async_event(&event);
	CHECK_EQUAL(post_recv(&side, 1, 0, GRH + 8), 0);
	CHECK_EQUAL(send_message(&side, 2, message), 0);
	expect_nothing(side.cq);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, IBV_QP_QKEY), 0);
	expect(side.cq, 2, IBV_WC_SUCCESS);
	expect(side.cq, 1, IBV_WC_SUCCESS);
	/* destroyed in order */
	CHECK_EQUAL(ibv_destroy_qp(side.qp), 0);
	side.qp = NULL;
	CHECK_EQUAL(ibv_dereg_mr(side.mr), 0);
	CHECK_EQUAL(ibv_dealloc_pd(side.pd), EBUSY);
	CHECK_EQUAL(ibv_destroy_ah(ah), 0);
	side.mr = ibv_reg_mr(side.pd, side.memory, side.size, ALL_ACCESS);
	side_close(&side);
}

void address_handles(void)
{
	struct side side;
	struct ibv_ah_attr good, bad;

	side_open(&side, 4096, &defaults);
	good = own_address(side.context);
	CHECK_EQUAL(ibv_destroy_ah(make_ah(&side)), 0);
	bad = good;
	bad.is_global = 0;
	CHECK(!ibv_create_ah(side.pd, &bad));
	CHECK_EQUAL(errno, EINVAL);
	bad = good;
	bad.port_num = 2;
	CHECK(!ibv_create_ah(side.pd, &bad));
	bad = good;
	bad.grh.sgid_index = 1;
	CHECK(!ibv_create_ah(side.pd, &bad));
	bad = good;
	bad.grh.dgid.raw[12] = 224; /* multicast */
	CHECK(!ibv_create_ah(side.pd, &bad));
	bad = good;
	bad.grh.dgid.raw[0] = 0xfe; /* IPv6 */
	CHECK(!ibv_create_ah(side.pd, &bad));
	CHECK_EQUAL(errno, EINVAL);
	side_close(&side);
}

void datagram_shared_receives(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	struct ibv_srq *srq = ibv_create_srq(pair[1].pd, &init);
	struct ibv_qp *receivers[2], *own = pair[1].qp;
	struct ibv_async_event event;
	struct ibv_recv_wr *bad;

	CHECK(srq);
	for (int i = 0; i < 2; i++) {
		struct ibv_sge sge = sge_of(&pair[1], 0, GRH + 8);
		struct ibv_recv_wr wr = { .wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1 };

		receivers[i] = make_ud(&pair[1], srq, 64);
		ready(receivers[i]);
		CHECK_EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
	}
	CHECK_EQUAL(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), 0);
	for (int i = 0; i < 3; i++) { /* the last finds no receive and is lost */
		struct ibv_wc wc;

		pair[1].qp = receivers[i % 2];
		CHECK_EQUAL(send_message(&pair[0], (uint64_t)i, to_peer(pair, ah, 8)), 0);
		expect(pair[0].cq, (uint64_t)i, IBV_WC_SUCCESS);
		if (i == 2)
			break;
		wc = expect(pair[1].cq, (uint64_t)i, IBV_WC_SUCCESS);
		CHECK_EQUAL(wc.qp_num, receivers[i]->qp_num);
	}
	for (int i = 0; i < 100; i++)
		expect_nothing(pair[1].cq);
	event = expect_event(pair[1].context, IBV_EVENT_SRQ_LIMIT_REACHED);
	ibv_ack_async_event(&event);
	CHECK_EQUAL(change(receivers[0], IBV_QPS_ERR, 0), 0);
	event = expect_event(pair[1].context, IBV_EVENT_QP_LAST_WQE_REACHED);
	ibv_ack_async_event(&event);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(ibv_destroy_qp(receivers[i]), 0);
	CHECK_EQUAL(ibv_destroy_srq(srq), 0);
	pair[1].qp = own;
	ud_close(pair, ah);
}

/* More completions than the queue holds: those that fit stay, and an event reports the overflow. */
void datagram_completion_overflow(void)
{
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct ibv_async_event event;
	struct ibv_qp *own = pair[1].qp;
	struct ibv_cq *cq = pair[1].cq, *small = ibv_create_cq(pair[1].context, 4, NULL, NULL, 0);

	CHECK(small);
	pair[1].cq = small;
	pair[1].qp = make_ud(&pair[1], NULL, 64);
	ready(pair[1].qp);
	for (uint64_t i = 0; i < 6; i++)
		CHECK_EQUAL(post_recv(&pair[1], i, 0, GRH + 8), 0);
	for (uint64_t i = 0; i < 6; i++) {
		CHECK_EQUAL(send_message(&pair[0], i, to_peer(pair, ah, 8)), 0);
		expect(pair[0].cq, i, IBV_WC_SUCCESS);
	}
	event = expect_event(pair[1].context, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == small);
	ibv_ack_async_event(&event);
	for (uint64_t i = 0; i < 4; i++)
		expect(small, i, IBV_WC_SUCCESS);
	expect_nothing(small);
	CHECK_EQUAL(ibv_destroy_qp(pair[1].qp), 0);
	CHECK_EQUAL(ibv_destroy_cq(small), 0);
	pair[1].qp = own;
	pair[1].cq = cq;
	ud_close(pair, ah);
}

/* RC and UD share numbers. If the UDP port of a number is taken, another number is found. */
void datagram_ports(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	struct pair_options options = defaults;
	struct side pair[2];
	struct ibv_ah *ah = ud_open(pair);
	struct ibv_qp *own = pair[1].qp, *rc, *more[300];
	struct side late;
	union ibv_gid gid;
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	for (int i = 0; i < 300; i++) { /* more than the numbers of a port */
		pair[1].qp = more[i] = make_ud(&pair[1], NULL, 4);
		ready(more[i]);
		for (int j = 0; j < i; j++)
			CHECK(more[i]->qp_num != more[j]->qp_num);
	}
	CHECK(more[0]->qp_num >> 8 != more[299]->qp_num >> 8);
	exchange(pair, 1, to_peer(pair, ah, 64));
	for (int i = 0; i < 300; i++)
		CHECK_EQUAL(ibv_destroy_qp(more[i]), 0);

	side_open(&late, 4096, &options);
	rc = make_qp(&late, &options, NULL);
	CHECK_EQUAL(ibv_query_gid(late.context, 1, 0, &gid), 0);
	memcpy(&address.sin_addr, &gid.raw[12], sizeof(address.sin_addr));
	address.sin_port = htons((uint16_t)(rc->qp_num >> 8));
	CHECK_EQUAL(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	late.qp = make_ud(&late, NULL, 4);
	CHECK(late.qp->qp_num >> 8 != rc->qp_num >> 8);
	ready(late.qp);
	CHECK_EQUAL(post_recv(&late, 1, 0, GRH + 8), 0);
	pair[1].qp = late.qp;
	CHECK_EQUAL(send_message(&pair[0], 2, to_peer(pair, ah, 8)), 0);
	expect(late.cq, 1, IBV_WC_SUCCESS);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	CHECK_EQUAL(ibv_destroy_qp(rc), 0);
	side_close(&late);
	close(fd);
	pair[1].qp = own;
	ud_close(pair, ah);
}

/* An RC queue pair finds no peer behind the number of a UD one. */
void datagram_number_connected(void)
{
	struct side pair[2];

	side_open(&pair[0], 4096, &defaults);
	side_open(&pair[1], 4096, &defaults);
	pair[1].qp = make_ud(&pair[1], NULL, 4);
	pair[0].qp = make_qp(&pair[0], &defaults, NULL);
	to_init(pair[0].qp, &defaults);
	to_rtr(pair[0].qp, pair[1].qp->qp_num, &defaults, 0);
	to_rts(pair[0].qp, &defaults);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	expect(pair[0].cq, 1, IBV_WC_RETRY_EXC_ERR);
	ready(pair[1].qp);
	pair_close(pair);
}

void datagram_forked_child(void)
{
	struct side pair[2], own[2];
	struct ibv_ah *ah = ud_open(pair);
	struct ibv_ah_attr attr = own_address(pair[0].context);
	int status;
	pid_t child = fork();

	if (!child) {
		CHECK_EQUAL(send_message(&pair[0], 1, to_peer(pair, ah, 8)), EINVAL);
		CHECK(!ibv_create_ah(pair[0].pd, &attr));
		ah = ud_open(own);
		exchange(own, 2, to_peer(own, ah, 8));
		ud_close(own, ah);
		exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
	exchange(pair, 3, to_peer(pair, ah, 64));
	ud_close(pair, ah);
}
