/* Held work requests: order, copies, slots, permits, bounds. */
#include "shim_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <mfs/api.h>
#include <mfs/usage.h>
#include <sys/syscall.h>

static void held_until_granted(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_send_wr wr[5], *bad;
	struct ibv_sge sge[5][2];
	struct ibv_wc wc[8];
	char inline_data[32];
	const struct fake_record *log;
	unsigned n;

	rig_ready(qp);
	memset(inline_data, 'i', sizeof(inline_data));
	for (int i = 0; i < 5; i++) {
		wr[i] = rig_write(r, sge[i], 100 + (uint64_t)i, 64, IBV_SEND_SIGNALED);
		sge[i][1] = (struct ibv_sge){(uintptr_t)r->buffer + 64, 8, r->mr->lkey};
		wr[i].num_sge = 2;
		wr[i].next = i < 4 ? &wr[i + 1] : NULL;
	}
	wr[2].send_flags |= IBV_SEND_INLINE;
	sge[2][0] = (struct ibv_sge){(uintptr_t)inline_data, 20, 0};
	sge[2][1] = (struct ibv_sge){(uintptr_t)inline_data + 20, 12, 0};
	wr[3].opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	wr[3].wr.atomic.compare_add = 5;
	wr[3].wr.atomic.swap = 6;
	wr[4].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr[4].imm_data = 77;
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	memset(wr, 0xff, sizeof(wr)); /* the caller may reuse all of it at once */
	memset(sge, 0xff, sizeof(sge));
	memset(inline_data, 0xff, sizeof(inline_data));
	WAIT(daemon_counts(d).submitted == 1);
	CHECK_EQUAL(daemon_counts(d).submitted_bytes, 4 * 72 + 32);
	CHECK_EQUAL(rig_poll(r, wc, 8), 0);
	CHECK_EQUAL(posted(qp), 0);

	daemon_grant(d, 1);
	WAIT(rig_poll(r, wc, 8) == 0 && posted(qp) == 5);
	log = fake_log(qp, &n);
	for (unsigned i = 0; i < 5; i++) {
		CHECK_EQUAL(log[i].wr_id, 100 + i);
		CHECK_EQUAL(log[i].num_sge, 2);
		CHECK(i == 2 || log[i].sge[0].addr == (uintptr_t)r->buffer);
		CHECK(i == 2 || log[i].sge[1].length == 8);
	}
	CHECK_EQUAL(log[2].inline_bytes, 32);
	for (int i = 0; i < 32; i++)
		CHECK_EQUAL(log[2].payload[i], 'i');
	CHECK(log[3].compare_add == 5 && log[3].swap == 6 && log[3].opcode == IBV_WR_ATOMIC_CMP_AND_SWP);
	CHECK(log[4].imm_data == 77 && log[4].opcode == IBV_WR_RDMA_WRITE_WITH_IMM);

	CHECK_EQUAL(fake_complete(qp, 5), 5);
	rig_drain(r, wc, 5);
	for (unsigned i = 0; i < 5; i++)
		CHECK(wc[i].wr_id == 100 + i && wc[i].status == IBV_WC_SUCCESS);
	CHECK_EQUAL(rig_poll(r, wc, 8), 0);
	WAIT(daemon_counts(d).completed == 1);

	struct mfs_segment *s = daemon_segment(d);

	CHECK_EQUAL(s->usage[0].posted.bytes[HOLD_STAGE], 4 * 72 + 32);
	CHECK_EQUAL(s->usage[0].completed.bytes[HOLD_STAGE], 4 * 72 + 32);
	CHECK_EQUAL(s->report.permits, 1);
	CHECK_EQUAL(s->report.held_bytes, 0);
	CHECK_EQUAL(s->report.held_work_requests, 0);
	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_KV], 1);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_KV], 0);
}

/* A permit for a later task does not overtake the earlier ones of its queue pair. */
static void order_is_kept(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16), *other = rig_qp(r, 16);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	const struct fake_record *log;
	unsigned n;

	rig_ready(qp);
	rig_ready(other);
	for (unsigned i = 0; i < 3; i++) {
		wr = rig_write(r, &sge, i, 64, IBV_SEND_SIGNALED);
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	}
	wr = rig_write(r, &sge, 50, 64, IBV_SEND_SIGNALED);
	CHECK(ibv_post_send(other, &wr, &bad) == 0);
	WAIT(daemon_counts(d).submitted == 4);
	daemon_grant_last(d);
	WAIT(posted(other) == 1); /* by the shim's own thread: no thread polls */
	CHECK_EQUAL(posted(qp), 0);
	daemon_grant_last(d); /* the third of qp */
	WAIT(posted(qp) == 3);
	log = fake_log(qp, &n);
	for (unsigned i = 0; i < 3; i++)
		CHECK_EQUAL(log[i].wr_id, i);
	WAIT(daemon_counts(d).cancelled == 2);
	CHECK_EQUAL(daemon_counts(d).bypassed, 2); /* their bytes did go */
}

/* A work request on credit would release the one ahead of it without its permit, since they leave in
 * order. So none goes on credit behind one that has asked. */
static void credit_does_not_overtake(void)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .mode = MFS_MODE_ENFORCE};
	struct daemon *d = daemon_start(&options);
	struct mfs_segment *s;
	struct ibv_qp *qp;
	struct ibv_wc wc[16];
	struct rig *r = rig_open(64);

	WAIT(mfs_api()->client());
	s = daemon_segment(d);
	s->header.classes = 8;
	s->header.class_last = 5;
	atomic_store(&s->gate[0].credit[0], 64); /* one work request's */
	atomic_store(&s->gate[0].credit_class_marked[0], 64);
	daemon_gate(d, GATE_CLOSED);
	qp = rig_qp(r, 16);
	rig_ready(qp);
	rig_post_writes(r, qp, 0, 2, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 2);
	CHECK_EQUAL(daemon_submitted(d, 0).flags & MFS_TASK_TAKEN, MFS_TASK_TAKEN);
	CHECK_EQUAL(daemon_submitted(d, 1).flags & MFS_TASK_TAKEN, 0);
	CHECK_EQUAL(posted(qp), 1);

	fake_complete(qp, 1);
	rig_drain(r, wc, 1);
	WAIT(daemon_counts(d).completed == 1); /* there is credit again */
	rig_post_writes(r, qp, 2, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 3);
	CHECK_EQUAL(daemon_submitted(d, 2).flags & MFS_TASK_TAKEN, 0);
	CHECK_EQUAL(posted(qp), 1);

	daemon_grant(d, 2);
	WAIT(posted(qp) == 3);
	fake_complete(qp, 2);
	rig_drain(r, wc, 2);
	WAIT(daemon_counts(d).completed == 3);
	rig_post_writes(r, qp, 3, 1, IBV_SEND_SIGNALED); /* if nothing waits, it is used */
	WAIT(daemon_counts(d).submitted == 4);
	CHECK_EQUAL(daemon_submitted(d, 3).flags & MFS_TASK_TAKEN, MFS_TASK_TAKEN);
	CHECK_EQUAL(posted(qp), 4);
}

/* A chain of writes and reads is asked for by direction, since each waits for its own direction of the
 * link. */
static void directions(void)
{
	const bool incoming[] = {false, true, true, false};
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_send_wr wr[4], *bad;
	struct ibv_sge sge[4];
	struct mfs_message m;

	rig_ready(qp);
	for (unsigned i = 0; i < 4; i++) {
		wr[i] = rig_write(r, &sge[i], i, 64, IBV_SEND_SIGNALED);
		if (incoming[i])
			wr[i].opcode = IBV_WR_RDMA_READ;
		wr[i].next = i < 3 ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	WAIT(daemon_counts(d).submitted == 3);
	for (unsigned i = 0; i < 3; i++) {
		m = daemon_submitted(d, i);
		CHECK_EQUAL(m.bytes, i == 1 ? 128 : 64);
		CHECK_EQUAL(m.flags, i == 1 ? MFS_TASK_INCOMING : 0);
	}
	daemon_grant(d, 3);
	WAIT(posted(qp) == 4);
}

/* An open gate: nothing is submitted, nothing copied, everything counted. */
static void open_gate(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_send_wr wr[3], *bad;
	struct ibv_sge sge[3];
	struct ibv_wc wc[4];

	rig_ready(qp);
	daemon_gate(d, 0);
	for (int i = 0; i < 3; i++) {
		wr[i] = rig_write(r, &sge[i], (uint64_t)i, 100, i == 2 ? IBV_SEND_SIGNALED : 0);
		wr[i].next = i < 2 ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), 3);
	fake_complete(qp, 3);
	rig_drain(r, wc, 1);
	CHECK_EQUAL(wc[0].wr_id, 2);
	CHECK_EQUAL(daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE], 300);

	daemon_gate(d, GATE_CLOSED);
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), 3);
	daemon_gate(d, 0); /* opened while something is held: what comes later stays behind it */
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), 3);
	WAIT(daemon_counts(d).submitted == 1);
	daemon_grant(d, 1);
	WAIT(posted(qp) == 9);
	CHECK_EQUAL(daemon_counts(d).submitted, 1);
}

/* The shim signals the last work request of a granted task, so that the daemon learns when the task has
 * left. The caller never sees that completion, and its slots come back exactly when it expects them. */
static void unsignaled(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 8);
	struct ibv_send_wr wr[8], *bad;
	struct ibv_sge sge[8];
	struct ibv_wc wc[8];

	rig_ready(qp);
	for (int i = 0; i < 8; i++) {
		wr[i] = rig_write(r, &sge[i], 10 + (uint64_t)i, 100, 0);
		wr[i].next = i < 5 ? &wr[i + 1] : NULL;
	}
	daemon_grant_all(d, true);
	CHECK(ibv_post_send(qp, wr, &bad) == 0); /* six, none signaled */
	WAIT(posted(qp) == 6);
	CHECK_EQUAL(fake_complete(qp, 6), 6);
	WAIT(rig_poll(r, wc, 8) == 0 && daemon_counts(d).completed == 1);

	wr[6].next = &wr[7];
	CHECK(ibv_post_send(qp, &wr[6], &bad) == 0);
	wr[0].next = NULL;
	CHECK_EQUAL(ibv_post_send(qp, wr, &bad), ENOMEM); /* no completion of the caller's: no slot is free */
	CHECK(bad == &wr[0]);
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_overflow, 0);
}

static void forced_signal_in_error(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 8);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc[8];

	rig_ready(qp);
	daemon_grant_all(d, true);
	wr = rig_write(r, &sge, 42, 100, 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	WAIT(posted(qp) == 1);
	CHECK(rig_state(qp, IBV_QPS_ERR) == 0);
	rig_drain(r, wc, 1);
	CHECK(wc[0].wr_id == 42 && wc[0].status == IBV_WC_WR_FLUSH_ERR);
	WAIT(daemon_counts(d).completed == 1);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void too_long(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 64);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	rig_ready(qp);
	for (unsigned i = 0; i < 50; i++) { /* more than the tasks that may wait at once */
		wr = rig_write(r, &sge, i, 64, IBV_SEND_SIGNALED);
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	}
	CHECK_EQUAL(posted(qp), 0);
	/* end the time now, not while this thread may be slow to poll */
	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 1000000, __ATOMIC_RELAXED);
	WAIT(posted(qp) == 50);
	WAIT(daemon_counts(d).cancelled == daemon_counts(d).submitted);
	CHECK_EQUAL(daemon_counts(d).bypassed, daemon_counts(d).submitted);
	CHECK(daemon_segment(d)->report.bypassed_hold >= daemon_counts(d).submitted);
	CHECK_EQUAL(daemon_segment(d)->report.permits, 0);
}

/* A transfer of many rounds, each posted when the previous one is complete, to a daemon that grants
 * nothing. It is held for one budget in all, not for one in each round. */
static void rounds_share_a_budget(void)
{
	enum { ROUNDS = 80, EACH = 50, BUDGET_S = 1 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 64);
	struct ibv_wc wc[EACH];
	uint64_t began_ns, first_ns;

	rig_ready(qp);
	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, BUDGET_S * 1000000000ull, __ATOMIC_RELAXED);
	fake_complete_at_once(true);
	began_ns = now_ns();
	for (int round = 0; round < ROUNDS; round++) {
		rig_post_writes(r, qp, 0, EACH, IBV_SEND_SIGNALED);
		if (!round) {
			CHECK_EQUAL(posted(qp), 0);
			rig_drain(r, wc, EACH);
			first_ns = now_ns() - began_ns;
			CHECK(first_ns > BUDGET_S * 1000000000ull / 2);
			/* what is posted now is not even queued */
			CHECK(daemon_counts(d).submitted <= EACH);
			continue;
		}
		rig_drain(r, wc, EACH);
	}
	CHECK_EQUAL(posted(qp), ROUNDS * EACH);
	/* on a machine that is slow enough for the free time to end, some are held once more */
	CHECK(now_ns() - began_ns < 50000000000ull);
	CHECK(daemon_segment(d)->report.bypassed_hold > ROUNDS);
}

/* Work requests at a NIC whose tables lie at the segment's end are held, counted and released like those
 * at the first. */
static void nic_beyond_the_first(void)
{
	enum { NIC = MFS_NICS_FIRST + 24 };
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE, .nic = NIC};
	struct daemon *d = daemon_start(&options);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct mfs_usage *usage;
	struct ibv_wc wc[1];

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 1);
	CHECK_EQUAL(daemon_submitted(d, 0).nic, NIC);
	CHECK_EQUAL(posted(qp), 0);
	daemon_grant(d, 1);
	WAIT(posted(qp) == 1);
	usage = mfs_usage_of(daemon_segment(d), NIC);
	CHECK_EQUAL(mfs_usage_posted(daemon_segment(d), NIC, HOLD_STAGE), daemon_counts(d).submitted_bytes);
	fake_complete(qp, 1);
	rig_drain(r, wc, 1);
	CHECK_EQUAL(usage->completed.bytes[HOLD_STAGE], daemon_counts(d).submitted_bytes);
	for (uint32_t i = 0; i < MFS_NICS_MAX; i++)
		CHECK(i == NIC || !mfs_usage_posted(daemon_segment(d), i, HOLD_STAGE));
	daemon_gate(d, 0); /* nothing waits there: it goes at once */
	rig_post_writes(r, qp, 1, 1, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 2);
	CHECK_EQUAL(daemon_counts(d).submitted, 1);
}

/* Mooncake's own time-out (MC_TRANSFER_TIMEOUT=1, or MC_SLICE_TIMEOUT=1, see test_native.py) limits the
 * time for which work requests are held, whatever the daemon says. */
static void library_timeout(void)
{
	struct daemon *d = hold_daemon(); /* it allows an hour */
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 64);

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 10, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 10);
	CHECK(daemon_segment(d)->report.bypassed_hold > 0);
}

/* Work requests that are held behind others served in their turn are limited, too, where the library gives
 * up (MC_TRANSFER_TIMEOUT=2): all of them are with the NIC before that. */
static void served_until_the_timeout(void)
{
	enum { N = 64, TIMEOUT_S = 2, PACE_NS = 2 * TIMEOUT_S * (1000000000 / N) };
	struct daemon *d = hold_daemon(); /* it allows an hour */
	struct rig *r = rig_open(128);
	struct ibv_qp *qp = rig_qp(r, N);
	struct ibv_wc wc[N];
	uint64_t began_ns, granted = 2;

	rig_ready(qp);
	began_ns = now_ns();
	for (unsigned i = 0; i < N; i++)
		rig_post_writes(r, qp, i, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted >= 2);
	daemon_grant(d, 2);
	WAIT(posted(qp) >= 2);
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_hold, 0);
	for (uint64_t round = 1; posted(qp) < N && granted < N; round++) { /* one is under way at any time */
		WAIT(now_ns() - began_ns > round * PACE_NS || posted(qp) == N);
		fake_complete(qp, 1);
		rig_drain(r, wc, 1);
		WAIT(daemon_counts(d).submitted > granted || posted(qp) == N);
		if (posted(qp) < N)
			daemon_grant(d, 1);
		granted++;
		WAIT(posted(qp) >= granted);
	}
	CHECK(granted < N); /* at this pace it would have taken two time-outs */
	CHECK_EQUAL(posted(qp), N);
	CHECK(daemon_segment(d)->report.bypassed_hold > 0);
}

/* With many queue pairs on a slow link, one turn takes seconds. Of these, a budget at most does not count
 * as standing still. */
static void a_turn_ends_with_the_budget(void)
{
	enum { QPS = 1200 };
	const uint64_t turn_ns = QPS * 4 * (256ull << 10) * 1000 / 312;
	struct ibv_qp *qp[QPS];
	uint64_t began_ns;
	struct daemon *d;
	struct rig *r;

	setenv("FAKE_SLOW_PORT", "1", 1);
	d = hold_daemon();
	r = rig_open(2 * QPS);
	for (int i = 0; i < QPS; i++) {
		qp[i] = rig_qp(r, 4);
		rig_ready(qp[i]);
		rig_post_writes(r, qp[i], 0, 1, IBV_SEND_SIGNALED);
		CHECK_EQUAL(posted(qp[i]), 0);
	}
	began_ns = now_ns();
	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 10000000, __ATOMIC_RELAXED);
	for (int i = 0; i < QPS; i++)
		WAIT(posted(qp[i]) == 1);
	CHECK(now_ns() - began_ns < turn_ns / 2); /* two budgets are a two-hundredth of it */
}

/* A queue pair that is served, however slowly and for however long, does not use up its budget. */
static void served_is_not_lost(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 64);
	struct ibv_wc wc[2];
	uint64_t began_ns;

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 2, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 2);
	daemon_grant(d, 2);
	WAIT(posted(qp) == 2);
	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 20000000000ull, __ATOMIC_RELAXED);
	rig_post_writes(r, qp, 2, 1, IBV_SEND_SIGNALED); /* held all the time, behind something that is under way */
	WAIT(daemon_counts(d).submitted == 3);
	began_ns = now_ns();
	WAIT(now_ns() - began_ns > 300000000);
	CHECK_EQUAL(posted(qp), 2);
	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 250000000ull, __ATOMIC_RELAXED);
	fake_complete(qp, 1); /* one of two is complete: the other is under way for another budget from now */
	WAIT(rig_poll(r, wc, 2) == 1);
	CHECK_EQUAL(posted(qp), 2);
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_hold, 0);
	WAIT(posted(qp) == 3); /* its completion is not polled: that is standing still, too */
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_hold, 1);
}

/* Two queue pairs with transfers of half a second, one after the other. Each has its share of the link,
 * and stands still for half of the time, which is more than two budgets in all. */
static void turns_are_not_lost(void)
{
	enum { PHASES = 10, PHASE_NS = 500000000 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp[2] = {rig_qp(r, 16), rig_qp(r, 16)};
	struct ibv_wc wc[1];

	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 3ull * PHASE_NS, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		rig_ready(qp[i]);
	for (unsigned i = 0; i < PHASES + 2; i++) { /* both hold something all the time */
		rig_post_writes(r, qp[i % 2], i, 1, IBV_SEND_SIGNALED);
		WAIT(daemon_counts(d).submitted == i + 1);
	}
	for (unsigned phase = 0; phase < PHASES; phase++) {
		struct ibv_qp *served = qp[phase % 2];
		uint64_t began_ns = now_ns();

		daemon_grant(d, 1);
		WAIT(posted(served) == phase / 2 + 1);
		WAIT(now_ns() - began_ns > PHASE_NS);
		fake_complete(served, 1);
		rig_drain(r, wc, 1);
	}
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_hold, 0);
}

/* A daemon serves many queue pairs together for a moment, and then none for long. None of them has its
 * share then: being served pays back next to nothing of the budget. */
static void a_moment_for_all_is_no_share(void)
{
	enum { QPS = 50, ROUNDS = 8, REST_NS = 1000000000, MOMENT_NS = 10000000 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(2 * QPS);
	struct ibv_qp *qp[QPS];
	struct ibv_wc wc[QPS];
	_Atomic uint64_t *bypassed = &daemon_segment(d)->report.bypassed_hold;

	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 3ull * REST_NS, __ATOMIC_RELAXED);
	for (int i = 0; i < QPS; i++) {
		qp[i] = rig_qp(r, ROUNDS + 2);
		rig_ready(qp[i]);
	}
	for (unsigned i = 0; i < 2 * QPS; i++) /* all hold something all the time */
		rig_post_writes(r, qp[i % QPS], i, 1, IBV_SEND_SIGNALED);
	for (unsigned round = 1; round <= ROUNDS; round++) {
		uint64_t began_ns = now_ns();

		WAIT(now_ns() - began_ns > REST_NS || *bypassed);
		if (*bypassed)
			return;
		WAIT(daemon_counts(d).submitted >= round * QPS);
		daemon_grant(d, QPS);
		for (int i = 0; i < QPS; i++)
			WAIT(posted(qp[i]) >= round);
		began_ns = now_ns();
		WAIT(now_ns() - began_ns > MOMENT_NS);
		for (int i = 0; i < QPS; i++) {
			fake_complete(qp[i], 1);
			rig_post_writes(r, qp[i], round, 1, IBV_SEND_SIGNALED);
		}
		rig_drain(r, wc, QPS);
	}
	CHECK(*bypassed > 0);
}

/* More queue pairs than a process has slots for tasks: a queue pair that finds none waits until there is
 * one. */
static void more_than_slots(void)
{
	enum { QPS = 1200, EACH = 8 };
	static struct ibv_wc wc[QPS * EACH];
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(2 * QPS * EACH);
	struct ibv_qp *qp[QPS];
	const struct fake_record *log;
	unsigned n;

	for (int q = 0; q < QPS; q++) {
		qp[q] = rig_qp(r, EACH);
		rig_ready(qp[q]);
		rig_post_writes(r, qp[q], 0, EACH, IBV_SEND_SIGNALED);
	}
	WAIT(daemon_counts(d).submitted == MFS_TASKS_MAX);
	for (int q = 0; q < QPS; q++)
		CHECK_EQUAL(posted(qp[q]), 0);
	fake_complete_at_once(true);
	daemon_grant_all(d, true);
	rig_drain(r, wc, QPS * EACH);
	for (int q = 0; q < QPS; q++) {
		log = fake_log(qp[q], &n);
		CHECK_EQUAL(n, EACH);
		for (unsigned i = 0; i < EACH; i++)
			CHECK_EQUAL(log[i].wr_id, i);
	}
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_overflow, 0);
	CHECK_EQUAL(daemon_segment(d)->report.bypassed_hold, 0);
}

static struct daemon *rated_daemon(uint64_t rate_bytes_per_s)
{
	const struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					       .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE,
					       .rate_bytes_per_s = rate_bytes_per_s};

	return daemon_start(&options);
}

/* Posts a chain of work requests of `each` bytes on one queue pair, but the last one has `last` bytes. */
static void chain_post(uint32_t each, uint32_t last)
{
	enum { N = 64 };
	struct rig *r = rig_open(2 * N);
	struct ibv_qp *qp = rig_qp(r, N);
	struct ibv_send_wr wr[N], *bad;
	struct ibv_sge sge[N];

	rig_ready(qp);
	for (int i = 0; i < N; i++) {
		wr[i] = rig_write(r, &sge[i], (uint64_t)i, i == N - 1 ? last : each, IBV_SEND_SIGNALED);
		wr[i].next = i < N - 1 ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
}

/* Tasks on a slow link are small: none takes longer than a fifth of a millisecond, unless it is a single
 * work request. */
static void tasks_fit_the_rate(void)
{
	struct daemon *d = rated_daemon(250000000); /* 50,000 bytes in 200 us */

	chain_post(8192, 100000);
	WAIT(daemon_counts(d).submitted == 12);
	for (unsigned i = 0; i < 12; i++)
		CHECK_EQUAL(daemon_submitted(d, i).bytes, i == 11 ? 100000 : i == 10 ? 3 * 8192 : 6 * 8192);
}

/* Posts work requests of `each` bytes on a NIC of this rate. Returns the bytes of a task. */
static uint64_t task_bytes_at(uint64_t rate_bytes_per_s, uint32_t each)
{
	struct daemon *d = rated_daemon(rate_bytes_per_s);

	chain_post(each, each);
	WAIT(daemon_counts(d).submitted >= 2);
	return daemon_submitted(d, 0).bytes;
}

/* A NIC of 100 Gbit/s has tasks of 256 KiB, one of 400 Gbit/s tasks of 512 KiB. */
static void tasks_of_a_rate_known(void)
{
	CHECK_EQUAL(task_bytes_at(12500000000, 65536), 262144);
}

static void tasks_of_a_fast_link(void)
{
	CHECK_EQUAL(task_bytes_at(50000000000, 65536), 524288);
}

static void tasks_of_a_fast_link_in_larger_work_requests(void)
{
	CHECK_EQUAL(task_bytes_at(50000000000, 262144), 524288);
}

static void tasks_of_an_absurd_rate(void)
{
	CHECK_EQUAL(task_bytes_at(1250000000000, 131072), 2 << 20);
}

static void tasks_of_an_unknown_rate(void)
{
	CHECK_EQUAL(task_bytes_at(0, 65536), 262144);
}

static void observe(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc[1];

	rig_ready(qp);
	wr = rig_write(r, &sge, 1, 64, IBV_SEND_SIGNALED);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), 1);
	CHECK_EQUAL(fake_traffic_class(qp), 2); /* nothing is changed */
	fake_complete(qp, 1);
	rig_drain(r, wc, 1);
	CHECK_EQUAL(daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE], 64);
	CHECK_EQUAL(daemon_counts(d).submitted, 0);
}

/* The daemon may turn enforcing off, which releases what is held, and on again later. */
static void mode_lowered(void)
{
	struct ibv_wc wc[1];
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	rig_ready(qp);
	CHECK_EQUAL(fake_traffic_class(qp), 10 << 2 | 2);
	wr = rig_write(r, &sge, 1, 64, IBV_SEND_SIGNALED);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	WAIT(daemon_counts(d).submitted == 1);
	daemon_mode(d, MFS_MODE_OBSERVE);
	WAIT(posted(qp) == 1);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), 2);
	daemon_mode(d, MFS_MODE_ENFORCE);
	fake_complete_at_once(true);
	WAIT((rig_poll(r, wc, 1), ibv_post_send(qp, &wr, &bad), daemon_counts(d).submitted >= 2));
}

/* A program that polls for completions once in each step. All that it posts in a step leaves in that step,
 * although the daemon permits one task and learns of no completion. */
static void polls_seldom(void)
{
	enum { STEPS = 4, N = 16 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, N);
	struct ibv_wc wc[N];

	rig_ready(qp);
	__atomic_store_n(&daemon_segment(d)->header.max_hold_ns, 20000000, __ATOMIC_RELAXED);
	for (unsigned step = 0; step < STEPS; step++) {
		rig_post_writes(r, qp, step * N, N, IBV_SEND_SIGNALED);
		if (!step)
			daemon_grant(d, 1);
		WAIT(posted(qp) == (step + 1) * N);
		CHECK_EQUAL(fake_complete(qp, N), N);
		rig_drain(r, wc, N);
		for (unsigned i = 0; i < N; i++)
			CHECK_EQUAL(wc[i].wr_id, step * N + i);
	}
	WAIT(daemon_counts(d).completed == daemon_segment(d)->report.permits);
}

/* Reads a file about one of this process's threads from /proc. Returns false if there is none. */
static bool thread_read(const char *thread, const char *what, char *text, size_t size)
{
	char path[64];
	ssize_t got;
	int file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/%s", thread, what);
	file = open(path, O_RDONLY);
	if (file < 0)
		return false;
	got = read(file, memset(text, 0, size), size - 1);
	close(file);
	return got > 0;
}

/* Returns whether the shim's thread sleeps until it is woken, in a private futex. */
static bool thread_sleeps(void)
{
	DIR *threads = opendir("/proc/self/task");
	void *word = NULL, *at;
	struct dirent *thread;
	unsigned operation;
	char text[256];
	long call;

	while ((thread = readdir(threads)))
		if (thread_read(thread->d_name, "comm", text, sizeof(text)) && !strcmp(text, "mfs-shim\n")) {
			CHECK(thread_read(thread->d_name, "syscall", text, sizeof(text)));
			if (sscanf(text, "%ld %p %x", &call, &at, &operation) == 3 && call == SYS_futex &&
			    operation == FUTEX_WAIT_PRIVATE)
				word = at;
		}
	closedir(threads);
	return word && __atomic_load_n((uint32_t *)word, __ATOMIC_SEQ_CST);
}

/* If a chain has more work requests than there are slots, some are held. The shim's thread is woken for
 * them as for any others. */
static void longer_than_the_slots(void)
{
	enum { SLOTS = 8, N = SLOTS + 1 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, SLOTS);
	struct ibv_send_wr wr[N], *bad = NULL;
	struct ibv_sge sge[N];

	rig_ready(qp);
	for (unsigned i = 0; i < N; i++) {
		wr[i] = rig_write(r, &sge[i], i, 64, IBV_SEND_SIGNALED);
		wr[i].next = i + 1 < N ? &wr[i + 1] : NULL;
	}
	WAIT(thread_sleeps());
	CHECK_EQUAL(ibv_post_send(qp, wr, &bad), ENOMEM);
	CHECK(!thread_sleeps());
	CHECK(bad == &wr[SLOTS]);
	WAIT(daemon_counts(d).submitted == 1);
}

/* Returns how many pages of anonymous memory the process has in use. */
static uint64_t pages_private(void)
{
	unsigned long resident = 0, shared = 0;
	char text[256] = {0};
	int file = open("/proc/self/statm", O_RDONLY); /* without an allocation */

	CHECK(file >= 0 && read(file, text, sizeof(text) - 1) > 0);
	close(file);
	CHECK(sscanf(text, "%*u %lu %lu", &resident, &shared) == 2);
	return resident - shared;
}

static void memory_goes_back(void)
{
	enum { N = 4096, ROUNDS = 3 };
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(2 * N);
	struct ibv_qp *qp = rig_qp(r, N);
	static struct ibv_wc wc[N];
	uint64_t before, full;

	memset(wc, 1, sizeof(wc));
	rig_ready(qp);
	for (int round = 0; round < ROUNDS; round++) {
		before = pages_private();
		rig_post_writes(r, qp, (uint64_t)round * N, N, IBV_SEND_SIGNALED);
		CHECK(pages_private() > before + 200); /* each is a copy of more than 200 bytes */
		WAIT(daemon_segment(d)->report.held_work_requests == N);
		daemon_grant_all(d, true);
		WAIT(daemon_segment(d)->report.held_work_requests == 0);
		daemon_grant_all(d, false);
		full = pages_private(); /* while completions are to come, all of it stays */
		CHECK_EQUAL(fake_complete(qp, N), N);
		rig_drain(r, wc, N);
		for (unsigned i = 0; i < N; i++)
			CHECK(wc[i].wr_id == (uint64_t)round * N + i);
		WAIT(pages_private() < full - 200);
	}
}

static void rules_change(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct mfs_rule pass = {.action = MFS_RULE_PASS, .stage = MFS_STAGE_COLLECTIVE, .dscp = MFS_DSCP_KEEP};
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	rig_ready(qp);
	daemon_rules(d, &pass, 1);
	wr = rig_write(r, &sge, 1, 64, IBV_SEND_SIGNALED);
	WAIT(daemon_segment(d)->report.queue_pairs[MFS_ROLE_UNKNOWN] == 1);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), 1);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE], 64);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"held_until_granted", held_until_granted},
		{"order_is_kept", order_is_kept},
		{"credit_does_not_overtake", credit_does_not_overtake},
		{"directions", directions},
		{"open_gate", open_gate},
		{"unsignaled", unsignaled},
		{"forced_signal_in_error", forced_signal_in_error},
		{"too_long", too_long},
		{"rounds_share_a_budget", rounds_share_a_budget},
		{"nic_beyond_the_first", nic_beyond_the_first},
		{"library_timeout", library_timeout},
		{"served_until_the_timeout", served_until_the_timeout},
		{"slice_timeout", library_timeout},
		{"a_turn_ends_with_the_budget", a_turn_ends_with_the_budget},
		{"served_is_not_lost", served_is_not_lost},
		{"turns_are_not_lost", turns_are_not_lost},
		{"a_moment_for_all_is_no_share", a_moment_for_all_is_no_share},
		{"more_than_slots", more_than_slots},
		{"tasks_fit_the_rate", tasks_fit_the_rate},
		{"tasks_of_a_rate_known", tasks_of_a_rate_known},
		{"tasks_of_a_fast_link", tasks_of_a_fast_link},
		{"tasks_of_a_fast_link_in_larger_work_requests", tasks_of_a_fast_link_in_larger_work_requests},
		{"tasks_of_an_absurd_rate", tasks_of_an_absurd_rate},
		{"tasks_of_an_unknown_rate", tasks_of_an_unknown_rate},
		{"observe", observe},
		{"mode_lowered", mode_lowered},
		{"polls_seldom", polls_seldom},
		{"longer_than_the_slots", longer_than_the_slots},
		{"memory_goes_back", memory_goes_back},
		{"rules_change", rules_change},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
