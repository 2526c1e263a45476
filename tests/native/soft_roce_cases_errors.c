/* What is refused, and how either side is notified. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <stdbool.h>

/* After a refused request: it completes with the reason, what follows is flushed in order, the peer is notified of
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

void bad_key(void)
{
	refused(0, IBV_WR_RDMA_WRITE, 0, 1, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(0, IBV_WR_RDMA_READ, 0, 0x100, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

void bad_bounds(void)
{
	refused(0, IBV_WR_RDMA_WRITE, 4089, 0, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(0, IBV_WR_RDMA_READ, (uint64_t)-1, 0, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(0, IBV_WR_RDMA_WRITE, UINT64_MAX / 2, 0, 8, IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

void bad_access(void)
{
	refused(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_WRITE, 0, 0, 8,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_READ, 0, 0, 8,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
	refused(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 8,
		IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
}

void bad_alignment(void)
{
	refused(0, IBV_WR_ATOMIC_FETCH_AND_ADD, 4, 0, 8, IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
}

/* Errors of the local side leave the peer alone. */
void bad_local_key(void)
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
void foreign_keys(void)
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

void receive_too_small(void)
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
void receiver_not_ready(void)
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

void rnr_retries_exceeded(void)
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

/* A chain whose third request is wrong: two are posted, the third is named. */
void bad_request(void)
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

/* Memory whose key was given back is not written any more, even in the middle of a message. */
void deregistered_target(void)
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

/* What arrives after a key was given other memory goes there, even in the middle of a message: the memory before may
 * be freed. */
void registered_anew(void)
{
	const size_t size = 64 << 20;
	uint8_t *before = map_memory(size), *after = map_memory(size), *source = map_memory(size);
	struct side pair[2];
	struct ibv_send_wr *bad;

	pair_open(pair, 4096, &defaults);
	/* both times under the same addresses, so that the message is allowed on */
	struct ibv_mr *to = ibv_reg_mr_iova(pair[1].pd, before, size, (uintptr_t)after, ALL_ACCESS);
	struct ibv_mr *from = ibv_reg_mr(pair[0].pd, source, size, 0);
	CHECK(to && from);
	struct ibv_sge sge = { .addr = (uintptr_t)source, .length = (uint32_t)size, .lkey = from->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };

	memset(source, 1, size);
	wr.wr.rdma.remote_addr = (uintptr_t)after;
	wr.wr.rdma.rkey = to->rkey;
	CHECK_EQUAL(ibv_post_send(pair[0].qp, &wr, &bad), 0);
	for (double end = seconds() + WAIT_S; !*(volatile uint8_t *)before;)
		CHECK(seconds() < end);
	CHECK_EQUAL(ibv_rereg_mr(to, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, after, size, 0), 0);
	bool whole = before[size - 1];
	memset(before, 2, size);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	for (size_t i = 0; i < size; i++)
		CHECK_EQUAL(before[i], 2);
	/* where the message has been faster, nothing is left of it */
	CHECK_EQUAL(after[size - 1], !whole);
	CHECK_EQUAL(ibv_dereg_mr(to), 0);
	CHECK_EQUAL(ibv_dereg_mr(from), 0);
	pair_close(pair);
	free(before);
	free(after);
	free(source);
}

/* What cannot be registered cannot be put in its place either, and what was there before stays. */
void reregistration_refused(void)
{
	struct side pair[2];
	const int access = IBV_REREG_MR_CHANGE_ACCESS, place = IBV_REREG_MR_CHANGE_TRANSLATION;
	uint8_t *memory;

	pair_open(pair, 4096, &defaults);
	memory = pair[1].memory;
	CHECK(ibv_rereg_mr(pair[1].mr, place, NULL, memory, SIZE_MAX, 0) != 0);
	CHECK(ibv_rereg_mr(pair[1].mr, access, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE) != 0);
	CHECK(ibv_rereg_mr(pair[1].mr, access, NULL, NULL, 0, ALL_ACCESS | IBV_ACCESS_MW_BIND) != 0);
	CHECK(ibv_rereg_mr(pair[1].mr, access, NULL, NULL, 0, ALL_ACCESS | IBV_ACCESS_ZERO_BASED) != 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 4096), 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	CHECK_EQUAL(ibv_rereg_mr(pair[1].mr, place, NULL, memory + 2048, 2048, 0), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 2, 2048, 2048), 0);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 3, 0, 2048), 0);
	expect(pair[0].cq, 3, IBV_WC_REM_ACCESS_ERR);
	pair_close(pair);
}
