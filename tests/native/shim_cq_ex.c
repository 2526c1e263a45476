/* Queue pairs whose completion queue was made by ibv_create_cq_ex: they are held like others, however the
 * queue is polled. */
#include "shim_test.h"

static struct rig *rig_with_extended(int cqe)
{
	struct rig *r = rig_open(cqe);
	struct ibv_cq_init_attr_ex attr = {.cqe = (uint32_t)cqe, .wc_flags = 0};

	CHECK(ibv_destroy_cq(r->cq) == 0);
	r->cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(r->context, &attr));
	CHECK(r->cq);
	return r;
}

static struct ibv_cq_ex *extended(struct rig *r)
{
	return (struct ibv_cq_ex *)r->cq;
}

/* Polls once, from start to end. Returns the number of completions. */
static unsigned poll_once(struct rig *r, uint64_t *wr_ids, enum ibv_wc_status *statuses)
{
	struct ibv_poll_cq_attr attr = {0};
	struct ibv_cq_ex *ex = extended(r);
	unsigned n = 0;
	int rc = ibv_start_poll(ex, &attr);

	if (rc) {
		CHECK_EQUAL(rc, ENOENT);
		return 0;
	}
	do {
		wr_ids[n] = ex->wr_id;
		statuses[n++] = ex->status;
		if (ex->status == IBV_WC_SUCCESS)
			CHECK_EQUAL(ibv_wc_read_opcode(ex), IBV_WC_RDMA_WRITE);
	} while (!(rc = ibv_next_poll(ex)));
	CHECK_EQUAL(rc, ENOENT);
	ibv_end_poll(ex);
	return n;
}

static void drain(struct rig *r, unsigned wanted, uint64_t *wr_ids, enum ibv_wc_status *statuses)
{
	unsigned got = 0;

	WAIT((got += poll_once(r, wr_ids + got, statuses + got)) >= wanted);
	CHECK_EQUAL(got, wanted);
}

static void polled_plainly(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_with_extended(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[4];

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 0);
	WAIT(daemon_counts(d).submitted == 4);
	daemon_grant(d, 4);
	WAIT(posted(qp) == 4);
	fake_complete(qp, 4);
	rig_drain(r, wc, 4);
	CHECK_EQUAL(wc[3].wr_id, 3);
	WAIT(daemon_counts(d).completed == 4);
	CHECK_EQUAL(daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE], 4 * 64);
}

static void polled_by_its_own_functions(void)
{
	enum ibv_wc_status statuses[16];
	struct daemon *d = hold_daemon();
	struct rig *r = rig_with_extended(64);
	struct ibv_qp *qp = rig_qp(r, 16), *other = rig_qp(r, 16);
	uint64_t wr_ids[16];

	rig_ready(qp);
	rig_ready(other);
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	rig_post_writes(r, other, 10, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 0);
	WAIT(daemon_counts(d).submitted == 8);
	CHECK_EQUAL(poll_once(r, wr_ids, statuses), 0);
	daemon_grant(d, 8);
	WAIT(posted(qp) == 4 && posted(other) == 4);
	for (int i = 0; i < 2; i++) { /* mixed */
		fake_complete(qp, 2);
		fake_complete(other, 2);
	}
	drain(r, 8, wr_ids, statuses);
	for (unsigned i = 0; i < 8; i++)
		CHECK_EQUAL(wr_ids[i], (i / 4 * 2 + i % 2) + (i % 4 / 2) * 10);
	WAIT(daemon_counts(d).completed == 8);
	CHECK_EQUAL(daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE], 8 * 64);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(other) == 0 && ibv_destroy_cq(r->cq) == 0);
}

/* Completions that the caller did not ask for are removed, at any place in a poll. */
static void unsignaled(void)
{
	const unsigned first[] = {0, IBV_SEND_SIGNALED, 0}, kept[] = {0, 1, 0};
	enum ibv_wc_status statuses[16];
	struct daemon *d = hold_daemon();
	struct rig *r = rig_with_extended(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	uint64_t wr_ids[16];
	unsigned seen = 0;

	rig_ready(qp);
	daemon_grant_all(d, true);
	for (unsigned i = 0; i < 3; i++) { /* one task each, so one signal each */
		rig_post_writes(r, qp, 10 + i, 1, (int)first[i]);
		WAIT(posted(qp) == i + 1);
	}
	fake_complete(qp, 3);
	for (int i = 0; i < 3; i++) {
		unsigned n = poll_once(r, wr_ids + seen, statuses + seen);

		seen += n;
	}
	CHECK_EQUAL(seen, kept[0] + kept[1] + kept[2]);
	CHECK_EQUAL(wr_ids[0], 11);
	WAIT(daemon_counts(d).completed == 3);
}

/* What is held is posted when an error is seen, but not before the provider's lock is free: otherwise the
 * thread would wait for itself. */
static void failed(void)
{
	enum ibv_wc_status statuses[16];
	struct daemon *d = hold_daemon();
	struct rig *r = rig_with_extended(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	uint64_t wr_ids[16];

	rig_ready(qp);
	daemon_grant(d, 1);
	rig_post_writes(r, qp, 0, 1, 0); /* signaled by the shim */
	WAIT(posted(qp) == 1);
	rig_post_writes(r, qp, 1, 3, IBV_SEND_SIGNALED);
	fake_fail(qp);
	drain(r, 4, wr_ids, statuses);
	for (unsigned i = 0; i < 4; i++)
		CHECK(wr_ids[i] == i && statuses[i] == IBV_WC_WR_FLUSH_ERR);
}

/* A device that accepts nothing any more, not even to flush it: the shim makes the completions. */
static void refused(void)
{
	enum ibv_wc_status statuses[16];
	struct daemon *d = hold_daemon();
	struct rig *r = rig_with_extended(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	uint64_t wr_ids[16];

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 3, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 3);
	fake_refuse_posts(qp, EINVAL, 1000);
	daemon_grant(d, 3);
	drain(r, 3, wr_ids, statuses);
	for (unsigned i = 0; i < 3; i++)
		CHECK(wr_ids[i] == i && statuses[i] == IBV_WC_WR_FLUSH_ERR);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"polled_plainly", polled_plainly},
		{"polled_by_its_own_functions", polled_by_its_own_functions},
		{"unsignaled", unsignaled},
		{"failed", failed},
		{"refused", refused},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
