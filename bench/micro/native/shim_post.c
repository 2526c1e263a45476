/* Times post_send and poll_cq with and without the shim, in turns within one process, so that both run
 * under the same conditions.
 *
 * Prints the time that the shim adds to one work request (its post and its share of the poll), one line in
 * ns for each pair of rounds. Arguments: pairs, work requests per post, work requests per round.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct ibv_context *null_open(void);

struct side {
	struct ibv_context *context;
	struct ibv_qp *qp;
	struct ibv_cq *cq;
};

static double now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static struct side make(struct ibv_context *context)
{
	struct ibv_pd pd = {.context = context};
	struct side s = {.context = context, .cq = ibv_create_cq(context, 4096, NULL, NULL, 0)};
	struct ibv_qp_init_attr attr = {.send_cq = s.cq, .recv_cq = s.cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 512, .max_send_sge = 1}};
	struct ibv_qp_attr state = {.qp_state = IBV_QPS_RTS};

	s.qp = ibv_create_qp(&pd, &attr);
	ibv_modify_qp(s.qp, &state, IBV_QP_STATE);
	return s;
}

/* Posts `total` work requests, `chain` at a time, and polls after every sixteen. Returns the ns for one. */
static double round_ns(const struct side *s, unsigned total, unsigned chain)
{
	struct ibv_sge sge = {.length = 64};
	struct ibv_send_wr wr[64], *bad;
	struct ibv_wc wc[16];
	unsigned outstanding = 0;
	double start;

	for (unsigned i = 0; i < chain; i++)
		wr[i] = (struct ibv_send_wr){.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
					     .send_flags = IBV_SEND_SIGNALED, .next = i + 1 < chain ? &wr[i + 1] : NULL};
	start = now_ns();
	for (unsigned posted = 0; posted < total; posted += chain) {
		if (ibv_post_send(s->qp, wr, &bad))
			exit(1);
		outstanding += chain;
		while (outstanding >= 16)
			outstanding -= (unsigned)ibv_poll_cq(s->cq, 16, wc);
	}
	while (outstanding)
		outstanding -= (unsigned)ibv_poll_cq(s->cq, 16, wc);
	return (now_ns() - start) / total;
}

int main(int argc, char **argv)
{
	struct ibv_device device = {.name = "null0"};
	struct side bare = make(null_open()), shimmed = make(ibv_open_device(&device));
	unsigned pairs, chain, total;

	if (argc != 4 || bare.context->ops.post_send == shimmed.context->ops.post_send) {
		fprintf(stderr, "shim_post: run it with the shim preloaded: shim_post PAIRS CHAIN TOTAL\n");
		return 2;
	}
	pairs = (unsigned)atoi(argv[1]);
	chain = (unsigned)atoi(argv[2]);
	total = (unsigned)atoi(argv[3]);
	round_ns(&bare, total * 10, chain);
	round_ns(&shimmed, total * 10, chain);
	for (unsigned i = 0; i < pairs; i++) {
		double without = round_ns(&bare, total, chain);

		printf("%.2f\n", round_ns(&shimmed, total, chain) - without);
	}
	return 0;
}
