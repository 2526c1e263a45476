/*
 * Threads that each drive a queue pair of the same two contexts: random operations and sizes, data checked,
 * completions counted one by one, queue pairs destroyed in the middle of traffic. soft_roce_stress THREADS
 * REQUESTS
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "verbs_pair.h"

enum { SLOTS = 32, SLOT_BYTES = 40000, QP_LIFE = 3000 };

static struct side ends[2];
static const struct pair_options options = {
	.rnr_retry = 7, .depth = SLOTS, .cqe = SLOTS * 4, .inline_bytes = 200
};

struct worker {
	pthread_t thread;
	uint32_t seed;
	uint32_t requests;
	struct side sides[2]; /* own queue pair, completion queue and memory in the shared contexts */
};

static uint32_t next_random(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static void worker_connect(struct worker *worker)
{
	for (int i = 0; i < 2; i++)
		worker->sides[i].qp = make_qp(&worker->sides[i], &options, NULL);
	connect_qps(worker->sides[0].qp, worker->sides[1].qp, &options);
}

static void worker_disconnect(struct worker *worker)
{
	for (int i = 0; i < 2; i++)
		CHECK_EQUAL(ibv_destroy_qp(worker->sides[i].qp), 0);
}

/* Posts a slot's request and prepares the memory of both ends. */
static void begin(struct worker *worker, uint64_t id, uint32_t *lengths, enum ibv_wr_opcode *opcodes)
{
	static const enum ibv_wr_opcode choice[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
						     IBV_WR_SEND, IBV_WR_RDMA_READ };
	struct side *from = &worker->sides[0], *to = &worker->sides[1];
	uint32_t slot = (uint32_t)(id % SLOTS), random = next_random(&worker->seed);
	size_t offset = (size_t)slot * SLOT_BYTES;

	opcodes[slot] = choice[random % 4];
	lengths[slot] = 1 + next_random(&worker->seed) % (random % 8 ? 300 : SLOT_BYTES);
	int reads = opcodes[slot] == IBV_WR_RDMA_READ;
	fill((reads ? to : from)->memory + offset, lengths[slot], (uint32_t)id);
	memset((reads ? from : to)->memory + offset, 0, lengths[slot]);
	if (opcodes[slot] == IBV_WR_SEND || opcodes[slot] == IBV_WR_RDMA_WRITE_WITH_IMM)
		CHECK_EQUAL(post_recv(to, id, offset, SLOT_BYTES), 0);
	CHECK_EQUAL(post(from, to, opcodes[slot], id, offset, lengths[slot]), 0);
}

static void finish(struct worker *worker, uint64_t id, const uint32_t *lengths,
		   const enum ibv_wr_opcode *opcodes)
{
	uint32_t slot = (uint32_t)(id % SLOTS);
	size_t offset = (size_t)slot * SLOT_BYTES;

	expect(worker->sides[0].cq, id, IBV_WC_SUCCESS);
	if (opcodes[slot] == IBV_WR_SEND || opcodes[slot] == IBV_WR_RDMA_WRITE_WITH_IMM)
		CHECK_EQUAL(expect(worker->sides[1].cq, id, IBV_WC_SUCCESS).byte_len, lengths[slot]);
	CHECK(!memcmp(worker->sides[0].memory + offset, worker->sides[1].memory + offset, lengths[slot]));
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	uint32_t lengths[SLOTS];
	enum ibv_wr_opcode opcodes[SLOTS];
	uint64_t begun = 0, finished = 0;

	worker_connect(worker);
	while (finished < worker->requests) {
		while (begun < worker->requests && begun - finished < SLOTS)
			begin(worker, begun++, lengths, opcodes);
		finish(worker, finished++, lengths, opcodes);
		if (finished % QP_LIFE == 0) {
			worker_disconnect(worker); /* with requests in flight */
			worker_connect(worker);
			expect_nothing(worker->sides[0].cq);
			begun = finished;
		}
	}
	worker_disconnect(worker);
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 4;
	uint32_t requests = argc > 2 ? (uint32_t)atoi(argv[2]) : 100000;
	struct worker *workers = calloc((size_t)count, sizeof(*workers));

	CHECK(count > 0 && requests > 0 && workers);
	side_open(&ends[0], 4096, &options);
	side_open(&ends[1], 4096, &options);
	for (int i = 0; i < count; i++) {
		workers[i].seed = (uint32_t)i;
		workers[i].requests = requests / (uint32_t)count;
		for (int j = 0; j < 2; j++) {
			struct side *side = &workers[i].sides[j];

			*side = ends[j];
			side->size = (size_t)SLOTS * SLOT_BYTES;
			side->memory = map_memory(side->size);
			side->mr = ibv_reg_mr(side->pd, side->memory, side->size, ALL_ACCESS);
			side->cq = ibv_create_cq(side->context, (int)options.cqe, NULL, NULL, 0);
			CHECK(side->mr && side->cq);
		}
		CHECK_EQUAL(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (int i = 0; i < count; i++) {
		CHECK_EQUAL(pthread_join(workers[i].thread, NULL), 0);
		for (int j = 0; j < 2; j++) {
			CHECK_EQUAL(ibv_destroy_cq(workers[i].sides[j].cq), 0);
			CHECK_EQUAL(ibv_dereg_mr(workers[i].sides[j].mr), 0);
			free(workers[i].sides[j].memory);
		}
	}
	free(workers);
	pair_close(ends);
	printf("%u requests by %d threads\n", requests, count);
	return 0;
}
