/* Queues: shared receives, completion channels, limits. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <pthread.h>
#include <rdma/ib_user_verbs.h>
#include <stdatomic.h>
#include <stdbool.h>

void shared_receives(void)
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
void completion_channel(void)
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

void queue_limits(void)
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

/* Destroys a queue pair, or a completion queue if there is no queue pair, on a thread of its own. */
struct destroyer {
	pthread_t thread;
	struct side *side;
	atomic_int id; /* of the thread */
	atomic_bool acknowledged, done;
};

static void *destroy(void *argument)
{
	struct destroyer *destroyer = argument;
	int ret;

	atomic_store(&destroyer->id, gettid());
	ret = destroyer->side->qp ? ibv_destroy_qp(destroyer->side->qp) : ibv_destroy_cq(destroyer->side->cq);
	CHECK_EQUAL(ret, 0);
	CHECK(atomic_load(&destroyer->acknowledged));
	atomic_store(&destroyer->done, true);
	return NULL;
}

static void start_destroyer(struct destroyer *destroyer, struct side *side)
{
	char path[64], state;

	*destroyer = (struct destroyer){ .side = side };
	CHECK_EQUAL(pthread_create(&destroyer->thread, NULL, destroy, destroyer), 0);
	while (!atomic_load(&destroyer->id))
		sched_yield();
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", atomic_load(&destroyer->id));
	for (state = 0; state != 'S' && !atomic_load(&destroyer->done); sched_yield()) {
		FILE *file = fopen(path, "r");

		CHECK(file);
		CHECK_EQUAL(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
		fclose(file);
	}
}

static void end_destroyer(struct destroyer *destroyer)
{
	CHECK_EQUAL(pthread_join(destroyer->thread, NULL), 0);
}

/* A thread of the program has read an event and is about to report that. The event's object stays until
 * the event is acknowledged. */
void destruction_awaits_readers(void)
{
	struct pair_options options = defaults;
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	struct ib_uverbs_async_event_desc raised;
	struct ib_uverbs_comp_event_desc completion;
	struct destroyer destroyer;
	struct side side;
	struct ibv_srq *srq;

	options.with_channel = 1;
	side_open(&side, 4096, &options);
	srq = ibv_create_srq(side.pd, &init);
	CHECK(srq);
	side.qp = make_qp(&side, &options, srq);
	to_init(side.qp, &options);
	to_rtr(side.qp, side.qp->qp_num, &options, 0);
	to_rts(side.qp, &options);
	CHECK_EQUAL(ibv_req_notify_cq(side.cq, 0), 0);
	CHECK_EQUAL(post(&side, &side, IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	expect(side.cq, 1, IBV_WC_SUCCESS);
	CHECK_EQUAL(ibv_modify_qp(side.qp, &error, IBV_QP_STATE), 0);

	/* as ibv_get_async_event and ibv_get_cq_event begin */
	CHECK_EQUAL(read(side.context->async_fd, &raised, sizeof(raised)), sizeof(raised));
	CHECK_EQUAL(raised.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	struct ibv_async_event event = { .element.qp = side.qp, .event_type = IBV_EVENT_QP_LAST_WQE_REACHED };
	start_destroyer(&destroyer, &side);
	atomic_store(&destroyer.acknowledged, true);
	ibv_ack_async_event(&event);
	end_destroyer(&destroyer);
	side.qp = NULL;

	CHECK_EQUAL(read(side.channel->fd, &completion, sizeof(completion)), sizeof(completion));
	CHECK_EQUAL(completion.cq_handle, (uintptr_t)side.cq);
	start_destroyer(&destroyer, &side);
	atomic_store(&destroyer.acknowledged, true);
	ibv_ack_cq_events(side.cq, 1);
	end_destroyer(&destroyer);

	side.cq = ibv_create_cq(side.context, 1, NULL, NULL, 0);
	CHECK(side.cq);
	CHECK_EQUAL(ibv_destroy_srq(srq), 0);
	side_close(&side);
}
