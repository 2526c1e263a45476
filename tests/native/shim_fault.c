/* Queue pairs that fail or go away, devices that refuse, daemons that die. */
#include "shim_test.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static void post_writes(struct rig *r, struct ibv_qp *qp, uint64_t first, unsigned n, int flags)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	for (unsigned i = 0; i < n; i++) {
		wr = rig_write(r, &sge, first + i, 64, flags);
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	}
}

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
	post_writes(r, qp, 0, 2, IBV_SEND_SIGNALED);
	daemon_gate(d, GATE_CLOSED);
	post_writes(r, qp, 2, 3, 0);
	post_writes(r, qp, 5, 2, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 2);
	CHECK(rig_state(qp, IBV_QPS_ERR) == 0);
	check_flushed(r, 0, 7);
	post_writes(r, qp, 7, 1, 0); /* posting to a failed queue pair flushes as ever */
	check_flushed(r, 7, 1);
	WAIT(daemon_counts(d).cancelled == daemon_counts(d).submitted);
	CHECK_EQUAL(daemon_segment(d)->report.held_bytes, 0);

	/* and after RESET it is as new */
	rig_state(qp, IBV_QPS_RESET);
	rig_ready(qp);
	daemon_grant_all(d, true);
	post_writes(r, qp, 100, 16, IBV_SEND_SIGNALED);
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
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
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
	post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 1);
	post_writes(r, qp, 1, 3, IBV_SEND_SIGNALED);
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
		post_writes(r, qp, 0, 5, IBV_SEND_SIGNALED);
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
	post_writes(r, qp, 0, 5, IBV_SEND_SIGNALED);
	CHECK(rig_state(qp, IBV_QPS_RESET) == 0);
	WAIT(daemon_counts(d).cancelled == 5);
	CHECK_EQUAL(daemon_counts(d).bypassed, 0);
	CHECK_EQUAL(posted(qp), 0);
	rig_ready(qp);
	post_writes(r, qp, 9, 1, IBV_SEND_SIGNALED);
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
	post_writes(r, qp, 0, 3, IBV_SEND_SIGNALED);
	post_writes(r, other, 0, 3, IBV_SEND_SIGNALED);
	CHECK(ibv_dereg_mr(mr) == 0); /* nobody uses this one */
	CHECK_EQUAL(posted(qp) + posted(other), 0);
	CHECK(ibv_dereg_mr(r->mr) == 0);
	CHECK_EQUAL(posted(qp), 3);
	CHECK_EQUAL(posted(other), 3);
}

static void device_has_no_room(void)
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
	fake_refuse_posts(qp, ENOMEM, 3);
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

static void device_refuses(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	post_writes(r, qp, 0, 4, 0);
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
	post_writes(r, qp, 0, 2, IBV_SEND_SIGNALED);
	daemon_gate(d, GATE_CLOSED);
	post_writes(r, qp, 2, 5, 0);
	WAIT(daemon_counts(d).submitted == 5);
	fake_refuse_posts(qp, EINVAL, 1000);
	daemon_grant(d, 1);
	check_flushed(r, 0, 7); /* two by the device, five by the shim */
	CHECK_EQUAL(daemon_segment(d)->report.held_work_requests, 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

/* ---- the daemon --------------------------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void daemon_killed(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[16];

	rig_ready(qp);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	daemon_kill(d);
	WAIT(posted(qp) == 4); /* the hung-up socket tells; its heartbeat would be good for a quarter of an hour */
	post_writes(r, qp, 4, 2, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 6);

	d = hold_daemon(); /* a new one: attached again, scheduled again, old completions are not reported to it */
	WAIT(daemon_counts(d).attached == 1);
	WAIT(daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV] == 1);
	post_writes(r, qp, 6, 2, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 2);
	CHECK_EQUAL(posted(qp), 6);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE], 6 * 64); /* what is in flight counts here */
	fake_complete(qp, 6);
	rig_drain(r, wc, 6);
	daemon_grant(d, 2);
	WAIT(posted(qp) == 8);
	fake_complete(qp, 2);
	rig_drain(r, wc, 2);
	CHECK_EQUAL(wc[1].wr_id, 7);
	WAIT(daemon_counts(d).completed == 2);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE],
		    daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE]);
}

/* Posts one more; until the shim has seen a fresh heartbeat it passes through. */
static bool next_is_held(struct rig *r, struct ibv_qp *qp, struct daemon *d)
{
	struct ibv_wc wc[16];

	post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	fake_complete(qp, 16);
	while (rig_poll(r, wc, 16) > 0)
		;
	return daemon_segment(d)->report.held_work_requests == 1;
}

static void daemon_hangs(void)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE, .stale_after_ns = 40000000};
	struct daemon *d = daemon_start(&options);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	uint64_t paused_ns;

	rig_ready(qp);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	daemon_pause(d, true);
	paused_ns = now_ns();
	WAIT(posted(qp) == 4);
	printf("posted %.1f ms after the last heartbeat\n", (double)(now_ns() - paused_ns) / 1e6);
	post_writes(r, qp, 4, 2, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 6);
	daemon_pause(d, false); /* it was late, not dead: the session stays and scheduling goes on */
	WAIT(next_is_held(r, qp, d));
	CHECK_EQUAL(daemon_counts(d).attached, 1);
}

static void daemon_detaches(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	atomic_store(&daemon_segment(d)->header.state, MFS_SEGMENT_DETACHED);
	WAIT(posted(qp) == 4);
	WAIT(daemon_counts(d).attached == 2); /* it has been said, and the next daemon was looked for */
}

static void daemon_comes_later(void)
{
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct daemon *d;

	rig_ready(qp);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
	d = hold_daemon();
	WAIT(daemon_counts(d).attached == 1);
	WAIT(daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV] == 1);
	post_writes(r, qp, 4, 1, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
	WAIT(daemon_counts(d).submitted == 1);
}

static void daemon_restarts_often(void)
{
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[16];
	uint64_t next = 0;

	rig_ready(qp);
	fake_complete_at_once(true);
	for (int round = 0; round < 8; round++) {
		struct daemon *d = hold_daemon();

		WAIT(daemon_counts(d).attached >= 1 && daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV] == 1);
		post_writes(r, qp, next, 5, IBV_SEND_SIGNALED);
		WAIT(daemon_counts(d).submitted >= 1);
		daemon_kill(d);
		rig_drain(r, wc, 5);
		for (int i = 0; i < 5; i++)
			CHECK(wc[i].wr_id == next + (uint64_t)i && wc[i].status == IBV_WC_SUCCESS);
		next += 5;
	}
}

static void refused_by(const struct daemon_options *changed)
{
	struct daemon *d = daemon_start(changed);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	(void)d;
	rig_ready(qp);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
}

static void other_version(void)
{
	refused_by(&(struct daemon_options){.path = socket_path(), .mode = MFS_MODE_ENFORCE, .major = 99});
}

static void no_memory(void)
{
	refused_by(&(struct daemon_options){.path = socket_path(), .mode = MFS_MODE_ENFORCE, .welcome_error = -ENOSPC});
}

static void no_daemon(void)
{
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
	rig_open(64); /* a second device does not repeat the complaint */
}

/* ---- fork ----------------------------------------------------------------------------------------------------------- */

static void forked(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16), *ex = rig_qp_ex(r, 16);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(ex);
	struct ibv_wc wc[16];
	int status;
	pid_t child;

	rig_ready(qp);
	rig_ready(ex);
	post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	child = fork();
	if (!child) {
		/* the child posts natively to its own copy; what the parent holds is not posted again here */
		post_writes(r, qp, 50, 2, IBV_SEND_SIGNALED);
		CHECK_EQUAL(posted(qp), 2);
		x->wr_id = 60;
		x->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_start(x);
		ibv_wr_rdma_write(x, 1, 2);
		ibv_wr_set_sge(x, r->mr->lkey, (uintptr_t)r->buffer, 8);
		CHECK(ibv_wr_complete(x) == 0);
		CHECK_EQUAL(posted(ex), 1);
		fake_complete(qp, 2);
		CHECK_EQUAL(rig_poll(r, wc, 16), 2);
		CHECK_EQUAL(wc[0].wr_id, 50);
		CHECK(ibv_destroy_qp(qp) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK_EQUAL(posted(qp), 0);
	daemon_grant(d, 4);
	WAIT(posted(qp) == 4);
	fake_complete(qp, 4);
	rig_drain(r, wc, 4);
	WAIT(daemon_counts(d).completed == 4);
}

/* After ibv_fork_init a child lacks the pages of registered memory, and whatever else the heap has put there. */
static void forked_without_pages(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *ex = rig_qp_ex(r, 16);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(ex);
	struct ibv_wc wc[16];
	uintptr_t first = (uintptr_t)x & ~4095ul, last = ((uintptr_t)x + sizeof(*x) - 1) | 4095;
	int status;
	pid_t child;

	rig_ready(ex);
	post_writes(r, ex, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	CHECK(madvise((void *)first, last + 1 - first, MADV_DONTFORK) == 0);
	child = fork();
	if (!child)
		_exit(0);
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	daemon_grant(d, 4);
	WAIT(posted(ex) == 4);
	fake_complete(ex, 4);
	rig_drain(r, wc, 4);
	WAIT(daemon_counts(d).completed == 4);
}

/* The usual case: a parent that never opened a device forks workers that do. */
static void opened_after_fork(void)
{
	int status;
	pid_t child = fork();

	if (!child) {
		held_in_child:;
		struct daemon *d = hold_daemon();
		struct rig *r = rig_open(64);
		struct ibv_qp *qp = rig_qp(r, 16);

		rig_ready(qp);
		post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
		CHECK_EQUAL(posted(qp), 0);
		daemon_grant(d, 4);
		WAIT(posted(qp) == 4);
		/* and once more below this one, which has opened devices */
		if (getenv("SECOND")) {
			_exit(0);
		} else {
			setenv("SECOND", "1", 1);
			daemon_kill(d);
			child = fork();
			if (!child)
				goto held_in_child;
			CHECK(waitpid(child, &status, 0) == child);
			_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
		}
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
		{"device_refuses", device_refuses},
		{"device_refuses_for_good", device_refuses_for_good},
		{"daemon_killed", daemon_killed},
		{"daemon_hangs", daemon_hangs},
		{"daemon_detaches", daemon_detaches},
		{"daemon_comes_later", daemon_comes_later},
		{"daemon_restarts_often", daemon_restarts_often},
		{"other_version", other_version},
		{"no_memory", no_memory},
		{"no_daemon", no_daemon},
		{"forked", forked},
		{"forked_without_pages", forked_without_pages},
		{"opened_after_fork", opened_after_fork},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
