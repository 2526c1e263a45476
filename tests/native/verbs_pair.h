/* Two connected RC queue pairs in one process, for tests of a verbs device. Every failure of a check ends the
 * program. */
#ifndef VERBS_PAIR_H
#define VERBS_PAIR_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: %s: not true: %s (errno %s)\n", __FILE__, __LINE__,          \
				__func__, #condition, strerror(errno));                                      \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

#define CHECK_EQUAL(left, right)                                                                             \
	do {                                                                                                 \
		long long left_ = (long long)(left), right_ = (long long)(right);                            \
		if (left_ != right_) {                                                                       \
			fprintf(stderr, "%s:%d: %s: %s is %lld, %s is %lld\n", __FILE__, __LINE__, __func__, \
				#left, left_, #right, right_);                                               \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

enum { WAIT_S = 100 };

/* One side. It has its own context, so that both ends are like two processes. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	size_t size;
};

struct pair_options {
	uint32_t depth; /* of send and receive queue, 0: 64 */
	uint32_t sges;	/* 0: 4 */
	uint32_t inline_bytes;
	uint32_t cqe;  /* 0: 256 */
	int access;    /* of memory regions, 0: everything */
	int qp_access; /* 0: everything */
	uint8_t rnr_retry;
	uint8_t min_rnr_timer;
	uint8_t reads; /* 0: 8 */
	uint8_t traffic_class[2];
	int sq_sig_all;
	int with_channel;
	struct ibv_srq *srq; /* of the second side */
};

enum {
	ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	IBV_ACCESS_REMOTE_ATOMIC
};

static inline struct ibv_context *open_context(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline uint8_t *map_memory(size_t size)
{
	uint8_t *memory = aligned_alloc(4096, (size + 4095) / 4096 * 4096);

	CHECK(memory);
	memset(memory, 0, size);
	return memory;
}

static inline void side_open(struct side *side, size_t size, const struct pair_options *options)
{
	side->context = open_context();
	side->pd = ibv_alloc_pd(side->context);
	CHECK(side->pd);
	side->channel = options->with_channel ? ibv_create_comp_channel(side->context) : NULL;
	CHECK(side->channel || !options->with_channel);
	side->cq =
		ibv_create_cq(side->context, options->cqe ? (int)options->cqe : 256, NULL, side->channel, 0);
	CHECK(side->cq);
	side->size = size;
	side->memory = map_memory(size);
	side->mr = ibv_reg_mr(side->pd, side->memory, size, options->access ? options->access : ALL_ACCESS);
	CHECK(side->mr);
	side->qp = NULL;
}

static inline struct ibv_qp *make_qp(struct side *side, const struct pair_options *options,
				     struct ibv_srq *srq)
{
	uint32_t depth = options->depth ? options->depth : 64, sges = options->sges ? options->sges : 4;
	struct ibv_qp_init_attr attr = {
		.send_cq = side->cq,
		.recv_cq = side->cq,
		.srq = srq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = options->sq_sig_all,
		.cap = { .max_send_wr = depth,
			 .max_recv_wr = depth,
			 .max_send_sge = sges,
			 .max_recv_sge = sges,
			 .max_inline_data = options->inline_bytes },
	};
	struct ibv_qp *qp = ibv_create_qp(side->pd, &attr);

	CHECK(qp);
	return qp;
}

static inline void to_init(struct ibv_qp *qp, const struct pair_options *options)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = (unsigned)(options->qp_access ? options->qp_access
										     : ALL_ACCESS) };

	CHECK_EQUAL(ibv_modify_qp(qp, &attr,
				  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
		    0);
}

static inline struct ibv_qp_attr rtr_attributes(struct ibv_qp *qp, uint32_t peer,
						const struct pair_options *options, uint8_t traffic_class)
{
	uint8_t reads = options->reads ? options->reads : 8;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = IBV_MTU_4096,
				    .dest_qp_num = peer,
				    .max_dest_rd_atomic = reads,
				    .min_rnr_timer = options->min_rnr_timer,
				    .ah_attr = {
					    .is_global = 1,
					    .port_num = 1,
					    .grh = { .hop_limit = 64, .traffic_class = traffic_class } } };

	CHECK_EQUAL(ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid), 0);
	return attr;
}

enum {
	RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	RTS_MASK = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC
};

static inline void to_rtr(struct ibv_qp *qp, uint32_t peer, const struct pair_options *options,
			  uint8_t traffic_class)
{
	struct ibv_qp_attr attr = rtr_attributes(qp, peer, options, traffic_class);

	CHECK_EQUAL(ibv_modify_qp(qp, &attr, RTR_MASK), 0);
}

static inline void to_rts(struct ibv_qp *qp, const struct pair_options *options)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS,
				    .timeout = 14,
				    .retry_cnt = 7,
				    .rnr_retry = options->rnr_retry,
				    .max_rd_atomic = options->reads ? options->reads : 8 };

	CHECK_EQUAL(ibv_modify_qp(qp, &attr, RTS_MASK), 0);
}

static inline void connect_qps(struct ibv_qp *a, struct ibv_qp *b, const struct pair_options *options)
{
	to_init(a, options);
	to_init(b, options);
	to_rtr(a, b->qp_num, options, options->traffic_class[0]);
	to_rtr(b, a->qp_num, options, options->traffic_class[1]);
	to_rts(a, options);
	to_rts(b, options);
}

static inline void pair_open(struct side pair[2], size_t size, const struct pair_options *options)
{
	side_open(&pair[0], size, options);
	side_open(&pair[1], size, options);
	pair[0].qp = make_qp(&pair[0], options, NULL);
	pair[1].qp = make_qp(&pair[1], options, options->srq);
	connect_qps(pair[0].qp, pair[1].qp, options);
}

/* Destroys everything in the order that the interface requires; each step must succeed. */
static inline void side_close(struct side *side)
{
	if (side->qp)
		CHECK_EQUAL(ibv_destroy_qp(side->qp), 0);
	CHECK_EQUAL(ibv_destroy_cq(side->cq), 0);
	if (side->channel)
		CHECK_EQUAL(ibv_destroy_comp_channel(side->channel), 0);
	CHECK_EQUAL(ibv_dereg_mr(side->mr), 0);
	CHECK_EQUAL(ibv_dealloc_pd(side->pd), 0);
	CHECK_EQUAL(ibv_close_device(side->context), 0);
	free(side->memory);
}

static inline void pair_close(struct side pair[2])
{
	side_close(&pair[0]);
	side_close(&pair[1]);
}

static inline struct ibv_sge sge_of(const struct side *side, size_t offset, size_t length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)side->memory + offset,
				 .length = (uint32_t)length,
				 .lkey = side->mr->lkey };
}

static inline int post_recv(struct side *side, uint64_t wr_id, size_t offset, size_t length)
{
	struct ibv_sge sge = sge_of(side, offset, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	return ibv_post_recv(side->qp, &wr, &bad);
}

/* Posts a signaled request between the same offsets of both memories. */
static inline int post(struct side *from, const struct side *to, enum ibv_wr_opcode opcode, uint64_t wr_id,
		       size_t offset, size_t length)
{
	struct ibv_sge sge = sge_of(from, offset, length);
	struct ibv_send_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = length ? 1 : 0,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED,
				  .imm_data = htobe32((uint32_t)wr_id) },
			   *bad;

	wr.wr.rdma.remote_addr = (uintptr_t)to->memory + offset;
	wr.wr.rdma.rkey = to->mr->rkey;
	return ibv_post_send(from->qp, &wr, &bad);
}

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	double end = seconds() + WAIT_S;
	struct ibv_wc wc;
	int count;

	do {
		count = ibv_poll_cq(cq, 1, &wc);
		CHECK(count >= 0);
	} while (!count && seconds() < end);
	CHECK_EQUAL(count, 1);
	return wc;
}

static inline struct ibv_wc expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_completion(cq);

	CHECK_EQUAL(wc.wr_id, wr_id);
	CHECK_EQUAL(wc.status, status);
	return wc;
}

static inline void expect_nothing(struct ibv_cq *cq)
{
	struct ibv_wc wc;

	CHECK_EQUAL(ibv_poll_cq(cq, 1, &wc), 0);
}

static inline struct ibv_async_event expect_event(struct ibv_context *context, enum ibv_event_type type)
{
	struct pollfd file = { .fd = context->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	CHECK_EQUAL(poll(&file, 1, WAIT_S * 1000), 1);
	CHECK_EQUAL(ibv_get_async_event(context, &event), 0);
	CHECK_EQUAL(event.event_type, type);
	return event;
}

static inline void fill(uint8_t *memory, size_t size, uint32_t seed)
{
	for (size_t i = 0; i < size; i++) {
		seed = seed * 1664525 + 1013904223;
		memory[i] = (uint8_t)(seed >> 24);
	}
}

#endif
