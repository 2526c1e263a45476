/* What an RC queue pair promises, one case a run: soft_roce_cases NAME. Without a name it lists the cases. */
#define _GNU_SOURCE
#include <endian.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "verbs_pair.h"

static const struct pair_options defaults = { .rnr_retry = 7, .inline_bytes = 512 };

/* Every operation, sizes around every boundary, offsets unaligned; nothing around the target may change. */
static void data(void)
{
	static const size_t sizes[] = { 1,    2,    3,	  4,	7,    8,     9,	    63,	   64,	   65,
					1000, 4096, 8191, 8192, 8193, 65535, 65536, 65537, 262145, 1 << 20 };
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						      IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ };
	const size_t room = (1 << 20) + 64, offset = 13;
	struct side pair[2];

	pair_open(pair, room, &defaults);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
		for (size_t j = 0; j < sizeof(opcodes) / sizeof(*opcodes); j++) {
			enum ibv_wr_opcode opcode = opcodes[j];
			int reads = opcode == IBV_WR_RDMA_READ;
			uint8_t *from = pair[reads].memory, *to = pair[!reads].memory;
			uint32_t id = (uint32_t)(i * 100 + j);

			fill(from, room, id);
			memset(to, 0xee, room);
			if (opcode != IBV_WR_RDMA_WRITE && !reads)
				CHECK_EQUAL(post_recv(&pair[1], id, offset, sizes[i]), 0);
			CHECK_EQUAL(post(&pair[0], &pair[1], opcode, id, offset, sizes[i]), 0);
			struct ibv_wc wc = expect(pair[0].cq, id, IBV_WC_SUCCESS);
			CHECK_EQUAL(wc.qp_num, pair[0].qp->qp_num);
			if (opcode != IBV_WR_RDMA_WRITE && !reads) {
				wc = expect(pair[1].cq, id, IBV_WC_SUCCESS);
				CHECK_EQUAL(wc.byte_len, sizes[i]);
				CHECK_EQUAL(wc.qp_num, pair[1].qp->qp_num);
				CHECK_EQUAL(wc.src_qp, pair[0].qp->qp_num);
				CHECK_EQUAL(wc.opcode, opcode == IBV_WR_RDMA_WRITE_WITH_IMM
							       ? IBV_WC_RECV_RDMA_WITH_IMM
							       : IBV_WC_RECV);
				if (opcode != IBV_WR_SEND) {
					CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
					CHECK_EQUAL(be32toh(wc.imm_data), id);
				}
			}
			CHECK(!memcmp(to + offset, from + offset, sizes[i]));
			for (size_t k = 0; k < offset; k++)
				CHECK_EQUAL(to[k], 0xee);
			for (size_t k = offset + sizes[i]; k < room; k++)
				CHECK_EQUAL(to[k], 0xee);
		}
	pair_close(pair);
}

/* Gather and scatter lists, empty entries and inline data, whose buffer may be reused at once. */
static void scatter_gather(void)
{
	struct side pair[2];
	struct ibv_send_wr *bad_send;
	struct ibv_recv_wr *bad_recv;

	pair_open(pair, 65536, &defaults);
	fill(pair[0].memory, 65536, 5);
	struct ibv_sge from[4] = { sge_of(&pair[0], 0, 10), sge_of(&pair[0], 100, 0),
				   sge_of(&pair[0], 200, 30000), sge_of(&pair[0], 40000, 1) };
	struct ibv_sge to[3] = { sge_of(&pair[1], 0, 5), sge_of(&pair[1], 50, 20000),
				 sge_of(&pair[1], 30000, 20000) };
	struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = to, .num_sge = 3 };
	struct ibv_send_wr send = { .wr_id = 2,
				    .sg_list = from,
				    .num_sge = 4,
				    .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED };

	CHECK_EQUAL(ibv_post_recv(pair[1].qp, &receive, &bad_recv), 0);
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &send, &bad_send), 0);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	CHECK_EQUAL(expect(pair[1].cq, 1, IBV_WC_SUCCESS).byte_len, 30011);
	CHECK(!memcmp(pair[1].memory, pair[0].memory, 5));
	CHECK(!memcmp(pair[1].memory + 50, pair[0].memory + 5, 5));
	CHECK(!memcmp(pair[1].memory + 55, pair[0].memory + 200, 19995));
	CHECK(!memcmp(pair[1].memory + 30000, pair[0].memory + 200 + 19995, 30000 - 19995));
	CHECK_EQUAL(pair[1].memory[30000 + 30000 - 19995], pair[0].memory[40000]);

	uint8_t small[300];
	struct ibv_sge one = { .addr = (uintptr_t)small, .length = sizeof(small), .lkey = 0 };
	struct ibv_send_wr write = { .wr_id = 3,
				     .sg_list = &one,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE };

	write.wr.rdma.remote_addr = (uintptr_t)pair[1].memory;
	write.wr.rdma.rkey = pair[1].mr->rkey;
	memset(small, 0x11, sizeof(small));
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &write, &bad_send), 0);
	memset(small, 0x22, sizeof(small));
	expect(pair[0].cq, 3, IBV_WC_SUCCESS);
	for (size_t i = 0; i < sizeof(small); i++)
		CHECK_EQUAL(pair[1].memory[i], 0x11);
	one.length = 513;
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &write, &bad_send), EINVAL);
	CHECK(bad_send == &write);
	pair_close(pair);
}

/* The ibv_wr_* builders: the same operations, all or none posted, wr_abort posts nothing. */
static void builders(void)
{
	struct side pair[2];

	side_open(&pair[0], 4096, &defaults);
	side_open(&pair[1], 4096, &defaults);
	pair[1].qp = make_qp(&pair[1], &defaults, NULL);
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = pair[0].cq,
		.recv_cq = pair[0].cq,
		.qp_type = IBV_QPT_RC,
		.pd = pair[0].pd,
		.cap = { .max_send_wr = 8,
			 .max_recv_wr = 8,
			 .max_send_sge = 4,
			 .max_recv_sge = 4,
			 .max_inline_data = 64 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
				  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP,
	};
	pair[0].qp = ibv_create_qp_ex(pair[0].context, &attr);
	CHECK(pair[0].qp);
	connect_qps(pair[0].qp, pair[1].qp, &defaults);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair[0].qp);
	CHECK(ex);
	uint64_t word = 40;
	uint32_t rkey = pair[1].mr->rkey, lkey = pair[0].mr->lkey;
	uintptr_t remote = (uintptr_t)pair[1].memory, local = (uintptr_t)pair[0].memory;

	memcpy(pair[1].memory + 64, &word, 8);
	CHECK_EQUAL(post_recv(&pair[1], 9, 1024, 64), 0);
	ibv_wr_start(ex);
	ex->wr_flags = IBV_SEND_SIGNALED;
	ex->wr_id = 1;
	ibv_wr_rdma_write(ex, rkey, remote);
	ibv_wr_set_inline_data(ex, "hello", 5);
	ex->wr_id = 2;
	ibv_wr_atomic_fetch_add(ex, rkey, remote + 64, 2);
	ibv_wr_set_sge(ex, lkey, local + 64, 8);
	ex->wr_id = 3;
	ibv_wr_atomic_cmp_swp(ex, rkey, remote + 64, 42, 99);
	ibv_wr_set_sge(ex, lkey, local + 72, 8);
	ex->wr_id = 4;
	ibv_wr_rdma_read(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, local + 128, 5);
	ex->wr_id = 5;
	ibv_wr_send_imm(ex, htobe32(77));
	struct ibv_sge list[2] = { sge_of(&pair[0], 128, 2), sge_of(&pair[0], 130, 3) };
	ibv_wr_set_sge_list(ex, 2, list);
	expect_nothing(pair[0].cq);
	CHECK_EQUAL(ibv_wr_complete(ex), 0);
	for (uint64_t id = 1; id <= 5; id++)
		expect(pair[0].cq, id, IBV_WC_SUCCESS);
	CHECK_EQUAL(be32toh(expect(pair[1].cq, 9, IBV_WC_SUCCESS).imm_data), 77);
	CHECK(!memcmp(pair[1].memory, "hello", 5));
	CHECK(!memcmp(pair[0].memory + 128, "hello", 5));
	memcpy(&word, pair[0].memory + 64, 8);
	CHECK_EQUAL(word, 40);
	memcpy(&word, pair[0].memory + 72, 8);
	CHECK_EQUAL(word, 42);
	memcpy(&word, pair[1].memory + 64, 8);
	CHECK_EQUAL(word, 99);

	ibv_wr_start(ex);
	ibv_wr_rdma_write(ex, rkey, remote);
	ibv_wr_set_sge(ex, lkey, local, 8);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	for (int i = 0; i < 9; i++) {
		ibv_wr_rdma_write(ex, rkey, remote);
		ibv_wr_set_sge(ex, lkey, local, 8);
	}
	CHECK_EQUAL(ibv_wr_complete(ex), ENOMEM);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 6, 0, 8), 0);
	expect(pair[0].cq, 6, IBV_WC_SUCCESS);
	expect_nothing(pair[0].cq);
	pair_close(pair);
}

/* After a refused request: it completes with the reason, what follows is flushed in order, the peer hears of
 * it. */
static void refused(int access, enum ibv_wr_opcode opcode, uint64_t address_shift, uint32_t key_shift,
		    size_t length, enum ibv_wc_status status, enum ibv_event_type event)
{
	struct pair_options options = defaults;
	struct side pair[2];
	struct ibv_send_wr *bad;

	options.access = access;
	pair_open(pair, 4096, &options);
	CHECK_EQUAL(post_recv(&pair[0], 50, 0, 8), 0);
	CHECK_EQUAL(post_recv(&pair[1], 60, 0, 8), 0);
	CHECK_EQUAL(post_recv(&pair[1], 61, 0, 8), 0);
	struct ibv_sge sge = sge_of(&pair[0], 0, length);
	struct ibv_send_wr wr[3];

	memset(wr, 0, sizeof(wr));
	for (int i = 0; i < 3; i++) {
		wr[i].wr_id = (uint64_t)i + 1;
		wr[i].next = i < 2 ? &wr[i + 1] : NULL;
		wr[i].sg_list = &sge;
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_RDMA_WRITE;
		wr[i].wr.rdma.remote_addr = (uintptr_t)pair[1].memory;
		wr[i].wr.rdma.rkey = pair[1].mr->rkey;
	}
	wr[0].opcode = opcode; /* unsignaled: errors always complete */
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr[0].wr.atomic.remote_addr = (uintptr_t)pair[1].memory + address_shift;
		wr[0].wr.atomic.rkey = pair[1].mr->rkey + key_shift;
	} else {
		wr[0].wr.rdma.remote_addr += address_shift;
		wr[0].wr.rdma.rkey += key_shift;
	}
	CHECK_EQUAL(ibv_post_send(pair[0].qp, wr, &bad), 0);
	expect(pair[0].cq, 1, status);
	expect(pair[0].cq, 2, IBV_WC_WR_FLUSH_ERR);
	expect(pair[0].cq, 3, IBV_WC_WR_FLUSH_ERR);
	expect(pair[0].cq, 50, IBV_WC_WR_FLUSH_ERR);
	expect(pair[1].cq, 60, IBV_WC_WR_FLUSH_ERR);
	expect(pair[1].cq, 61, IBV_WC_WR_FLUSH_ERR);
	struct ibv_async_event raised = expect_event(pair[1].context, event);
	CHECK(raised.element.qp == pair[1].qp);
	ibv_ack_async_event(&raised);
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr attr;
		struct ibv_qp_init_attr init;

		CHECK_EQUAL(ibv_query_qp(pair[i].qp, &attr, IBV_QP_STATE, &init), 0);
		CHECK_EQUAL(attr.qp_state, IBV_QPS_ERR);
	}
	/* in the error state everything posted is flushed at once */
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 70, 0, 8), 0);
	expect(pair[0].cq, 70, IBV_WC_WR_FLUSH_ERR);
	pair_close(pair);
}

static void bad_key(void)
{
	refused(0, IBV_WR_RDMA_WRITE, 0, 1, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(0, IBV_WR_RDMA_READ, 0, 0x100, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void bad_bounds(void)
{
	refused(0, IBV_WR_RDMA_WRITE, 4089, 0, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(0, IBV_WR_RDMA_READ, (uint64_t)-1, 0, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(0, IBV_WR_RDMA_WRITE, UINT64_MAX / 2, 0, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void bad_access(void)
{
	refused(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_WRITE, 0, 0, 8,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ, 0, 0, 8,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 8,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void bad_alignment(void)
{
	refused(0, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 0, 8, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

/* Errors of the local side leave the peer alone. */
static void bad_local_key(void)
{
	struct side pair[2];
	struct ibv_send_wr *bad;

	pair_open(pair, 4096, &defaults);
	struct ibv_sge sge = sge_of(&pair[0], 0, 8);
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	sge.lkey++;
	wr.wr.rdma.remote_addr = (uintptr_t)pair[1].memory;
	wr.wr.rdma.rkey = pair[1].mr->rkey;
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 4096), 0);
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &wr, &bad), 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	expect(pair[0].cq, 2, IBV_WC_LOC_PROT_ERR);
	CHECK_EQUAL(pair[1].qp->state, IBV_QPS_RTS);
	pair_close(pair);
}

/* A key of another protection domain gives no access; keys that were given back do not either. */
static void foreign_keys(void)
{
	struct side pair[2];
	struct ibv_send_wr *bad;
	struct ibv_pd *other;
	struct ibv_mr *mr;

	pair_open(pair, 4096, &defaults);
	other = ibv_alloc_pd(pair[1].context);
	mr = ibv_reg_mr(other, pair[1].memory, 4096, ALL_ACCESS);
	struct ibv_sge sge = sge_of(&pair[0], 0, 8);
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE };

	wr.wr.rdma.remote_addr = (uintptr_t)pair[1].memory;
	wr.wr.rdma.rkey = mr->rkey;
	CHECK_EQUAL(ibv_dealloc_pd(other), EBUSY);
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &wr, &bad), 0);
	expect(pair[0].cq, 1, IBV_WC_REM_ACCESS_ERR);
	CHECK_EQUAL(ibv_dereg_mr(mr), 0);
	CHECK_EQUAL(ibv_dealloc_pd(other), 0);
	struct ibv_async_event event = expect_event(pair[1].context, IBV_EVENT_QP_ACCESS_ERR);
	ibv_ack_async_event(&event);
	pair_close(pair);
	refused(0, IBV_WR_RDMA_WRITE, 0, (uint32_t)-1, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

static void receive_too_small(void)
{
	struct side pair[2];

	pair_open(pair, 4096, &defaults);
	CHECK_EQUAL(post_recv(&pair[1], 1, 0, 99), 0);
	CHECK_EQUAL(post_recv(&pair[1], 2, 0, 99), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 3, 0, 100), 0);
	expect(pair[1].cq, 1, IBV_WC_LOC_LEN_ERR);
	expect(pair[1].cq, 2, IBV_WC_WR_FLUSH_ERR);
	expect(pair[0].cq, 3, IBV_WC_REM_INV_REQ_ERR);
	pair_close(pair);
}

/* Sends wait for receives, in order, and do not hold up the other direction. */
static void receiver_not_ready(void)
{
	struct side pair[2];

	pair_open(pair, 1 << 20, &defaults);
	fill(pair[0].memory, 1 << 20, 3);
	for (uint64_t i = 0; i < 20; i++)
		CHECK_EQUAL(post(&pair[0], &pair[1], i % 2 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM, i,
				 i * 50000, 50000),
			    0);
	CHECK_EQUAL(post(&pair[1], &pair[0], IBV_WR_RDMA_WRITE, 99, 1040000, 8), 0);
	expect(pair[1].cq, 99, IBV_WC_SUCCESS);
	expect_nothing(pair[0].cq);
	for (uint64_t i = 0; i < 20; i++) {
		CHECK_EQUAL(post_recv(&pair[1], 100 + i, i * 50000, 50000), 0);
		expect(pair[1].cq, 100 + i, IBV_WC_SUCCESS);
		expect(pair[0].cq, i, IBV_WC_SUCCESS);
	}
	CHECK(!memcmp(pair[0].memory, pair[1].memory, 1000000));
	pair_close(pair);
}

static void rnr_retries_exceeded(void)
{
	struct pair_options options = { .rnr_retry = 2, .min_rnr_timer = 1 };
	struct side pair[2];

	pair_open(pair, 4096, &options);
	/* with a receive each, two pass; the third has none */
	CHECK_EQUAL(post_recv(&pair[1], 10, 0, 8), 0);
	CHECK_EQUAL(post_recv(&pair[1], 11, 0, 8), 0);
	for (uint64_t i = 1; i <= 4; i++)
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, i, 0, 8), 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	expect(pair[0].cq, 3, IBV_WC_RNR_RETRY_EXC_ERR);
	expect(pair[0].cq, 4, IBV_WC_WR_FLUSH_ERR);
	expect(pair[1].cq, 10, IBV_WC_SUCCESS);
	expect(pair[1].cq, 11, IBV_WC_SUCCESS);
	CHECK_EQUAL(pair[1].qp->state, IBV_QPS_RTS);
	pair_close(pair);
}

static void peer_destroyed(void)
{
	struct side pair[2];

	pair_open(pair, 4096, &defaults);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 2, 0, 8), 0); /* waits for a receive */
	CHECK_EQUAL(ibv_destroy_qp(pair[1].qp), 0);
	pair[1].qp = NULL;
	expect(pair[0].cq, 2, IBV_WC_RETRY_EXC_ERR);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 3, 0, 8), 0);
	expect(pair[0].cq, 3, IBV_WC_WR_FLUSH_ERR);
	pair_close(pair);
}

static void peer_missing(void)
{
	struct side pair[2];
	struct ibv_qp *gone;

	side_open(&pair[0], 4096, &defaults);
	side_open(&pair[1], 4096, &defaults);
	pair[0].qp = make_qp(&pair[0], &defaults, NULL);
	gone = make_qp(&pair[1], &defaults, NULL);
	to_init(pair[0].qp, &defaults);
	to_rtr(pair[0].qp, gone->qp_num, &defaults, 0);
	CHECK_EQUAL(ibv_destroy_qp(gone), 0);
	to_rts(pair[0].qp, &defaults);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	expect(pair[0].cq, 1, IBV_WC_RETRY_EXC_ERR);
	pair_close(pair);
}

/* The requester may be ready before its peer: nothing is lost. */
static void late_peer(void)
{
	struct side pair[2];

	side_open(&pair[0], 4096, &defaults);
	side_open(&pair[1], 4096, &defaults);
	pair[0].qp = make_qp(&pair[0], &defaults, NULL);
	pair[1].qp = make_qp(&pair[1], &defaults, NULL);
	to_init(pair[0].qp, &defaults);
	to_rtr(pair[0].qp, pair[1].qp->qp_num, &defaults, 0);
	to_rts(pair[0].qp, &defaults);
	fill(pair[0].memory, 4096, 1);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 4096), 0);
	to_init(pair[1].qp, &defaults);
	expect_nothing(pair[0].cq);
	to_rtr(pair[1].qp, pair[0].qp->qp_num, &defaults, 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	CHECK(!memcmp(pair[0].memory, pair[1].memory, 4096));
	pair_close(pair);
}

static void flush_order(void)
{
	struct pair_options options = defaults;
	struct side pair[2];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	options.depth = 256;
	options.cqe = 1024;
	pair_open(pair, 4096, &options);
	for (uint64_t i = 0; i < 100; i++) {
		CHECK_EQUAL(post_recv(&pair[0], 1000 + i, 0, 8), 0);
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, i, 0, 8), 0); /* the peer has no receives */
	}
	CHECK_EQUAL(ibv_modify_qp(pair[0].qp, &attr, IBV_QP_STATE), 0);
	for (uint64_t i = 0; i < 100; i++)
		expect(pair[0].cq, i, IBV_WC_WR_FLUSH_ERR);
	for (uint64_t i = 0; i < 100; i++)
		expect(pair[0].cq, 1000 + i, IBV_WC_WR_FLUSH_ERR);
	expect_nothing(pair[0].cq);

	/* and back: both ends start anew on the same numbers */
	attr.qp_state = IBV_QPS_RESET;
	CHECK_EQUAL(ibv_modify_qp(pair[0].qp, &attr, IBV_QP_STATE), 0);
	CHECK_EQUAL(ibv_modify_qp(pair[1].qp, &attr, IBV_QP_STATE), 0);
	connect_qps(pair[0].qp, pair[1].qp, &options);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 5, 0, 8), 0);
	expect(pair[0].cq, 5, IBV_WC_SUCCESS);
	pair_close(pair);
}

static int change(struct ibv_qp *qp, enum ibv_qp_state to, int mask, const struct ibv_qp_attr *from)
{
	struct ibv_qp_attr attr = *from;

	attr.qp_state = to;
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE | mask);
}

static void state_machine(void)
{
	struct side side;
	struct ibv_qp_attr attr = { .port_num = 1 };
	enum { INIT = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS };

	side_open(&side, 4096, &defaults);
	side.qp = make_qp(&side, &defaults, NULL);
	CHECK_EQUAL(post_recv(&side, 1, 0, 8), EINVAL);
	CHECK_EQUAL(post(&side, &side, IBV_WR_SEND, 1, 0, 8), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, RTR_MASK, &attr), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, RTS_MASK, &attr), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_SQD, 0, &attr), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT & ~IBV_QP_PORT, &attr), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT | IBV_QP_TIMEOUT, &attr), EINVAL);
	attr.port_num = 2;
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT, &attr), EINVAL);
	attr.port_num = 1;
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT, &attr), 0);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT, &attr), 0);
	CHECK_EQUAL(post_recv(&side, 1, 0, 8), 0);
	CHECK_EQUAL(post(&side, &side, IBV_WR_SEND, 1, 0, 8), EINVAL);

	struct ibv_qp_attr rtr = rtr_attributes(side.qp, side.qp->qp_num, &defaults, 0);
	for (int bit = 1; bit < RTR_MASK; bit <<= 1)
		if ((RTR_MASK & bit) && bit != IBV_QP_STATE)
			CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, RTR_MASK & ~bit, &rtr), EINVAL);
	rtr.ah_attr.is_global = 0;
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, RTR_MASK, &rtr), EINVAL);
	rtr.ah_attr.is_global = 1;
	rtr.max_dest_rd_atomic = 17;
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, RTR_MASK, &rtr), EINVAL);
	rtr.max_dest_rd_atomic = 4;
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTR, RTR_MASK, &rtr), 0);
	CHECK_EQUAL(post(&side, &side, IBV_WR_SEND, 1, 0, 8), EINVAL);
	to_rts(side.qp, &defaults);
	attr.cur_qp_state = IBV_QPS_RTR;
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, IBV_QP_CUR_STATE, &attr), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_INIT, INIT, &attr), EINVAL);
	/* connected to itself, as for a flush of NCCL */
	CHECK_EQUAL(post(&side, &side, IBV_WR_SEND, 2, 8, 8), 0);
	struct ibv_wc one = next_completion(side.cq), two = next_completion(side.cq);
	CHECK_EQUAL(one.wr_id + two.wr_id, 3);
	CHECK_EQUAL(change(side.qp, IBV_QPS_ERR, 0, &attr), 0);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RTS, 0, &attr), EINVAL);
	CHECK_EQUAL(change(side.qp, IBV_QPS_RESET, 0, &attr), 0);
	side_close(&side);
}

/* In SQD nothing new is sent, what was begun ends, then there is an event. */
static void send_queue_drained(void)
{
	struct side pair[2];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };

	pair_open(pair, 4096, &defaults);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 0, 0, 8), 0);
	expect(pair[0].cq, 0, IBV_WC_SUCCESS); /* connected: the next request is sent at once */
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 1, 0, 8), 0);
	CHECK_EQUAL(ibv_modify_qp(pair[0].qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 2, 0, 8), 0);
	CHECK_EQUAL(post_recv(&pair[1], 3, 0, 8), 0);
	expect(pair[1].cq, 3, IBV_WC_SUCCESS);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	struct ibv_async_event event = expect_event(pair[0].context, IBV_EVENT_SQ_DRAINED);
	ibv_ack_async_event(&event);
	expect_nothing(pair[0].cq);
	attr.qp_state = IBV_QPS_RTS;
	CHECK_EQUAL(ibv_modify_qp(pair[0].qp, &attr, IBV_QP_STATE), 0);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	pair_close(pair);
}

static void shared_receives(void)
{
	struct pair_options options = defaults;
	struct side left, right;
	struct ibv_qp *senders[3], *receivers[3];
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 32, .max_sge = 2 } };
	struct ibv_srq_attr attr = { .srq_limit = 4 };
	struct ibv_recv_wr *bad;
	struct ibv_async_event event;

	side_open(&left, 4096, &options);
	side_open(&right, 4096, &options);
	struct ibv_srq *srq = ibv_create_srq(right.pd, &init);
	CHECK(srq);
	for (int i = 0; i < 3; i++) {
		senders[i] = make_qp(&left, &options, NULL);
		receivers[i] = make_qp(&right, &options, srq);
		connect_qps(senders[i], receivers[i], &options);
	}
	/* first message finds no receive */
	left.qp = senders[2];
	CHECK_EQUAL(post(&left, &right, IBV_WR_SEND, 7, 0, 8), 0);
	for (uint64_t i = 0; i < 6; i++) {
		struct ibv_sge sge = sge_of(&right, i * 8, 8);
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 };

		CHECK_EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
	}
	CHECK_EQUAL(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK_EQUAL(expect(right.cq, 0, IBV_WC_SUCCESS).qp_num, receivers[2]->qp_num);
	expect(left.cq, 7, IBV_WC_SUCCESS);
	for (uint64_t i = 1; i < 4; i++) {
		left.qp = senders[i % 3];
		CHECK_EQUAL(post(&left, &right, IBV_WR_SEND, i, 0, 8), 0);
		CHECK_EQUAL(expect(right.cq, i, IBV_WC_SUCCESS).qp_num, receivers[i % 3]->qp_num);
		expect(left.cq, i, IBV_WC_SUCCESS);
	}
	event = expect_event(right.context, IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	ibv_ack_async_event(&event);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK_EQUAL(ibv_modify_qp(receivers[0], &error, IBV_QP_STATE), 0);
	event = expect_event(right.context, IBV_EVENT_QP_LAST_WQE_REACHED);
	CHECK(event.element.qp == receivers[0]);
	ibv_ack_async_event(&event);
	CHECK_EQUAL(ibv_destroy_srq(srq), EBUSY);
	for (int i = 0; i < 3; i++) {
		CHECK_EQUAL(ibv_destroy_qp(senders[i]), 0);
		CHECK_EQUAL(ibv_destroy_qp(receivers[i]), 0);
	}
	CHECK_EQUAL(ibv_destroy_srq(srq), 0);
	left.qp = right.qp = NULL;
	side_close(&left);
	side_close(&right);
}

struct adder {
	struct side pair[2];
	uint64_t *counter;
	struct ibv_mr *mr;
	int rounds;
};

static void *add(void *argument)
{
	struct adder *adder = argument;
	struct ibv_send_wr *bad;

	for (int i = 0; i < adder->rounds; i++) {
		struct ibv_sge sge = sge_of(&adder->pair[0], 0, 8);
		struct ibv_send_wr wr = { .wr_id = (uint64_t)i,
					  .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
					  .send_flags = IBV_SEND_SIGNALED };

		wr.wr.atomic.remote_addr = (uintptr_t)adder->counter;
		wr.wr.atomic.rkey = adder->mr->rkey;
		wr.wr.atomic.compare_add = 3;
		CHECK_EQUAL(ibv_post_send(adder->pair[0].qp, &wr, &bad), 0);
		expect(adder->pair[0].cq, (uint64_t)i, IBV_WC_SUCCESS);
	}
	return NULL;
}

/* Atomics of several devices on one word add up. */
static void atomics(void)
{
	enum { THREADS = 3, ROUNDS = 500 };
	static uint64_t counter;
	struct adder adders[THREADS];
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++) {
		pair_open(adders[i].pair, 4096, &defaults);
		adders[i].counter = &counter;
		adders[i].mr = ibv_reg_mr(adders[i].pair[1].pd, &counter, 8, ALL_ACCESS);
		adders[i].rounds = ROUNDS;
		CHECK(adders[i].mr);
		CHECK_EQUAL(pthread_create(&threads[i], NULL, add, &adders[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK_EQUAL(pthread_join(threads[i], NULL), 0);
	CHECK_EQUAL(counter, 3ULL * THREADS * ROUNDS);
	for (int i = 0; i < THREADS; i++) {
		CHECK_EQUAL(ibv_dereg_mr(adders[i].mr), 0);
		pair_close(adders[i].pair);
	}
}

static void await_channel(struct side *side)
{
	struct pollfd file = { .fd = side->channel->fd, .events = POLLIN };
	struct ibv_cq *cq;
	void *user;

	CHECK_EQUAL(poll(&file, 1, WAIT_S * 1000), 1);
	CHECK_EQUAL(ibv_get_cq_event(side->channel, &cq, &user), 0);
	CHECK(cq == side->cq);
	ibv_ack_cq_events(cq, 1);
}

/* One event per request for one; solicited ones on demand; unread events do not outlive their queue. */
static void completion_channel(void)
{
	struct pair_options options = defaults;
	struct side pair[2];
	struct ibv_send_wr *bad;

	options.with_channel = 1;
	pair_open(pair, 4096, &options);
	struct ibv_sge sge = sge_of(&pair[0], 0, 8);
	struct ibv_send_wr solicited = { .wr_id = 9,
					 .sg_list = &sge,
					 .num_sge = 1,
					 .opcode = IBV_WR_SEND,
					 .send_flags = IBV_SEND_SOLICITED };
	struct pollfd file = { .fd = pair[1].channel->fd, .events = POLLIN };

	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQUAL(post_recv(&pair[1], i, 0, 8), 0);
	CHECK_EQUAL(ibv_req_notify_cq(pair[1].cq, 0), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 1, 0, 8), 0);
	await_channel(&pair[1]);
	expect(pair[1].cq, 0, IBV_WC_SUCCESS);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 2, 0, 8), 0);
	expect(pair[1].cq, 1, IBV_WC_SUCCESS);
	CHECK_EQUAL(poll(&file, 1, 0), 0); /* not asked for */
	CHECK_EQUAL(ibv_req_notify_cq(pair[1].cq, 1), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 3, 0, 8), 0);
	expect(pair[1].cq, 2, IBV_WC_SUCCESS);
	CHECK_EQUAL(poll(&file, 1, 0), 0); /* not solicited */
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &solicited, &bad), 0);
	await_channel(&pair[1]);
	expect(pair[1].cq, 3, IBV_WC_SUCCESS);

	struct ibv_cq *second = ibv_create_cq(pair[1].context, 4, NULL, pair[1].channel, 0);
	struct side other = pair[1];

	CHECK(second);
	other.cq = second;
	struct ibv_qp *qps[2] = { make_qp(&pair[0], &options, NULL), make_qp(&other, &options, NULL) };
	connect_qps(qps[0], qps[1], &options);
	CHECK_EQUAL(ibv_req_notify_cq(second, 0), 0);
	CHECK_EQUAL(ibv_req_notify_cq(pair[1].cq, 0), 0);
	other.qp = qps[1];
	CHECK_EQUAL(post(&other, &pair[0], IBV_WR_RDMA_WRITE, 5, 0, 8), 0);
	CHECK_EQUAL(post(&pair[1], &pair[0], IBV_WR_RDMA_WRITE, 6, 0, 8), 0);
	expect(second, 5, IBV_WC_SUCCESS);
	expect(pair[1].cq, 6, IBV_WC_SUCCESS);
	CHECK_EQUAL(ibv_destroy_qp(qps[1]), 0);
	CHECK_EQUAL(ibv_destroy_cq(second), 0);
	await_channel(&pair[1]); /* that of the other queue is still there */
	CHECK_EQUAL(poll(&file, 1, 0), 0);
	CHECK_EQUAL(ibv_destroy_qp(qps[0]), 0);
	pair_close(pair);
}

static void queue_limits(void)
{
	struct pair_options options = { .rnr_retry = 7, .depth = 4, .sges = 1, .cqe = 2 };
	struct side pair[2];
	struct ibv_send_wr *bad;

	pair_open(pair, 4096, &options);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, i, 0, 8), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, 4, 0, 8), ENOMEM);
	struct ibv_sge sges[2] = { sge_of(&pair[0], 0, 8), sge_of(&pair[0], 8, 8) };
	struct ibv_send_wr wr = { .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_SEND };
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &wr, &bad), EINVAL);
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQUAL(post_recv(&pair[0], i, 0, 8), 0);
	CHECK_EQUAL(post_recv(&pair[0], 4, 0, 8), ENOMEM);
	/* four completions into a queue of two */
	for (uint64_t i = 0; i < 4; i++)
		CHECK_EQUAL(post_recv(&pair[1], i, 0, 8), 0);
	struct ibv_async_event event = expect_event(pair[0].context, IBV_EVENT_CQ_ERR);
	CHECK(event.element.cq == pair[0].cq);
	ibv_ack_async_event(&event);
	pair_close(pair);
}

/* A chain whose third request is wrong: two are posted, the third is named. */
static void bad_request(void)
{
	struct side pair[2];
	struct ibv_send_wr chain[4], *bad;
	struct ibv_sge sge;

	pair_open(pair, 4096, &defaults);
	sge = sge_of(&pair[0], 0, 8);
	memset(chain, 0, sizeof(chain));
	for (int i = 0; i < 4; i++) {
		chain[i] = (struct ibv_send_wr){ .wr_id = (uint64_t)i,
						 .next = i < 3 ? &chain[i + 1] : NULL,
						 .sg_list = &sge,
						 .num_sge = 1,
						 .opcode = IBV_WR_RDMA_WRITE,
						 .send_flags = IBV_SEND_SIGNALED };
		chain[i].wr.rdma.remote_addr = (uintptr_t)pair[1].memory;
		chain[i].wr.rdma.rkey = pair[1].mr->rkey;
	}
	chain[2].opcode = IBV_WR_TSO;
	CHECK_EQUAL(ibv_post_send(pair[0].qp, chain, &bad), EINVAL);
	CHECK(bad == &chain[2]);
	expect(pair[0].cq, 0, IBV_WC_SUCCESS);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	expect_nothing(pair[0].cq);
	pair_close(pair);
}

struct talker {
	struct side *own, *peer;
	pthread_t thread;
};

static void *talk(void *argument)
{
	enum { ROUNDS = 20000, DEPTH = 16 };
	struct talker *talker = argument;
	struct side *own = talker->own;
	uint64_t posted = 0, sent = 0, received = 0;

	while (sent + received < 2 * ROUNDS) {
		struct ibv_wc wc;

		while (posted < ROUNDS && posted - sent < DEPTH) {
			CHECK_EQUAL(post(own, talker->peer, IBV_WR_SEND_WITH_IMM, posted,
					 1024 * (posted % 64) + 512, 1 + posted % 300),
				    0);
			posted++;
		}
		if (!ibv_poll_cq(own->cq, 1, &wc))
			continue;
		CHECK_EQUAL(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK_EQUAL(wc.wr_id, sent);
			sent++;
			continue;
		}
		CHECK_EQUAL(be32toh(wc.imm_data), received);
		received++;
		CHECK_EQUAL(post_recv(own, wc.wr_id, 1024 * wc.wr_id, 512), 0);
	}
	return NULL;
}

/* Both ends send at once, so requests carry acknowledgements that overtake those sent alone. */
static void both_directions(void)
{
	struct side pair[2];
	struct talker talkers[2] = { { .own = &pair[0], .peer = &pair[1] },
				     { .own = &pair[1], .peer = &pair[0] } };

	pair_open(pair, 65536, &defaults);
	for (int i = 0; i < 2; i++)
		for (uint64_t id = 0; id < 64; id++)
			CHECK_EQUAL(post_recv(&pair[i], id, 1024 * id, 512), 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(pthread_create(&talkers[i].thread, NULL, talk, &talkers[i]), 0);
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(pthread_join(talkers[i].thread, NULL), 0);
	pair_close(pair);
}

/* More reads than may be outstanding, and a fence behind them. */
static void read_depth(void)
{
	struct pair_options options = defaults;
	struct side pair[2];
	struct ibv_send_wr *bad;

	options.reads = 1;
	pair_open(pair, 1 << 20, &options);
	fill(pair[1].memory, 1 << 20, 4);
	for (uint64_t i = 0; i < 10; i++)
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_READ, i, i * 100000, 100000), 0);
	/* writes back what the reads have brought: wrong without the fence */
	struct ibv_sge sge = sge_of(&pair[0], 900000, 8);
	struct ibv_send_wr wr = { .wr_id = 10,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE };
	wr.wr.rdma.remote_addr = (uintptr_t)pair[1].memory + 1000008;
	wr.wr.rdma.rkey = pair[1].mr->rkey;
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &wr, &bad), 0);
	for (uint64_t i = 0; i <= 10; i++)
		expect(pair[0].cq, i, IBV_WC_SUCCESS);
	CHECK(!memcmp(pair[0].memory, pair[1].memory, 1000000));
	CHECK(!memcmp(pair[1].memory + 1000008, pair[1].memory + 900000, 8));
	pair_close(pair);
}

/* More queue pairs than one port of numbers has; all of them talk. */
static void many_queue_pairs(void)
{
	enum { COUNT = 600 };
	static struct ibv_qp *left[COUNT], *right[COUNT];
	struct pair_options options = { .rnr_retry = 7, .depth = 2, .cqe = 1024 };
	struct side pair[2];

	side_open(&pair[0], 8 * COUNT, &options);
	side_open(&pair[1], 8 * COUNT, &options);
	for (int i = 0; i < COUNT; i++) {
		left[i] = make_qp(&pair[0], &options, NULL);
		right[i] = make_qp(&pair[1], &options, NULL);
		connect_qps(left[i], right[i], &options);
	}
	fill(pair[0].memory, 8 * COUNT, 6);
	for (int i = 0; i < COUNT; i++) {
		pair[0].qp = left[i];
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, (uint64_t)i, (size_t)i * 8, 8), 0);
	}
	for (int i = 0; i < COUNT; i++)
		CHECK_EQUAL(next_completion(pair[0].cq).status, IBV_WC_SUCCESS);
	CHECK(!memcmp(pair[0].memory, pair[1].memory, 8 * COUNT));
	for (int i = 0; i < COUNT; i++) {
		CHECK_EQUAL(ibv_destroy_qp(left[i]), 0);
		CHECK_EQUAL(ibv_destroy_qp(right[i]), 0);
	}
	pair[0].qp = pair[1].qp = NULL;
	pair_close(pair);
}

/* A program that waits on memory sees all of a message once it sees its last byte. */
static void memory_polling(void)
{
	enum { ROUNDS = 300, SIZE = 3000 };
	struct side pair[2];

	pair_open(pair, 4096, &defaults);
	for (int round = 1; round <= ROUNDS; round++) {
		volatile uint8_t *last = pair[1].memory + SIZE - 1;
		double end = seconds() + WAIT_S;

		memset(pair[0].memory, round % 251 + 1, SIZE);
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, (uint64_t)round, 0, SIZE), 0);
		while (*last != round % 251 + 1)
			CHECK(seconds() < end);
		atomic_thread_fence(memory_order_acquire);
		for (int i = 0; i < SIZE; i++)
			CHECK_EQUAL(pair[1].memory[i], round % 251 + 1);
		expect(pair[0].cq, (uint64_t)round, IBV_WC_SUCCESS);
	}
	pair_close(pair);
}

/* A child made by fork neither disturbs its parent's device nor is it disturbed; it may open its own. */
static void forked_child(void)
{
	struct side pair[2], own[2];
	int status;

	pair_open(pair, 65536, &defaults);
	for (uint64_t i = 0; i < 8; i++)
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_SEND, i, 0, 65536), 0);
	pid_t child = fork();
	if (!child) {
		struct ibv_wc wc;

		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), EINVAL);
		CHECK_EQUAL(ibv_poll_cq(pair[0].cq, 1, &wc), 0);
		CHECK(!ibv_alloc_pd(pair[0].context));
		pair_open(own, 4096, &defaults);
		CHECK_EQUAL(post(&own[0], &own[1], IBV_WR_RDMA_WRITE, 2, 0, 8), 0);
		expect(own[0].cq, 2, IBV_WC_SUCCESS);
		pair_close(own);
		exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
	for (uint64_t i = 0; i < 8; i++) {
		CHECK_EQUAL(post_recv(&pair[1], i, 0, 65536), 0);
		expect(pair[1].cq, i, IBV_WC_SUCCESS);
		expect(pair[0].cq, i, IBV_WC_SUCCESS);
	}
	pair_close(pair);
}

/* Memory whose key was given back is not written any more, even in the middle of a message. */
static void deregistered_target(void)
{
	struct side pair[2];
	struct ibv_send_wr *bad;
	const size_t size = 64 << 20;
	uint8_t *target = map_memory(size);

	pair_open(pair, 4096, &defaults);
	struct ibv_mr *to = ibv_reg_mr(pair[1].pd, target, size, ALL_ACCESS);
	uint8_t *source = map_memory(size);
	struct ibv_mr *from = ibv_reg_mr(pair[0].pd, source, size, 0);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = (uint32_t)size, .lkey = from->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };

	memset(source, 1, size);
	wr.wr.rdma.remote_addr = (uintptr_t)target;
	wr.wr.rdma.rkey = to->rkey;
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &wr, &bad), 0);
	for (double end = seconds() + WAIT_S; !*(volatile uint8_t *)target;)
		CHECK(seconds() < end);
	CHECK_EQUAL(ibv_dereg_mr(to), 0);
	memset(target, 2, size);
	struct ibv_wc wc = next_completion(pair[0].cq);
	/* where the message has been faster, there is nothing left to refuse */
	CHECK(wc.status == IBV_WC_REM_ACCESS_ERR || wc.status == IBV_WC_SUCCESS);
	for (size_t i = 0; i < size; i++)
		CHECK_EQUAL(target[i], 2);
	CHECK_EQUAL(ibv_dereg_mr(from), 0);
	pair_close(pair);
	free(source);
	free(target);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "data", data },
	{ "scatter_gather", scatter_gather },
	{ "builders", builders },
	{ "bad_key", bad_key },
	{ "bad_bounds", bad_bounds },
	{ "bad_access", bad_access },
	{ "bad_alignment", bad_alignment },
	{ "bad_local_key", bad_local_key },
	{ "bad_request", bad_request },
	{ "foreign_keys", foreign_keys },
	{ "receive_too_small", receive_too_small },
	{ "receiver_not_ready", receiver_not_ready },
	{ "rnr_retries_exceeded", rnr_retries_exceeded },
	{ "peer_destroyed", peer_destroyed },
	{ "peer_missing", peer_missing },
	{ "late_peer", late_peer },
	{ "flush_order", flush_order },
	{ "state_machine", state_machine },
	{ "send_queue_drained", send_queue_drained },
	{ "shared_receives", shared_receives },
	{ "atomics", atomics },
	{ "completion_channel", completion_channel },
	{ "queue_limits", queue_limits },
	{ "both_directions", both_directions },
	{ "read_depth", read_depth },
	{ "many_queue_pairs", many_queue_pairs },
	{ "memory_polling", memory_polling },
	{ "forked_child", forked_child },
	{ "deregistered_target", deregistered_target },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		if (argc < 2)
			puts(cases[i].name);
		else if (!strcmp(argv[1], cases[i].name) || !strcmp(argv[1], "all"))
			cases[i].run();
	}
	return 0;
}
