/* Several threads, signals, and a million work requests. */
#define _GNU_SOURCE
#include "shim_test.h"

#include <mfs/usage.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>

#define QPS 4
#define SEND_WRS 128

struct stream {
	struct ibv_qp *qp;
	uint64_t posted_by_caller, completed, expected_at_device;
	uint64_t signaled[1 << 10]; /* ids whose completion is due, oldest first */
	uint64_t signal_head, signal_tail;
};

static struct stream streams[QPS];
static struct rig *shared;
static unsigned per_qp;
static _Atomic bool misordered;
static _Atomic uint64_t at_device; /* of all streams */

/* remote_addr is the number of the work request on its queue pair: the device must see them in order, none twice. */
static void observe_post(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	for (int i = 0; i < QPS; i++)
		if (streams[i].qp == qp) {
			if (wr->wr.rdma.remote_addr != streams[i].expected_at_device)
				atomic_store(&misordered, true);
			streams[i].expected_at_device++;
			atomic_fetch_add_explicit(&at_device, 1, memory_order_relaxed);
		}
}

static unsigned random_of(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(*state >> 33);
}

/* One thread owns two queue pairs: posts chains until ENOMEM, polls, checks every completion. */
static void *drive(void *argument)
{
	struct stream *own = argument;
	struct rig *r = shared;
	struct ibv_cq *cq = own->qp->send_cq;
	uint64_t dice = (uint64_t)(own - streams) + 1, done = 0;

	while (done < 2) {
		struct ibv_wc wc[16];
		int got;

		done = 0;
		for (struct stream *s = own; s < own + 2; s++) {
			struct ibv_send_wr wr[8], *bad;
			struct ibv_sge sge[8];
			unsigned n = 1 + random_of(&dice) % 8;
			int rc;

			if (s->posted_by_caller == per_qp) {
				done += s->signal_head == s->signal_tail;
				continue;
			}
			if (n > per_qp - s->posted_by_caller)
				n = per_qp - (unsigned)s->posted_by_caller;
			for (unsigned i = 0; i < n; i++) {
				uint64_t number = s->posted_by_caller + i;
				bool signaled = random_of(&dice) % 4 == 0 || number + 1 == per_qp || number % 16 == 15;

				wr[i] = rig_write(r, &sge[i], number, random_of(&dice) % 100000,
						  signaled ? IBV_SEND_SIGNALED : 0);
				wr[i].wr.rdma.remote_addr = number;
				wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
			}
			rc = ibv_post_send(s->qp, wr, &bad);
			CHECK(rc == 0 || rc == ENOMEM);
			n = rc ? (unsigned)(bad - wr) : n;
			if (rc) /* only a full queue fails, whichever thread counts its completions at the moment */
				CHECK(s->posted_by_caller + n - s->completed >= SEND_WRS);
			for (unsigned i = 0; i < n; i++)
				if (wr[i].send_flags & IBV_SEND_SIGNALED)
					s->signaled[s->signal_head++ % 1024] = s->posted_by_caller + i;
			s->posted_by_caller += n;
		}
		got = ibv_poll_cq(cq, 16, wc);
		CHECK(got >= 0);
		for (int i = 0; i < got; i++) {
			struct stream *s = own->qp->qp_num == wc[i].qp_num ? own : own + 1;

			CHECK_EQUAL(wc[i].status, IBV_WC_SUCCESS);
			CHECK_EQUAL(s->qp->qp_num, wc[i].qp_num);
			CHECK(s->signal_head != s->signal_tail);
			CHECK_EQUAL(wc[i].wr_id, s->signaled[s->signal_tail % 1024]);
			s->signal_tail++;
			s->completed = wc[i].wr_id + 1;
		}
	}
	return NULL;
}

static void run_streams(struct daemon *d)
{
	pthread_t threads[QPS / 2];
	struct ibv_cq *cqs[QPS / 2];

	shared = rig_open(4096);
	fake_observer = observe_post;
	fake_complete_at_once(true);
	for (int i = 0; i < QPS; i++) {
		if (i % 2 == 0)
			cqs[i / 2] = shared->cq = ibv_create_cq(shared->context, 512, NULL, NULL, 0);
		streams[i].qp = rig_qp(shared, SEND_WRS);
		rig_ready(streams[i].qp);
	}
	for (int i = 0; i < QPS / 2; i++)
		CHECK(pthread_create(&threads[i], NULL, drive, &streams[2 * i]) == 0);
	for (int i = 0; i < QPS / 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	for (int i = 0; i < QPS / 2; i++) {
		struct ibv_wc wc[4];

		CHECK_EQUAL(ibv_poll_cq(cqs[i], 4, wc), 0);
	}
	for (int i = 0; i < QPS; i++)
		CHECK_EQUAL(streams[i].expected_at_device, per_qp);
	CHECK(!misordered);
	CHECK_EQUAL(fake_cq_overruns(), 0);
	WAIT(daemon_counts(d).completed + daemon_counts(d).cancelled == daemon_counts(d).submitted);
}

static void million(void)
{
	struct daemon *d = hold_daemon();

	per_qp = (unsigned)atoi(getenv("PER_QP") ? getenv("PER_QP") : "250000");
	daemon_grant_all(d, true);
	run_streams(d);
	CHECK(daemon_counts(d).submitted > per_qp / 100);
	CHECK_EQUAL(daemon_segment(d)->report.held_bytes, 0);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE],
		    daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE]);
}

/* The same, while the daemon opens and closes its gate, hangs, dies and comes back. */
static struct daemon *unruly_daemon;
static struct daemon_options unruly_options; /* of each daemon that comes; none holds anything for long */
static _Atomic bool streams_done;

/* Waits until more is posted than can have been permitted before: the streams go on under the present
 * conditions. */
static void streams_go_on(void)
{
	uint64_t before = at_device;

	WAIT(atomic_load(&streams_done) || at_device - before > QPS * SEND_WRS);
}

static void *unruly(void *unused)
{
	uint64_t dice = 99;

	(void)unused;
	while (!atomic_load(&streams_done)) {
		struct daemon *d = unruly_daemon;

		streams_go_on();
		switch (random_of(&dice) % 8) {
		case 0:
			daemon_gate(d, 0);
			streams_go_on();
			daemon_gate(d, GATE_CLOSED);
			break;
		case 1:
			daemon_grant_all(d, false);
			streams_go_on(); /* by max_hold */
			daemon_grant_all(d, true);
			break;
		case 2:
			daemon_pause(d, true);
			streams_go_on(); /* by stale_after */
			daemon_pause(d, false);
			break;
		case 3:
			daemon_kill(d);
			streams_go_on();
			unruly_daemon = daemon_start(&unruly_options);
			break;
		default:
			break;
		}
	}
	return NULL;
}

static void million_unruly(void)
{
	pthread_t trouble;
	struct ibv_wc wc[4];

	unruly_options = (struct daemon_options){.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
						 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE, .grant_all = true,
						 .max_hold_ns = 15000000, .stale_after_ns = 50000000};
	unruly_daemon = daemon_start(&unruly_options);
	per_qp = (unsigned)atoi(getenv("PER_QP") ? getenv("PER_QP") : "250000");
	shared = rig_open(4096);
	fake_observer = observe_post;
	fake_complete_at_once(true);
	for (int i = 0; i < QPS; i++) {
		if (i % 2 == 0)
			shared->cq = ibv_create_cq(shared->context, 512, NULL, NULL, 0);
		streams[i].qp = rig_qp(shared, SEND_WRS);
		rig_ready(streams[i].qp);
	}
	CHECK(pthread_create(&trouble, NULL, unruly, NULL) == 0);
	pthread_t threads[QPS / 2];
	for (int i = 0; i < QPS / 2; i++)
		CHECK(pthread_create(&threads[i], NULL, drive, &streams[2 * i]) == 0);
	for (int i = 0; i < QPS / 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	atomic_store(&streams_done, true);
	CHECK(pthread_join(trouble, NULL) == 0);
	for (int i = 0; i < QPS; i++) {
		CHECK_EQUAL(streams[i].expected_at_device, per_qp);
		CHECK_EQUAL(ibv_poll_cq(streams[i].qp->send_cq, 4, wc), 0);
	}
	CHECK(!misordered);
}

/* Several threads post to one queue pair: nothing is lost or doubled, and each thread's own order is kept. */
static struct ibv_qp *one;
static _Atomic uint64_t last_of[4];

static void observe_one(struct ibv_qp *qp, const struct ibv_send_wr *wr)
{
	unsigned thread = (unsigned)(wr->wr_id >> 32);

	if (qp == one && (wr->wr_id & 0xffffffff) != last_of[thread]++)
		atomic_store(&misordered, true);
}

static void *post_to_one(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument;
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	for (uint64_t i = 0; i < per_qp;) {
		struct ibv_wc wc[8];

		wr = rig_write(shared, &sge, thread << 32 | i, 100, IBV_SEND_SIGNALED);
		i += ibv_post_send(one, &wr, &bad) == 0;
		CHECK(ibv_poll_cq(shared->cq, 8, wc) >= 0);
	}
	return NULL;
}

static void one_queue_pair(void)
{
	struct daemon *d = hold_daemon();
	pthread_t threads[4];
	struct ibv_wc wc[8];

	per_qp = (unsigned)atoi(getenv("PER_QP") ? getenv("PER_QP") : "20000");
	daemon_grant_all(d, true);
	shared = rig_open(512);
	one = rig_qp(shared, 256);
	rig_ready(one);
	fake_observer = observe_one;
	fake_complete_at_once(true);
	for (uintptr_t i = 0; i < 4; i++)
		CHECK(pthread_create(&threads[i], NULL, post_to_one, (void *)i) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	WAIT((rig_poll(shared, wc, 8), last_of[0] + last_of[1] + last_of[2] + last_of[3] == 4 * (uint64_t)per_qp));
	CHECK(!misordered);
	WAIT((rig_poll(shared, wc, 8), daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE] ==
						daemon_segment(d)->usage[0].completed.bytes[HOLD_STAGE]));
	WAIT(daemon_counts(d).completed + daemon_counts(d).cancelled == daemon_counts(d).submitted);
}

static void *only_post_to_one(void *argument)
{
	uint64_t thread = (uint64_t)(uintptr_t)argument;
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	for (uint64_t i = 0; i < per_qp;) {
		wr = rig_write(shared, &sge, thread << 32 | i, 100, IBV_SEND_SIGNALED);
		i += ibv_post_send(one, &wr, &bad) == 0;
	}
	return NULL;
}

static void poll_until(_Atomic uint64_t *count, uint64_t n)
{
	struct ibv_wc wc[8];

	while (atomic_load(count) < n)
		CHECK(rig_poll(shared, wc, 8) >= 0);
}

/* A queue pair at which nothing is held belongs to its first thread until others come. Then it is
 * destroyed, and its record is used again. */
static void handed_over_under(uint16_t older)
{
	struct daemon_options options = {.path = socket_path(), .mode = MFS_MODE_ENFORCE, .older = older};
	struct daemon *d = daemon_start(&options);
	pthread_t threads[4];
	struct ibv_wc wc[8];

	per_qp = (unsigned)atoi(getenv("PER_QP") ? getenv("PER_QP") : "20000") / 5;
	shared = rig_open(512);
	fake_observer = observe_one;
	fake_complete_at_once(true);
	for (unsigned round = 1; round <= 8; round++) {
		const struct mfs_segment *s = daemon_segment(d);
		const uint64_t bytes = 400ull * per_qp * round;

		one = rig_qp(shared, 256);
		rig_ready(one);
		for (uintptr_t i = 0; i < 4; i++) {
			atomic_store(&last_of[i], 0);
			CHECK(pthread_create(&threads[i], NULL, only_post_to_one, (void *)i) == 0);
			poll_until(&last_of[i], per_qp / 4);
		}
		for (int i = 0; i < 4; i++) {
			poll_until(&last_of[i], per_qp);
			CHECK(pthread_join(threads[i], NULL) == 0);
		}
		if (older) {
			CHECK_EQUAL(s->usage[0].posted.bytes[MFS_STAGE_CONTROL], bytes);
		} else {
			CHECK_EQUAL(mfs_usage_posted(s, 0, MFS_STAGE_CONTROL), bytes);
			CHECK(s->usage[0].posted.bytes[MFS_STAGE_CONTROL] < bytes); /* the first thread counted alone */
		}
		WAIT((rig_poll(shared, wc, 8), mfs_usage_completed(s, 0, MFS_STAGE_CONTROL) == bytes));
		CHECK(!misordered);
		CHECK(ibv_destroy_qp(one) == 0);
	}
}

static void handed_over(void)
{
	handed_over_under(0);
}

/* A daemon of minor 3 reads the counters that all threads share, and no others. */
static void handed_over_under_an_older_daemon(void)
{
	handed_over_under(MFS_ABI_MINOR - 3);
}

static _Atomic bool posting_done;

static void *post_until_reported(void *unused)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc[8];

	(void)unused;
	for (uint64_t i = 0; !atomic_load(&posting_done);) {
		wr = rig_write(shared, &sge, i, 100, IBV_SEND_SIGNALED);
		i += ibv_post_send(one, &wr, &bad) == 0;
		CHECK(ibv_poll_cq(shared->cq, 8, wc) >= 0);
	}
	return NULL;
}

/* The rules begin to hold what a thread has posted without a lock until now: nothing overtakes. */
static void begins_to_hold(void)
{
	struct daemon_options options = {.path = socket_path(), .mode = MFS_MODE_ENFORCE, .gate = GATE_CLOSED,
					 .grant_all = true};
	struct daemon *d = daemon_start(&options);
	struct mfs_rule hold = hold_rule();
	struct ibv_wc wc[8];
	pthread_t thread;

	shared = rig_open(512);
	one = rig_qp(shared, 256);
	rig_ready(one);
	fake_observer = observe_one;
	fake_complete_at_once(true);
	CHECK(pthread_create(&thread, NULL, post_until_reported, NULL) == 0);
	WAIT(last_of[0] > 1000);
	CHECK_EQUAL(daemon_counts(d).submitted, 0);
	daemon_rules(d, &hold, 1);
	WAIT(daemon_counts(d).submitted > 100);
	atomic_store(&posting_done, true);
	CHECK(pthread_join(thread, NULL) == 0);
	WAIT((rig_poll(shared, wc, 8), daemon_counts(d).completed + daemon_counts(d).cancelled == daemon_counts(d).submitted));
	CHECK(!misordered);
}

/* A signal handler posts to queue pair B whatever the thread was doing: the fake device's lock is never held for B when
 * the handler runs, since the main flow only polls and posts to A. */
static struct ibv_qp *of_handler;
static _Atomic unsigned handled;

static void handler(int signal)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	(void)signal;
	wr = rig_write(shared, &sge, handled, 100, IBV_SEND_SIGNALED);
	if (ibv_post_send(of_handler, &wr, &bad) == 0)
		handled++;
}

static void posts_in_handler(void)
{
	sigset_t alarm, old;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, &old); /* the daemon's thread must not run the handler */
	struct daemon *d = hold_daemon();
	struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_wc wc[8];
	struct ibv_qp *a;

	shared = rig_open(4096);
	a = rig_qp(shared, 64);
	of_handler = rig_qp(shared, 1024);
	rig_ready(a);
	rig_ready(of_handler);
	signal(SIGALRM, handler);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	for (unsigned i = 0; handled < 300; i++) { /* held: the handler never reaches the device here */
		wr = rig_write(shared, &sge, i, 100, IBV_SEND_SIGNALED);
		ibv_post_send(a, &wr, &bad);
		rig_poll(shared, wc, 8);
	}
	setitimer(ITIMER_REAL, &never, NULL);
	daemon_grant_all(d, true);
	WAIT((rig_poll(shared, wc, 8), posted(of_handler) == handled));
	const struct fake_record *log = fake_log(of_handler, &(unsigned){0});

	for (unsigned i = 0; i < handled; i++)
		CHECK_EQUAL(log[i].wr_id, i);
}

/* Written by the thread only; its value is right wherever the thread can be cancelled. */
static struct ibv_qp *of_cancelled;
static _Atomic unsigned cancelled_posts;

static void *post_until_cancelled(void *unused)
{
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;

	(void)unused;
	for (;;) { /* the queue fills up: later posts return ENOMEM and change nothing */
		unsigned n = atomic_load(&cancelled_posts);

		wr = rig_write(shared, &sge, n, 100, IBV_SEND_SIGNALED);
		if (ibv_post_send(of_cancelled, &wr, &bad) == 0)
			atomic_store(&cancelled_posts, n + 1);
		pthread_testcancel();
	}
	return NULL;
}

/* No call of the shim is a cancellation point: a thread is never cancelled with a post half done or a lock
 * held. */
static void cancelled_while_posting(void)
{
	struct daemon *d = hold_daemon();
	const struct fake_record *log;
	unsigned n;

	shared = rig_open(4096);
	of_cancelled = rig_qp(shared, 1024);
	rig_ready(of_cancelled);
	for (unsigned round = 0; round < 40; round++) {
		unsigned before = atomic_load(&cancelled_posts);
		pthread_t thread;
		void *result;

		CHECK(pthread_create(&thread, NULL, post_until_cancelled, NULL) == 0);
		WAIT(atomic_load(&cancelled_posts) > before + 3);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
		daemon_grant_all(d, round % 2);
		if (atomic_load(&cancelled_posts) > 800) /* nearly full */
			break;
	}
	daemon_grant_all(d, true);
	WAIT(posted(of_cancelled) == atomic_load(&cancelled_posts));
	log = fake_log(of_cancelled, &n);
	for (unsigned i = 0; i < n; i++)
		CHECK_EQUAL(log[i].wr_id, i);
}

static void *open_while_cancelled(void *unused)
{
	pthread_cancel(pthread_self());
	shared = rig_open(64);
	pthread_testcancel();
	return unused;
}

/* The daemon's greeting is no cancellation point, either. */
static void cancelled_while_opening(void)
{
	struct daemon *d = hold_daemon();
	struct ibv_qp *qp;
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, open_while_cancelled, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	alarm(100);
	shared = rig_open(64); /* waits for ever if that thread has kept a lock */
	alarm(0);
	qp = rig_qp(shared, 16);
	rig_ready(qp);
	rig_post_writes(shared, qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 1);
	daemon_grant(d, 1);
	WAIT(posted(qp) == 1);
	CHECK_EQUAL(daemon_counts(d).attached, 1);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"million", million},
		{"million_unruly", million_unruly},
		{"one_queue_pair", one_queue_pair},
		{"handed_over", handed_over},
		{"handed_over_under_an_older_daemon", handed_over_under_an_older_daemon},
		{"begins_to_hold", begins_to_hold},
		{"posts_in_handler", posts_in_handler},
		{"cancelled_while_posting", cancelled_while_posting},
		{"cancelled_while_opening", cancelled_while_opening},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
