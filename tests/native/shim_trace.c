/* Does random things to a queue pair and prints everything that a caller can see. With the shim, holding and permitting,
 * and without it the output must be the same: argv[1] is the seed. */
#include "shim_test.h"

#define SLOTS 16
#define STEPS 2000

static uint64_t seed;
static uint64_t accepted, next_id = 1;

static unsigned pick(unsigned n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(seed >> 33) % n;
}

static void fill(struct rig *r, struct ibv_send_wr *wr, struct ibv_sge *sge, bool may_be_bad)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ,
						     IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_FETCH_AND_ADD};

	*wr = rig_write(r, sge, next_id++, 1 + pick(4000), pick(2) ? IBV_SEND_SIGNALED : 0);
	wr->opcode = opcodes[pick(5)];
	wr->num_sge = 1 + (int)pick(4);
	for (int i = 1; i < wr->num_sge; i++)
		sge[i] = (struct ibv_sge){(uintptr_t)r->buffer, pick(100), r->mr->lkey};
	if (pick(4) == 0 && wr->opcode != IBV_WR_RDMA_READ && wr->opcode != IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr->send_flags |= IBV_SEND_INLINE;
		wr->num_sge = 1;
		sge->length = 1 + pick(64);
	}
	if (!may_be_bad)
		return;
	switch (pick(60)) {
	case 0:
		wr->num_sge = 5;
		break;
	case 1:
		wr->opcode = IBV_WR_LOCAL_INV;
		break;
	case 2:
		wr->opcode = IBV_WR_RDMA_WRITE;
		wr->send_flags |= IBV_SEND_INLINE;
		wr->num_sge = 1;
		sge->length = 65;
		break;
	}
}

static void post_chain(struct rig *r, struct ibv_qp *qp)
{
	struct ibv_send_wr wr[6], *bad = NULL;
	struct ibv_sge sge[6][5];
	int n = 1 + (int)pick(6), rc;

	for (int i = 0; i < n; i++) {
		fill(r, &wr[i], sge[i], true);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
	}
	rc = ibv_post_send(qp, wr, &bad);
	accepted += rc ? (uint64_t)(bad - wr) : (uint64_t)n;
	printf("post %d: %d bad %d\n", n, rc, rc ? (int)(bad - wr) : -1);
	memset(wr, 0xff, sizeof(wr));
	memset(sge, 0xff, sizeof(sge));
}

static void build(struct rig *r, struct ibv_qp *qp)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	unsigned n = 1 + pick(5), abort = pick(6) == 0;
	char data[80] = "inline";
	struct ibv_data_buf buffers[2] = {{data, 30}, {data + 30, 1 + pick(36)}};
	int rc;

	ibv_wr_start(x);
	for (unsigned i = 0; i < n; i++) {
		struct ibv_send_wr wr;
		struct ibv_sge sge[5];

		fill(r, &wr, sge, false);
		x->wr_id = wr.wr_id;
		x->wr_flags = wr.send_flags & IBV_SEND_SIGNALED;
		switch (wr.opcode) {
		case IBV_WR_RDMA_WRITE:
			ibv_wr_rdma_write(x, 3, wr.wr_id);
			break;
		case IBV_WR_RDMA_WRITE_WITH_IMM:
			ibv_wr_rdma_write_imm(x, 3, wr.wr_id, (uint32_t)wr.wr_id);
			break;
		case IBV_WR_SEND:
			if (pick(2))
				ibv_wr_send(x);
			else
				ibv_wr_send_imm(x, (uint32_t)wr.wr_id);
			break;
		case IBV_WR_RDMA_READ:
			ibv_wr_rdma_read(x, 3, wr.wr_id);
			break;
		default:
			if (pick(2))
				ibv_wr_atomic_fetch_add(x, 3, wr.wr_id, 11);
			else
				ibv_wr_atomic_cmp_swp(x, 3, wr.wr_id, 11, 12);
		}
		if (wr.send_flags & IBV_SEND_INLINE) {
			if (pick(2))
				ibv_wr_set_inline_data(x, data, 1 + pick(68));
			else
				ibv_wr_set_inline_data_list(x, 2, buffers);
		} else if (pick(2)) {
			ibv_wr_set_sge(x, r->mr->lkey, (uintptr_t)r->buffer, 50);
		} else {
			ibv_wr_set_sge_list(x, pick(40) ? (size_t)wr.num_sge : 5, sge);
		}
	}
	memset(data, 0xff, sizeof(data));
	if (abort) {
		ibv_wr_abort(x);
		printf("abort %u\n", n);
	} else {
		rc = ibv_wr_complete(x);
		accepted += rc ? 0 : n;
		printf("build %u: %d\n", n, rc);
	}
}

static void poll_all(struct rig *r)
{
	struct ibv_wc wc[3];

	while (fake_cq_pending(r->cq)) {
		int got = rig_poll(r, wc, 3);

		CHECK(got >= 0);
		for (int i = 0; i < got; i++)
			printf("wc %llu %d %d\n", (unsigned long long)wc[i].wr_id, wc[i].status,
			       wc[i].status ? 0 : (int)wc[i].opcode);
	}
}

/* Waits until everything accepted has reached the device. Only then may anything be completed, or the two
 * runs would differ in time. */
static void settle(struct ibv_qp *qp, uint64_t base)
{
	WAIT(fake_posted(qp) == accepted - base);
}

int main(int argc, char **argv)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(512);
	struct ibv_qp *qp = rig_qp_ex(r, SLOTS);
	const struct fake_record *log;
	uint64_t base = 0;
	unsigned n;

	CHECK(argc == 2);
	seed = strtoull(argv[1], NULL, 10);
	daemon_grant_all(d, true);
	rig_ready(qp);
	for (int step = 0; step < STEPS; step++) {
		switch (pick(12)) {
		case 0 ... 3:
			post_chain(r, qp);
			break;
		case 4 ... 6:
			build(r, qp);
			break;
		case 7 ... 8:
			settle(qp, base);
			printf("complete %u\n", fake_complete(qp, 1 + pick(12)));
			break;
		case 9 ... 10:
			settle(qp, base);
			poll_all(r);
			break;
		default:
			if (pick(8))
				break;
			settle(qp, base);
			if (pick(2))
				fake_complete(qp, SLOTS);
			printf("error %d\n", pick(2) ? rig_state(qp, IBV_QPS_ERR) : (fake_fail(qp), 0));
			poll_all(r);
			post_chain(r, qp);
			settle(qp, base);
			poll_all(r);
			printf("reset %d\n", rig_state(qp, IBV_QPS_RESET));
			base = accepted;
			post_chain(r, qp); /* refused in this state */
			rig_ready(qp);
		}
	}
	settle(qp, base);
	log = fake_log(qp, &n);
	for (unsigned i = 0; i < n; i++) {
		/* not the wr_id: the shim's own signals carry one of its own down to the device */
		printf("record %u %u %u %x %llu %u:", log[i].opcode,
		       log[i].num_sge > 1 ? log[i].num_sge : 1, log[i].send_flags & IBV_SEND_INLINE, log[i].imm_data,
		       (unsigned long long)log[i].remote_addr, log[i].rkey);
		for (unsigned s = 0; s < log[i].num_sge && !(log[i].send_flags & IBV_SEND_INLINE); s++)
			printf(" %llu/%u", (unsigned long long)(log[i].sge[s].addr - (uintptr_t)r->buffer), log[i].sge[s].length);
		printf(" %llu %.*s\n", (unsigned long long)log[i].inline_bytes, (int)log[i].inline_bytes, log[i].payload);
	}
	CHECK_EQUAL(fake_cq_overruns(), 0);
	if (getenv("MFS_SHIM_EXPECTED"))
		CHECK(daemon_counts(d).submitted > 100);
	return 0;
}
