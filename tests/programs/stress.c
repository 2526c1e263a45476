/* Posts many work requests and checks that the provider, and whatever sits before it, keeps verbs' promises:
 * every signaled work request completes once, in order, with its own wr_id; ENOMEM comes only when the queue is full;
 * data arrive whole and in order within a queue pair.
 *
 *   stress --work-requests 1000000 --queue-pairs 4 --threads 2 [--seed 1] [--extended] [--device NAME] [--forks 8]
 *          [--execs 8]
 *
 * Each thread owns a completion queue and some connected pairs of queue pairs of this very process. Chains of 1..16
 * requests of mixed kinds (write, write with immediate, send, read; inline or not; signaled or not) are posted until
 * the total is reached. --extended posts through ibv_wr_* builders. --forks calls ibv_fork_init first and forks so many
 * children one after the other while the threads post; each posts on a device that it opens itself. Buffers have pages of their
 * own then, as ibv_fork_init demands of a program whose children use the heap: a child has no pages that were registered. --execs is
 * the same without that care, for children that start a program and do nothing before. Prints one JSON line; exit 0, or 1 with a
 * line on stderr at the first broken promise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEND_WRS = 128, RECV_WRS = 512, CHAIN_MAX = 16, CELL = 64, CELLS = 1024, INLINE = 64, THREADS_MAX = 16 };

static struct { uint64_t work_requests; int queue_pairs, threads, extended, forks, execs; uint64_t seed; const char *device; } option = {
	.work_requests = 100000, .queue_pairs = 4, .threads = 2, .seed = 1,
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

struct flow { /* one direction: `out` posts, `in` receives */
	struct ibv_qp *out, *in;
	uint8_t *source, *target;     /* CELLS cells each; cell of request n is n modulo CELLS */
	struct ibv_mr *source_mr, *target_mr;
	uint64_t posted, completed;   /* requests; completed counts those known done by a later signaled one */
	uint64_t signaled[SEND_WRS * 4]; /* wr_ids that must come back, oldest first */
	uint64_t signaled_head, signaled_tail;
	uint64_t arrivals_expected[RECV_WRS * 2]; /* request numbers that consume a receive, in order */
	uint64_t arrivals_head, arrivals_tail;
	uint64_t last_write[CELLS];   /* the request that last wrote each target cell */
	uint32_t max_send_wr;
	uint64_t full;		      /* how often ENOMEM came */
};

struct worker {
	pthread_t thread;
	struct ibv_cq *cq;
	struct flow *flows;
	int flow_count;
	uint64_t quota, random;
};

#define FAIL(...) (fprintf(stderr, "stress: " __VA_ARGS__), fputc('\n', stderr), exit(1))

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void fill_cell(uint8_t *cell, uint64_t number)
{
	for (int i = 0; i < CELL / 8; i++)
		((uint64_t *)cell)[i] = number * 0x9e3779b97f4a7c15u + i;
}

static void queue_pair_connect(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
				   .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };

	if (ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) ||
	    ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) ||
	    ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					    IBV_QP_MAX_QP_RD_ATOMIC))
		FAIL("modify_qp: %s", strerror(errno));
}

static struct ibv_qp *queue_pair_create(struct ibv_cq *cq, uint32_t *max_send_wr)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.cap = { .max_send_wr = SEND_WRS, .max_recv_wr = RECV_WRS, .max_send_sge = 2, .max_recv_sge = 1,
			 .max_inline_data = INLINE },
	};
	struct ibv_qp *qp;

	if (option.extended) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
				      IBV_QP_EX_WITH_RDMA_READ;
	}
	if (!(qp = ibv_create_qp_ex(context, &attr)))
		FAIL("create_qp_ex: %s", strerror(errno));
	*max_send_wr = attr.cap.max_send_wr;
	return qp;
}

static void flow_post_receive(struct flow *flow, uint64_t n)
{
	while (n--) {
		struct ibv_sge sge = { .addr = (uintptr_t)flow->target, .length = CELL, .lkey = flow->target_mr->lkey };
		/* a send lands in cell 0, which no write uses: its content is checked by order of arrival alone */
		struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
		if (ibv_post_recv(flow->in, &receive, &bad))
			FAIL("post_recv: %s", strerror(errno));
	}
}

static uint8_t *cells_create(void)
{
	uint8_t *cells = option.forks ? aligned_alloc(4096, CELLS * CELL) : malloc(CELLS * CELL);

	if (!cells)
		FAIL("no memory");
	return memset(cells, 0, CELLS * CELL);
}

static void flow_create(struct flow *flow, struct ibv_cq *cq)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	uint32_t unused;

	flow->out = queue_pair_create(cq, &flow->max_send_wr);
	flow->in = queue_pair_create(cq, &unused);
	flow->source = cells_create();
	flow->target = cells_create();
	flow->source_mr = ibv_reg_mr(pd, flow->source, CELLS * CELL, access);
	flow->target_mr = ibv_reg_mr(pd, flow->target, CELLS * CELL, access);
	if (!flow->source_mr || !flow->target_mr)
		FAIL("reg_mr: %s", strerror(errno));
	if (flow->max_send_wr >= CELLS / 2 || flow->max_send_wr >= SEND_WRS * 4)
		FAIL("the device gives %u work requests; this test is made for fewer", flow->max_send_wr);
	queue_pair_connect(flow->out, flow->in->qp_num);
	queue_pair_connect(flow->in, flow->out->qp_num);
	flow_post_receive(flow, RECV_WRS);
}

/* Builds one request; answers whether it consumes a receive. */
static int request_build(struct flow *flow, struct worker *worker, uint64_t number, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	static const enum ibv_wr_opcode kinds[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND,
						    IBV_WR_RDMA_READ };
	const uint64_t choice = next_random(&worker->random);
	const uint64_t cell = 1 + number % (CELLS - 1);
	uint8_t *source = flow->source + cell * CELL;

	*sge = (struct ibv_sge){ .addr = (uintptr_t)source, .length = CELL, .lkey = flow->source_mr->lkey };
	*wr = (struct ibv_send_wr){ .wr_id = number, .sg_list = sge, .num_sge = 1, .opcode = kinds[choice % 5] };
	wr->wr.rdma.remote_addr = (uintptr_t)(flow->target + cell * CELL);
	wr->wr.rdma.rkey = flow->target_mr->rkey;
	wr->imm_data = (uint32_t)number;
	if (wr->opcode == IBV_WR_RDMA_READ) { /* read cell 0 of the peer into our cell 0: its content is not checked */
		sge->addr = (uintptr_t)flow->source;
		wr->wr.rdma.remote_addr = (uintptr_t)flow->target;
	} else {
		fill_cell(source, number);
		if (choice >> 8 & 1)
			wr->send_flags |= IBV_SEND_INLINE;
	}
	/* at least every eighth is signaled, so that the queue can drain */
	if ((choice >> 16) % 4 == 0 || number % 8 == 7)
		wr->send_flags |= IBV_SEND_SIGNALED;
	return wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static int post_extended(struct flow *flow, struct ibv_send_wr *wr)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(flow->out);

	ibv_wr_start(qp);
	for (; wr; wr = wr->next) {
		qp->wr_id = wr->wr_id;
		qp->wr_flags = wr->send_flags & IBV_SEND_SIGNALED;
		switch (wr->opcode) {
		case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
		case IBV_WR_RDMA_WRITE_WITH_IMM:
			ibv_wr_rdma_write_imm(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, wr->imm_data);
			break;
		case IBV_WR_SEND: ibv_wr_send(qp); break;
		default: ibv_wr_rdma_read(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr); break;
		}
		if (wr->send_flags & IBV_SEND_INLINE)
			ibv_wr_set_inline_data(qp, (void *)(uintptr_t)wr->sg_list->addr, wr->sg_list->length);
		else
			ibv_wr_set_sge(qp, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	}
	return ibv_wr_complete(qp);
}

static uint64_t post_chain(struct worker *worker, struct flow *flow, uint64_t budget)
{
	struct ibv_send_wr wr[CHAIN_MAX], *bad = NULL;
	struct ibv_sge sge[CHAIN_MAX];
	uint64_t n = 1 + next_random(&worker->random) % CHAIN_MAX, accepted, consumes = 0;
	const uint64_t room_for_arrivals = RECV_WRS - (flow->arrivals_tail - flow->arrivals_head);

	if (n > budget)
		n = budget;
	if (n > room_for_arrivals)
		n = room_for_arrivals;
	if (option.extended && n > flow->max_send_wr - (flow->posted - flow->completed))
		n = flow->max_send_wr - (flow->posted - flow->completed); /* a builder chain is posted whole or not at all */
	if (n == 0)
		return 0;
	for (uint64_t i = 0; i < n; i++) {
		request_build(flow, worker, flow->posted + i, &wr[i], &sge[i]);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
	accepted = n;
	if (option.extended) {
		int error = post_extended(flow, wr);
		if (error)
			FAIL("ibv_wr_complete: %s with %" PRIu64 " outstanding", strerror(error), flow->posted - flow->completed);
	} else {
		int error = ibv_post_send(flow->out, wr, &bad);
		if (error && error != ENOMEM)
			FAIL("post_send: %s", strerror(error));
		if (error) {
			if (bad < wr || bad >= wr + n)
				FAIL("post_send: bad_wr does not point into the caller's chain");
			accepted = bad - wr;
			if (flow->posted + accepted - flow->completed < flow->max_send_wr)
				FAIL("ENOMEM with only %" PRIu64 " of %u outstanding", flow->posted + accepted - flow->completed,
				     flow->max_send_wr);
			flow->full++;
		}
	}
	for (uint64_t i = 0; i < accepted; i++) {
		const uint64_t number = flow->posted + i;
		if (wr[i].send_flags & IBV_SEND_SIGNALED)
			flow->signaled[flow->signaled_tail++ % (SEND_WRS * 4)] = number;
		if (wr[i].opcode == IBV_WR_RDMA_WRITE || wr[i].opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
			flow->last_write[1 + number % (CELLS - 1)] = number + 1;
		if (wr[i].opcode == IBV_WR_SEND || wr[i].opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			flow->arrivals_expected[flow->arrivals_tail++ % (RECV_WRS * 2)] =
				number << 1 | (wr[i].opcode == IBV_WR_SEND);
			consumes++;
		}
	}
	flow->posted += accepted;
	return accepted;
}

static void completion_check(struct worker *worker, const struct ibv_wc *wc)
{
	for (int i = 0; i < worker->flow_count; i++) {
		struct flow *flow = &worker->flows[i];
		if (wc->qp_num == flow->out->qp_num) {
			if (flow->signaled_head == flow->signaled_tail)
				FAIL("a completion that was not asked for: wr_id %" PRIu64, wc->wr_id);
			const uint64_t expected = flow->signaled[flow->signaled_head++ % (SEND_WRS * 4)];
			if (wc->wr_id != expected)
				FAIL("completion %" PRIu64 " where %" PRIu64 " was due", wc->wr_id, expected);
			flow->completed = expected + 1;
			return;
		}
		if (wc->qp_num == flow->in->qp_num) {
			if (flow->arrivals_head == flow->arrivals_tail)
				FAIL("an arrival that was not sent");
			const uint64_t expected = flow->arrivals_expected[flow->arrivals_head++ % (RECV_WRS * 2)];
			const int is_send = wc->opcode == IBV_WC_RECV;
			if (is_send != (int)(expected & 1) || (!is_send && wc->imm_data != (uint32_t)(expected >> 1)))
				FAIL("arrival out of order: expected request %" PRIu64, expected >> 1);
			flow_post_receive(flow, 1);
			return;
		}
	}
	FAIL("a completion for an unknown queue pair %#x", wc->qp_num);
}

static void drain(struct worker *worker)
{
	struct ibv_wc wc[32];
	const int n = ibv_poll_cq(worker->cq, 32, wc);

	if (n < 0)
		FAIL("poll_cq failed");
	if (n == 0)
		sched_yield();
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS)
			FAIL("completion status %s, wr_id %" PRIu64, ibv_wc_status_str(wc[i].status), wc[i].wr_id);
		completion_check(worker, &wc[i]);
	}
}

static int flow_idle(const struct flow *flow)
{
	return flow->signaled_head == flow->signaled_tail && flow->arrivals_head == flow->arrivals_tail;
}

/* A last signaled write, so that all before it is known to be done. */
static void flow_seal(struct worker *worker, struct flow *flow)
{
	const uint64_t number = flow->posted;
	struct ibv_sge sge = { .addr = (uintptr_t)flow->source, .length = 8, .lkey = flow->source_mr->lkey };
	struct ibv_send_wr seal = { .wr_id = number, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				    .send_flags = IBV_SEND_SIGNALED }, *bad;

	seal.wr.rdma.remote_addr = (uintptr_t)flow->target;
	seal.wr.rdma.rkey = flow->target_mr->rkey;
	while (flow->posted - flow->completed >= flow->max_send_wr)
		drain(worker);
	if (option.extended ? post_extended(flow, &seal) : ibv_post_send(flow->out, &seal, &bad))
		FAIL("post of the last request: %s", strerror(errno));
	flow->signaled[flow->signaled_tail++ % (SEND_WRS * 4)] = number;
	flow->posted++;
}

static void *worker_run(void *argument)
{
	struct worker *worker = argument;

	for (uint64_t left = worker->quota; left;) {
		for (int i = 0; i < worker->flow_count && left; i++)
			left -= post_chain(worker, &worker->flows[i], left);
		drain(worker);
	}
	for (int i = 0; i < worker->flow_count; i++)
		flow_seal(worker, &worker->flows[i]);
	for (int i = 0; i < worker->flow_count; i++) {
		struct flow *flow = &worker->flows[i];
		uint8_t cell[CELL];
		while (!flow_idle(flow))
			drain(worker);
		for (int c = 1; c < CELLS; c++) {
			if (!flow->last_write[c])
				continue;
			fill_cell(cell, flow->last_write[c] - 1);
			if (memcmp(cell, flow->target + c * CELL, CELL))
				FAIL("cell %d does not hold request %" PRIu64, c, flow->last_write[c] - 1);
		}
	}
	return NULL;
}

static void run(void);

static void child_run(void)
{
	if (option.execs) {
		execl("/proc/self/exe", "stress", "--work-requests", "2000", "--queue-pairs", "1", "--threads", "1", NULL);
		_exit(1);
	}
	option.work_requests = 2000;
	option.queue_pairs = option.threads = 1;
	option.forks = 0;
	context = NULL;
	run();
	fflush(stdout);
	_exit(0);
}

static void fork_children(void)
{
	for (int i = 0; i < option.forks + option.execs; i++) {
		pid_t child = fork();
		int status;

		if (child < 0)
			FAIL("fork: %s", strerror(errno));
		if (child == 0)
			child_run();
		if (waitpid(child, &status, 0) != child || status)
			FAIL("child %d ended with status %#x", i, status);
	}
}

static void run(void)
{
	static struct worker workers[THREADS_MAX];
	struct ibv_device **list;
	uint64_t posted = 0, full = 0;
	int n;

	if (option.forks + option.execs && ibv_fork_init())
		FAIL("ibv_fork_init: %s", strerror(errno));
	list = ibv_get_device_list(&n);
	for (int i = 0; i < n && !context; i++)
		if (!option.device || !strcmp(option.device, ibv_get_device_name(list[i])))
			context = ibv_open_device(list[i]);
	if (!context || !(pd = ibv_alloc_pd(context)) || ibv_query_gid(context, 1, 0, &gid))
		FAIL("no RDMA device");
	for (int t = 0; t < option.threads; t++) {
		struct worker *worker = &workers[t];
		worker->random = option.seed * 0x9e3779b97f4a7c15u + t + 1;
		worker->quota = option.work_requests / option.threads;
		worker->flow_count = option.queue_pairs / option.threads;
		worker->flows = calloc(worker->flow_count, sizeof(*worker->flows));
		if (!(worker->cq = ibv_create_cq(context, 1 << 14, NULL, NULL, 0)))
			FAIL("create_cq: %s", strerror(errno));
		for (int i = 0; i < worker->flow_count; i++)
			flow_create(&worker->flows[i], worker->cq);
	}
	for (int t = 0; t < option.threads; t++)
		if (pthread_create(&workers[t].thread, NULL, worker_run, &workers[t]))
			FAIL("pthread_create");
	fork_children();
	for (int t = 0; t < option.threads; t++) {
		pthread_join(workers[t].thread, NULL);
		for (int i = 0; i < workers[t].flow_count; i++) {
			struct flow *flow = &workers[t].flows[i];
			posted += flow->posted;
			full += flow->full;
			ibv_destroy_qp(flow->out);
			ibv_destroy_qp(flow->in);
			ibv_dereg_mr(flow->source_mr);
			ibv_dereg_mr(flow->target_mr);
			free(flow->source);
			free(flow->target);
		}
		ibv_destroy_cq(workers[t].cq);
		free(workers[t].flows);
	}
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	ibv_free_device_list(list);
	printf("{\"work_requests\": %" PRIu64 ", \"queue_full\": %" PRIu64 "}\n", posted, full);
}

int main(int argc, char **argv)
{
	static const struct option long_options[] = {
		{ "work-requests", 1, 0, 'n' }, { "queue-pairs", 1, 0, 'q' }, { "threads", 1, 0, 't' }, { "seed", 1, 0, 's' },
		{ "extended", 0, 0, 'x' },	{ "device", 1, 0, 'd' },      { "forks", 1, 0, 'f' },	{ "execs", 1, 0, 'e' },	{ 0 },
	};
	for (int c; (c = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
		switch (c) {
		case 'n': option.work_requests = strtoull(optarg, NULL, 0); break;
		case 'q': option.queue_pairs = atoi(optarg); break;
		case 't': option.threads = atoi(optarg); break;
		case 's': option.seed = strtoull(optarg, NULL, 0); break;
		case 'x': option.extended = 1; break;
		case 'd': option.device = optarg; break;
		case 'f': option.forks = atoi(optarg); break;
		case 'e': option.execs = atoi(optarg); break;
		default: return 64;
		}
	}
	if (option.threads < 1 || option.threads > THREADS_MAX || option.queue_pairs < option.threads || !option.seed)
		return 64;
	run();
	return 0;
}
