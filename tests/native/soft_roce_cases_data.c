/* What arrives: every operation, every size, one or many at once. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <endian.h>
#include <pthread.h>
#include <stdatomic.h>

/* Every operation, sizes around every boundary, offsets unaligned; nothing around the target may change. */
void data(void)
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
void scatter_gather(void)
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
void builders(void)
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
void atomics(void)
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
void both_directions(void)
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
void read_depth(void)
{
	struct pair_options options = defaults;
	struct side pair[2];
	struct ibv_send_wr *bad;

	options.reads = 1;
	pair_open(pair, 1 << 20, &options);
	fill(pair[1].memory, 1 << 20, 4);
	for (uint64_t i = 0; i < 10; i++)
		CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_READ, i, i * 100000, 100000), 0);
	/* writes back what the reads have brought: wrong data without the fence */
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
void many_queue_pairs(void)
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
void memory_polling(void)
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
