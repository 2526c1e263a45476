/* Queue pairs from state to state; peers that are gone, late or missing; fork. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <sys/wait.h>

void peer_destroyed(void)
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

void peer_missing(void)
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
void late_peer(void)
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

void flush_order(void)
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

void state_machine(void)
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

/* ibv_modify_qp and ibv_query_qp of libibverbs note a queue pair's state without a lock, when they know it: a queue pair
 * that has failed meanwhile has failed. */
void state_noted_late(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	struct side pair[2];

	pair_open(pair, 4096, &defaults);
	CHECK_EQUAL(ibv_modify_qp(pair[0].qp, &attr, IBV_QP_STATE), 0);
	pair[0].qp->state = IBV_QPS_RTS;
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	expect(pair[0].cq, 1, IBV_WC_WR_FLUSH_ERR);
	CHECK_EQUAL(ibv_query_qp(pair[0].qp, &attr, IBV_QP_STATE, &init), 0);
	CHECK_EQUAL(attr.qp_state, IBV_QPS_ERR);
	pair_close(pair);
}

/* In SQD nothing new is sent, what was begun ends, then there is an event. */
void send_queue_drained(void)
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

/* A child made by fork neither disturbs its parent's device nor is it disturbed; it may open its own. */
void forked_child(void)
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

/* Nor does a child take completions: they are its parent's, one of whose threads may be at the queue in this moment. */
void completions_of_the_parent(void)
{
	struct pair_options options = defaults;
	struct side pair[2];
	int status;

	options.with_channel = 1;
	pair_open(pair, 4096, &options);
	CHECK_EQUAL(ibv_req_notify_cq(pair[0].cq, 0), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	struct pollfd file = { .fd = pair[0].channel->fd, .events = POLLIN };
	CHECK_EQUAL(poll(&file, 1, WAIT_S * 1000), 1);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		expect_nothing(pair[0].cq);
		exit(0);
	}
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	pair_close(pair);
}
