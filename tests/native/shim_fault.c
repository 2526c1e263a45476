/* Queue pairs that fail or go away, devices that refuse. */
#define _GNU_SOURCE
#include "shim_test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

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
	rig_post_writes(r, qp, 7, 1, 0); /* posting to a failed queue pair flushes as always */
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

/* A completion with an error shows, too, that the queue pair has failed by itself. */
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
	fake_fail(qp); /* neither the caller nor the shim learns of it */
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
	CHECK(ibv_dereg_mr(mr) == 0); /* nothing that is held uses this one */
	CHECK_EQUAL(posted(qp) + posted(other), 0);
	CHECK(ibv_dereg_mr(r->mr) == 0);
	CHECK_EQUAL(posted(qp), 3);
	CHECK_EQUAL(posted(other), 3);
}

/* A device without room; some providers report that as a negative number. */
static void no_room_reported(int error)
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
	no_room_reported(ENOMEM);
}

static void device_has_no_room_negative(void)
{
	no_room_reported(-ENOMEM);
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

/* The device builds a batch, since its queue pair is not ready to send yet, while something begins to be
 * held there. */
static void held_while_a_batch_is_built(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *ex = rig_qp_ex(r, 16);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(ex);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = 7};
	struct ibv_wc wc[2];
	const struct fake_record *log;
	unsigned n;

	CHECK(rig_state(ex, IBV_QPS_INIT) == 0);
	CHECK(ibv_modify_qp(ex, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) == 0);
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(x, 1, 2);
	ibv_wr_set_sge(x, r->mr->lkey, (uintptr_t)r->buffer, 8);
	CHECK(rig_state(ex, IBV_QPS_RTS) == 0);
	rig_post_writes(r, ex, 2, 1, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(ex), 0);
	CHECK(ibv_wr_complete(x) == 0);
	WAIT(posted(ex) == 2);
	log = fake_log(ex, &n);
	CHECK(log[0].wr_id == 1 && log[1].wr_id == 2);
	fake_complete(ex, 2);
	rig_drain(r, wc, 2);
	CHECK(wc[0].wr_id == 1 && wc[1].wr_id == 2);
	WAIT(daemon_segment(d)->report.held_work_requests == 0);
}

/* A permit that comes while its queue pair is reset releases nothing that was posted since. */
static void reset_against_a_permit(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_wc wc[1];
	uint64_t submitted = 0;

	for (unsigned round = 0; round < 300; round++) {
		unsigned before;

		rig_ready(qp);
		rig_post_writes(r, qp, 1, 1, IBV_SEND_SIGNALED);
		WAIT(daemon_counts(d).submitted == submitted + 1);
		daemon_grant_last(d);
		CHECK(rig_state(qp, IBV_QPS_RESET) == 0);
		before = posted(qp);
		rig_ready(qp);
		rig_post_writes(r, qp, 2, 1, IBV_SEND_SIGNALED);
		WAIT(daemon_counts(d).submitted == submitted + 2);
		CHECK_EQUAL(posted(qp), before);
		daemon_grant_last(d);
		WAIT(posted(qp) == before + 1);
		CHECK_EQUAL(fake_complete(qp, 1), 1);
		rig_drain(r, wc, 1);
		CHECK_EQUAL(wc[0].wr_id, 2);
		CHECK(rig_state(qp, IBV_QPS_RESET) == 0);
		submitted += 2;
	}
}

/* A work request that the device has to judge is posted behind another thread's batch that is not complete
 * yet. */
static struct ibv_qp *unusual_qp;
static struct rig *unusual_rig;
static _Atomic bool unusual_begun;

static void *post_unusual(void *answer)
{
	struct ibv_sge sge[5];
	struct ibv_send_wr wr = rig_write(unusual_rig, &sge[0], 9, 8, 0), *bad = NULL;

	for (int i = 1; i < 5; i++)
		sge[i] = sge[0];
	wr.num_sge = 5; /* more than the queue pair allows */
	atomic_store(&unusual_begun, true);
	*(int *)answer = ibv_post_send(unusual_qp, &wr, &bad);
	CHECK(bad == &wr);
	return NULL;
}

/* A real-time thread that waits for a thread of lower priority on its own CPU lets that thread run. The
 * answer is then the device's. */
static pthread_t urgent;
static int urgent_answer, urgent_made = -1;

static void urgent_meanwhile(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	struct sched_param priority = {.sched_priority = sched_get_priority_min(SCHED_RR) + 1};
	struct timespec used;
	pthread_attr_t attr;

	(void)qp, (void)wr;
	fake_observer = NULL;
	pthread_attr_init(&attr);
	pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attr, SCHED_RR);
	pthread_attr_setschedparam(&attr, &priority);
	urgent_made = pthread_create(&urgent, &attr, post_unusual, &urgent_answer);
	pthread_attr_destroy(&attr);
	do
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	while (!urgent_made && used.tv_sec == 0 && used.tv_nsec < 50000000);
}

static void *post_at_low_priority(void *made)
{
	struct sched_param priority = {.sched_priority = sched_get_priority_min(SCHED_RR)};
	cpu_set_t here;

	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	if (sched_setscheduler(0, SCHED_RR, &priority))
		return NULL;
	CHECK(pthread_setaffinity_np(pthread_self(), sizeof(here), &here) == 0);
	fake_observer = urgent_meanwhile;
	rig_post_writes(unusual_rig, unusual_qp, 0, 1, IBV_SEND_SIGNALED);
	*(bool *)made = true;
	return NULL;
}

static void unusual_of_an_urgent_thread(void)
{
	struct daemon *d = hold_daemon();
	pthread_t thread;
	bool made = false;

	unusual_rig = rig_open(64);
	unusual_qp = rig_qp(unusual_rig, 16);
	rig_ready(unusual_qp);
	daemon_gate(d, 0);
	CHECK(pthread_create(&thread, NULL, post_at_low_priority, &made) == 0);
	pthread_join(thread, NULL);
	if (!made) {
		printf("no right to real-time priority: not tested\n");
		return;
	}
	CHECK_EQUAL(urgent_made, 0);
	pthread_join(urgent, NULL);
	CHECK(urgent_answer && urgent_answer != ENOMEM);
	CHECK_EQUAL(posted(unusual_qp), 1);
}

static void unusual_behind_a_batch(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *ex = rig_qp_ex(r, 16);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(ex);
	struct ibv_wc wc[1];
	pthread_t thread;
	int answer, alone;

	unusual_rig = r;
	unusual_qp = ex;
	rig_ready(ex);
	post_unusual(&alone); /* nothing is ahead of it */
	CHECK(alone && alone != ENOMEM);
	for (unsigned round = 0; round < 50; round++) {
		atomic_store(&unusual_begun, false);
		ibv_wr_start(x);
		x->wr_id = round;
		x->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(x, 1, 2);
		ibv_wr_set_sge(x, r->mr->lkey, (uintptr_t)r->buffer, 8);
		CHECK(pthread_create(&thread, NULL, post_unusual, &answer) == 0);
		while (!atomic_load(&unusual_begun))
			sched_yield();
		for (int i = 0; i < 10; i++)
			sched_yield();
		CHECK(ibv_wr_complete(x) == 0);
		CHECK(pthread_join(thread, NULL) == 0);
		CHECK_EQUAL(answer, alone);
		CHECK_EQUAL(posted(ex), round + 1);
		CHECK_EQUAL(fake_complete(ex, 1), 1);
		rig_drain(r, wc, 1);
	}
	(void)d;
}

/* A completion queue that is in use cannot be destroyed. After the attempt the shim still knows what its
 * queue pairs may complete. */
static void queue_in_use_is_kept(void)
{
	enum { SLOTS = 8 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(SLOTS);
	struct ibv_qp *qp[2] = {rig_qp(r, SLOTS), rig_qp(r, SLOTS)};

	CHECK_EQUAL(ibv_destroy_cq(r->cq), EBUSY);
	daemon_grant_all(d, true);
	for (int q = 0; q < 2; q++) {
		rig_ready(qp[q]);
		rig_post_writes(r, qp[q], 0, SLOTS, 0);
		WAIT(posted(qp[q]) == SLOTS);
		fake_complete(qp[q], SLOTS);
	}
	CHECK_EQUAL(fake_cq_pending(r->cq), 0); /* the shim adds no signal, for which there might be no room */
	CHECK_EQUAL(fake_cq_overruns(), 0);
	for (int q = 0; q < 2; q++)
		CHECK(ibv_destroy_qp(qp[q]) == 0);
	CHECK(ibv_destroy_cq(r->cq) == 0);
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
		{"held_while_a_batch_is_built", held_while_a_batch_is_built},
		{"reset_against_a_permit", reset_against_a_permit},
		{"unusual_behind_a_batch", unusual_behind_a_batch},
		{"unusual_of_an_urgent_thread", unusual_of_an_urgent_thread},
		{"device_refuses", device_refuses},
		{"device_refuses_for_good", device_refuses_for_good},
		{"queue_in_use_is_kept", queue_in_use_is_kept},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
