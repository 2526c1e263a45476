/* Queue pairs that fail or go away, devices that refuse. */
#include "shim_test.h"

static void check_flushed(struct rig *r, uint64_t first, int n)
{
	struct ibv_wc wc[64];

	rig_drain(r, wc, n);
	for (int i = 0; i < n; i++) {
		CHECK_EQUAL(wc[i].wr_id, first + (uint64_t)i);
		CHECK_EQUAL(wc[i].status, IBV_WC_WR_FLUSH_ERR);
	}
	CHECK_EQUAL(rig_poll(r, wc, 1), 0);
}

static void error_with_held(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	daemon_gate(d, 0);
	rig_post_writes(r, qp, 0, 2, IBV_SEND_SIGNALED);
	daemon_gate(d, GATE_CLOSED);
	rig_post_writes(r, qp, 2, 3, 0);
	rig_post_writes(r, qp, 5, 2, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 2);
	CHECK(rig_state(qp, IBV_QPS_ERR) == 0);
	check_flushed(r, 0, 7);
	rig_post_writes(r, qp, 7, 1, 0); /* posting to a failed queue pair flushes as ever */
	check_flushed(r, 7, 1);
	WAIT(daemon_counts(d).cancelled == daemon_counts(d).submitted);
	CHECK_EQUAL(daemon_segment(d)->report.held_bytes, 0);

	/* and after RESET it is as new */
	rig_state(qp, IBV_QPS_RESET);
	rig_ready(qp);
	daemon_grant_all(d, true);
	rig_post_writes(r, qp, 100, 16, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 8 + 16);
}

static void async_error(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_async_event event;

	(void)d;
	rig_ready(qp);
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	fake_raise(r->context, qp, IBV_EVENT_QP_FATAL);
	CHECK(ibv_get_async_event(r->context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp);
	check_flushed(r, 0, 4);
}

/* A completion with an error tells as well: the queue pair has failed by itself. */
static void failed_completion(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[16];
	int got = 0;

	rig_ready(qp);
	daemon_grant(d, 1);
	rig_post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 1);
	rig_post_writes(r, qp, 1, 3, IBV_SEND_SIGNALED);
	fake_fail(qp); /* neither the caller nor the shim is told */
	WAIT((got += rig_poll(r, wc + got, 16 - got)) == 4);
	for (int i = 0; i < 4; i++)
		CHECK(wc[i].wr_id == (uint64_t)i && wc[i].status == IBV_WC_WR_FLUSH_ERR);
}

static void destroy_with_held(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);

	for (int i = 0; i < 20; i++) {
		struct ibv_qp *qp = rig_qp(r, 16);

		rig_ready(qp);
		rig_post_writes(r, qp, 0, 5, IBV_SEND_SIGNALED);
		CHECK_EQUAL(posted(qp), 0);
		if (i % 2)
			daemon_grant(d, 5); /* permits on their way */
		CHECK(ibv_destroy_qp(qp) == 0);
	}
	WAIT(daemon_counts(d).submitted == 100);
	WAIT(daemon_counts(d).cancelled + daemon_counts(d).completed == 100);
	CHECK_EQUAL(daemon_segment(d)->report.held_bytes, 0);
	CHECK_EQUAL(daemon_segment(d)->report.held_work_requests, 0);
	CHECK(ibv_destroy_cq(r->cq) == 0 && ibv_dealloc_pd(r->pd) == 0 && ibv_close_device(r->context) == 0);
}

static void reset_with_held(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[1];

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 5, IBV_SEND_SIGNALED);
	CHECK(rig_state(qp, IBV_QPS_RESET) == 0);
	WAIT(daemon_counts(d).cancelled == 5);
	CHECK_EQUAL(daemon_counts(d).bypassed, 0);
	CHECK_EQUAL(posted(qp), 0);
	rig_ready(qp);
	rig_post_writes(r, qp, 9, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 6);
	daemon_grant(d, 6);
	WAIT(posted(qp) == 1);
	fake_complete(qp, 1);
	rig_drain(r, wc, 1);
	CHECK_EQUAL(wc[0].wr_id, 9);
}

static void key_goes_away(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16), *other = rig_qp(r, 16);
	struct ibv_mr *mr = (ibv_reg_mr)(r->pd, r->buffer, 64, 0);

	(void)d;
	rig_ready(qp);
	rig_ready(other);
	rig_post_writes(r, qp, 0, 3, IBV_SEND_SIGNALED);
	rig_post_writes(r, other, 0, 3, IBV_SEND_SIGNALED);
	CHECK(ibv_dereg_mr(mr) == 0); /* nobody uses this one */
	CHECK_EQUAL(posted(qp) + posted(other), 0);
	CHECK(ibv_dereg_mr(r->mr) == 0);
	CHECK_EQUAL(posted(qp), 3);
	CHECK_EQUAL(posted(other), 3);
}

/* Some providers say it as a negative number. */
static void no_room_said(int error)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[8];
	struct ibv_send_wr wr[4], *bad;
	struct ibv_sge sge[4];

	rig_ready(qp);
	for (int i = 0; i < 4; i++) {
		wr[i] = rig_write(r, &sge[i], (uint64_t)i, 64, IBV_SEND_SIGNALED);
		wr[i].next = i < 3 ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	WAIT(daemon_counts(d).submitted == 1);
	fake_refuse_posts(qp, error, 3);
	daemon_grant(d, 1);
	WAIT(posted(qp) == 4);
	fake_complete(qp, 4);
	rig_drain(r, wc, 4);
	for (int i = 0; i < 4; i++)
		CHECK(wc[i].wr_id == (uint64_t)i && wc[i].status == IBV_WC_SUCCESS);
	WAIT(daemon_counts(d).completed == 1);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE], 256);
	CHECK_EQUAL(daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE], 256);
}

static void device_has_no_room(void)
{
	no_room_said(ENOMEM);
}

static void device_has_no_room_negative(void)
{
	no_room_said(-ENOMEM);
}

static void device_refuses(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 4, 0);
	WAIT(daemon_counts(d).submitted == 4);
	fake_refuse_posts(qp, EINVAL, 1);
	daemon_grant(d, 1);
	check_flushed(r, 0, 4); /* the queue pair was moved to the error state, and the device flushes */
	CHECK_EQUAL(qp->state, IBV_QPS_ERR);
}

static void device_refuses_for_good(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	daemon_gate(d, 0);
	rig_post_writes(r, qp, 0, 2, IBV_SEND_SIGNALED);
	daemon_gate(d, GATE_CLOSED);
	rig_post_writes(r, qp, 2, 5, 0);
	WAIT(daemon_counts(d).submitted == 5);
	fake_refuse_posts(qp, EINVAL, 1000);
	daemon_grant(d, 1);
	check_flushed(r, 0, 7); /* two by the device, five by the shim */
	CHECK_EQUAL(daemon_segment(d)->report.held_work_requests, 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"error_with_held", error_with_held},
		{"async_error", async_error},
		{"failed_completion", failed_completion},
		{"destroy_with_held", destroy_with_held},
		{"reset_with_held", reset_with_held},
		{"key_goes_away", key_goes_away},
		{"device_has_no_room", device_has_no_room},
		{"device_has_no_room_negative", device_has_no_room_negative},
		{"device_refuses", device_refuses},
		{"device_refuses_for_good", device_refuses_for_good},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
