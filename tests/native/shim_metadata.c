/* What an engine says about its bytes, through mfs/api.h: contexts, ranges, lanes, the shared session. */
#include "shim_test.h"

#include <mfs/api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const struct mfs_context of_request = {
	.request_id = 7, .deadline_ns = 123456789, .batch = 3, .layer = 11, .stage = MFS_STAGE_REUSE};
static const struct mfs_context of_other = {.request_id = 8, .batch = MFS_NONE_U32};

static void post(struct rig *r, struct ibv_qp *qp, uint64_t wr_id, uint32_t bytes, int flags)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = rig_write(r, &sge, wr_id, bytes, flags), *bad;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static struct ibv_qp *ready_with(struct rig *r, uint32_t max_send_wr)
{
	struct ibv_qp *qp = rig_qp(r, max_send_wr);

	rig_ready(qp);
	return qp;
}

static struct ibv_qp *ready(struct rig *r)
{
	return ready_with(r, 16);
}

static void check_message(struct mfs_message m, uint64_t request, uint8_t stage, uint64_t bytes)
{
	CHECK_EQUAL(m.request_id, request);
	CHECK_EQUAL(m.stage, stage);
	CHECK_EQUAL(m.bytes, bytes);
}

static struct daemon *daemon_with(struct mfs_rule rule, uint32_t gate)
{
	struct daemon_options options = {.path = socket_path(), .rules = {rule}, .rules_count = 1, .gate = gate,
					 .mode = MFS_MODE_ENFORCE, .dscp = {46, 34, 26, 18, MFS_DSCP_KEEP}};

	return daemon_start(&options);
}

#define GATE_ALL (~0u >> 1)

/* What is posted under a context carries it, what is posted before and after does not, and each task has
 * one tag. */
static void context(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), GATE_ALL);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r);
	struct mfs_message m;
	struct mfs_context now;
	struct ibv_wc wc[4];

	CHECK(api && api->version == 4 && api->bytes == sizeof(*api) && mfs_api_lends_client(api));
	post(r, qp, 0, 64, IBV_SEND_SIGNALED);
	CHECK_EQUAL(api->context_of(0, &now), -ENOENT);
	CHECK(api->context_set(&of_request) == 0);
	CHECK(api->context_of(0, &now) == 0 && !memcmp(&now, &of_request, sizeof(now)));
	post(r, qp, 1, 100, IBV_SEND_SIGNALED);
	CHECK(api->context_set(&of_other) == 0); /* names no stage */
	post(r, qp, 2, 200, IBV_SEND_SIGNALED);
	CHECK(api->context_set(NULL) == 0);
	post(r, qp, 3, 300, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	check_message(daemon_submitted(d, 0), 0, HOLD_STAGE, 64);
	m = daemon_submitted(d, 1);
	check_message(m, 7, MFS_STAGE_REUSE, 100);
	CHECK_EQUAL(m.deadline_ns, 123456789);
	CHECK_EQUAL(m.batch, 3);
	CHECK_EQUAL(m.layer, 11);
	CHECK_EQUAL(m.role, MFS_ROLE_KV);
	m = daemon_submitted(d, 2);
	check_message(m, 8, HOLD_STAGE, 200);
	CHECK_EQUAL(m.batch, MFS_NONE_U32);
	check_message(daemon_submitted(d, 3), 0, HOLD_STAGE, 300);
	daemon_grant(d, 4);
	WAIT(posted(qp) == 4);
	fake_complete(qp, 4);
	rig_drain(r, wc, 4);

	struct mfs_usage *usage = &daemon_segment(d)->usage[0];

	CHECK_EQUAL(usage->posted.bytes[HOLD_STAGE], 564);
	CHECK_EQUAL(usage->completed.bytes[HOLD_STAGE], 564);
	CHECK_EQUAL(usage->posted.bytes[MFS_STAGE_REUSE], 100);
	CHECK_EQUAL(usage->completed.bytes[MFS_STAGE_REUSE], 100);
}

/* Only the stage that the context names is closed: work requests of the queue pair wait with the context
 * and go without it. */
static void stage_of_context_is_asked(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), 1u << MFS_STAGE_REUSE);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r);

	post(r, qp, 0, 64, 0);
	CHECK_EQUAL(posted(qp), 1);
	api->context_set(&of_request);
	post(r, qp, 1, 64, 0);
	CHECK_EQUAL(posted(qp), 1);
	api->context_set(NULL);
	post(r, qp, 2, 64, 0); /* needs no permit, but keeps its place */
	WAIT(daemon_counts(d).submitted == 1);
	CHECK_EQUAL(posted(qp), 1);
	daemon_grant(d, 1);
	WAIT(posted(qp) == 3);
	CHECK_EQUAL(daemon_counts(d).submitted, 1);
}

/* A context cannot make a collective wait; an unscheduled stage in a context goes at once, and so does what is ahead. */
static void unscheduled_never_waits(void)
{
	struct mfs_rule collective = {.stage = MFS_STAGE_COLLECTIVE, .action = MFS_RULE_HOLD, .dscp = MFS_DSCP_KEEP};
	struct mfs_context control = {.batch = MFS_NONE_U32, .stage = MFS_STAGE_COLLECTIVE};
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(collective, GATE_ALL);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r), *held;
	struct mfs_rule hold = hold_rule();

	api->context_set(&of_request);
	post(r, qp, 0, 64, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 1);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE], 64);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[MFS_STAGE_REUSE], 0);
	daemon_rules(d, &hold, 1);
	held = ready(r);
	WAIT(daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV] == 2); /* the new rules have come */
	post(r, held, 98, 64, 0);
	CHECK_EQUAL(posted(held), 0);
	api->context_set(&control);
	post(r, held, 99, 64, 0);
	CHECK_EQUAL(posted(held), 2);
	CHECK_EQUAL(fake_log(held, &(unsigned){0})[1].wr_id, 99);
}

/* Bytes without a signal of their own complete with the next signal of the queue pair, under their own stage. */
static void unsignaled_bytes_keep_their_stage(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), 0);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r);
	struct ibv_wc wc[4];
	struct mfs_usage *usage;

	post(r, qp, 0, 10, 0);
	post(r, qp, 1, 20, 0);
	api->context_set(&of_request);
	post(r, qp, 2, 300, 0);
	api->context_set(NULL);
	post(r, qp, 3, 40, IBV_SEND_SIGNALED);
	post(r, qp, 4, 50, 0);
	usage = &daemon_segment(d)->usage[0];
	CHECK_EQUAL(usage->posted.bytes[HOLD_STAGE], 120);
	CHECK_EQUAL(usage->posted.bytes[MFS_STAGE_REUSE], 300);
	fake_complete(qp, 4);
	rig_drain(r, wc, 1);
	CHECK_EQUAL(usage->completed.bytes[HOLD_STAGE], 70);
	CHECK_EQUAL(usage->completed.bytes[MFS_STAGE_REUSE], 300);
	api->context_set(&of_request);
	post(r, qp, 5, 600, 0);
	CHECK(rig_state(qp, IBV_QPS_RESET) == 0); /* nothing more is in flight, of either stage */
	CHECK_EQUAL(usage->completed.bytes[HOLD_STAGE], usage->posted.bytes[HOLD_STAGE]);
	CHECK_EQUAL(usage->completed.bytes[MFS_STAGE_REUSE], usage->posted.bytes[MFS_STAGE_REUSE]);
	CHECK_EQUAL(usage->posted.bytes[MFS_STAGE_REUSE], 900);
}

/* A new daemon gets what is in flight, stage by stage, and sees it complete. */
static void in_flight_moves_to_a_new_daemon(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), 0);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r);
	struct mfs_segment *s;
	struct ibv_wc wc[4];

	post(r, qp, 0, 10, IBV_SEND_SIGNALED);
	api->context_set(&of_request);
	post(r, qp, 1, 20, IBV_SEND_SIGNALED);
	daemon_kill(d);
	d = daemon_with(hold_rule(), 0);
	WAIT((s = daemon_segment(d)) && s->usage[0].posted.bytes[MFS_STAGE_REUSE] == 20);
	CHECK_EQUAL(s->usage[0].posted.bytes[HOLD_STAGE], 10);
	fake_complete(qp, 2);
	rig_drain(r, wc, 2);
	CHECK_EQUAL(s->usage[0].completed.bytes[MFS_STAGE_REUSE], 20);
	CHECK_EQUAL(s->usage[0].completed.bytes[HOLD_STAGE], 10);
}

/* One chain over buffers of several requests becomes a task for each, in order. */
static void ranges(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), GATE_ALL);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r);
	uint64_t base = (uintptr_t)r->buffer;
	struct ibv_send_wr wr[5], *bad;
	struct ibv_sge sge[5];
	static const uint64_t at[] = {0, 512, 1024, 1536, 2048};
	static const uint64_t requests[] = {1, 2, 0, 3};

	for (uint64_t i = 0; i < 3; i++) { /* [0, 1024), [1024, 1536), [2048, 3072) */
		struct mfs_context c = {.request_id = i + 1, .batch = MFS_NONE_U32};
		static const uint64_t first[] = {0, 1024, 2048}, bytes[] = {1024, 512, 1024};

		CHECK(api->range_add(base + first[i], bytes[i], &c) == 0);
	}
	for (int i = 0; i < 5; i++) {
		wr[i] = rig_write(r, &sge[i], (uint64_t)i, 128, IBV_SEND_SIGNALED);
		sge[i].addr = base + at[i];
		wr[i].next = i < 4 ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	for (int i = 0; i < 5; i++)
		CHECK(wr[i].next == (i < 4 ? &wr[i + 1] : NULL)); /* the caller's chain is whole again */
	WAIT(daemon_counts(d).submitted == 4);
	for (unsigned i = 0; i < 4; i++)
		check_message(daemon_submitted(d, i), requests[i], HOLD_STAGE, i ? 128 : 256);
	daemon_grant(d, 4);
	WAIT(posted(qp) == 5);
	for (unsigned i = 0; i < 5; i++)
		CHECK_EQUAL(fake_log(qp, &(unsigned){0})[i].wr_id, i);

	struct mfs_context now;

	CHECK(api->context_of(base + 100, &now) == 0 && now.request_id == requests[0]);
	CHECK_EQUAL(api->context_of(1, &now), -ENOENT);
	api->context_set(&of_other); /* the thread's context takes precedence over the range's */
	CHECK(api->context_of(base + 100, &now) == 0 && now.request_id == of_other.request_id);
	post(r, qp, 9, 64, 0);
	api->context_set(NULL);
	CHECK(api->range_remove(base) == 0);
	post(r, qp, 10, 64, 0);
	WAIT(daemon_counts(d).submitted == 6);
	check_message(daemon_submitted(d, 4), 8, HOLD_STAGE, 64);
	check_message(daemon_submitted(d, 5), 0, HOLD_STAGE, 64);
}

static void range_errors(void)
{
	const struct mfs_api *api = mfs_api();
	struct mfs_context c = {.request_id = 1};

	CHECK_EQUAL(api->range_add(4096, 0, &c), -EINVAL);
	CHECK_EQUAL(api->range_add(UINT64_MAX - 10, 12, &c), -EINVAL);
	CHECK_EQUAL(api->range_add(4096, 1, NULL), -EINVAL);
	CHECK_EQUAL(api->range_remove(4096), -ENOENT);
	CHECK_EQUAL(api->range_add(UINT64_MAX - 10, 11, &c), 0);
	CHECK_EQUAL(api->range_add(4096, 4096, &c), 0);
	CHECK_EQUAL(api->range_add(4096, 4096, &c), 0); /* again: replaced */
	CHECK_EQUAL(api->range_add(4096, 4095, &c), -EEXIST);
	CHECK_EQUAL(api->range_add(8191, 1, &c), -EEXIST);
	CHECK_EQUAL(api->range_add(0, 4097, &c), -EEXIST);
	CHECK_EQUAL(api->range_add(0, 4096, &c), 0);
	CHECK_EQUAL(api->range_remove(1), -ENOENT);
	CHECK_EQUAL(api->range_remove(0), 0);
	CHECK_EQUAL(api->range_remove(UINT64_MAX - 10), 0);
	CHECK_EQUAL(api->range_remove(4096), 0);
	for (uint64_t i = 0; i < MFS_RANGES_MAX; i++)
		CHECK_EQUAL(api->range_add(1 << 20 | (i * 7919 % MFS_RANGES_MAX) << 8, 256, &c), 0);
	CHECK_EQUAL(api->range_add(4096, 1, &c), -ENOSPC);
	for (uint64_t i = 0; i < MFS_RANGES_MAX; i++)
		CHECK_EQUAL(api->range_remove(1 << 20 | i << 8), 0);
	CHECK_EQUAL(api->range_add(4096, 1, &c), 0);
}

/* The ibv_wr_* interface: a context applies to what is begun under it, a range to what lies in it. */
static void builder(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), GATE_ALL);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp_ex(r, 16);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc[4];

	rig_ready(qp);
	CHECK(api->range_add((uintptr_t)r->buffer + 64, 64, &of_request) == 0);
	for (int closed = 1; closed >= 0; closed--) {
		uint64_t before = daemon_counts(d).submitted;

		ibv_wr_start(x);
		x->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(x, 1, 2);
		ibv_wr_set_sge(x, r->mr->lkey, (uintptr_t)r->buffer + 100, 10);
		CHECK(ibv_wr_complete(x) == 0);
		api->context_set(&of_other);
		ibv_wr_start(x);
		ibv_wr_rdma_write(x, 1, 2);
		ibv_wr_set_sge(x, r->mr->lkey, (uintptr_t)r->buffer + 100, 20);
		CHECK(ibv_wr_complete(x) == 0);
		api->context_set(NULL);
		if (closed) {
			WAIT(daemon_counts(d).submitted == 2);
			check_message(daemon_submitted(d, 0), 7, MFS_STAGE_REUSE, 10);
			check_message(daemon_submitted(d, 1), 8, HOLD_STAGE, 20);
			daemon_grant(d, 2);
			WAIT(posted(qp) == 2);
			daemon_gate(d, 0);
		}
		CHECK_EQUAL(daemon_counts(d).submitted, closed ? 2 : before);
		fake_complete(qp, 2);
		rig_drain(r, wc, 2);
	}

	struct mfs_usage *usage = &daemon_segment(d)->usage[0];

	CHECK_EQUAL(usage->completed.bytes[MFS_STAGE_REUSE], 20);
	CHECK_EQUAL(usage->completed.bytes[HOLD_STAGE], 40);
}

static void lanes(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), GATE_ALL);
	struct rig *plain = rig_open(64), *whole;
	struct ibv_qp *single, *without, *later;

	CHECK_EQUAL(api->lane_set(-2), -EINVAL);
	CHECK_EQUAL(api->lane_set(MFS_CLASSES_MAX), -EINVAL);
	CHECK(api->lane_set(1) == 0);
	single = ready(plain);
	CHECK(api->lane_set(2) == 0);
	whole = rig_open(64);
	CHECK(api->lane_set(-1) == 0);
	without = ready(plain);
	later = ready(whole); /* the device was opened as a lane */
	CHECK(api->lane_set(4) == 0);
	struct ibv_qp *unmarked = ready(whole);
	CHECK(api->lane_set(-1) == 0);

	CHECK_EQUAL(fake_traffic_class(single), 34 << 2 | 2);
	CHECK_EQUAL(fake_traffic_class(without), 10 << 2 | 2); /* the rule's */
	CHECK_EQUAL(fake_traffic_class(later), 26 << 2 | 2);
	CHECK_EQUAL(fake_traffic_class(unmarked), 2); /* class 4 has none: the program's own stays */
	post(plain, single, 0, 64, 0);
	post(plain, without, 0, 64, 0);
	api->context_set(&of_request);
	post(whole, later, 0, 64, 0);
	CHECK_EQUAL(posted(single), 1);
	CHECK_EQUAL(posted(without), 0);
	CHECK_EQUAL(posted(later), 1);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE], 64);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[MFS_STAGE_REUSE], 64);
	CHECK_EQUAL(daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV], 4);
}

/* An engine's own tasks and held work requests on one session: each gets its own permits, whichever thread takes them. */
static void session(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d;
	struct mfs_client *client;
	struct rig *r;
	struct ibv_qp *qp;
	struct mfs_task task = {.bytes = 1000, .request_id = 5, .batch = MFS_NONE_U32, .stage = MFS_STAGE_REUSE};
	uint64_t id[8];

	CHECK(api->client() == NULL);
	d = daemon_with(hold_rule(), GATE_ALL);
	r = rig_open(64);
	qp = ready(r);
	client = api->client();
	CHECK(client);
	for (int i = 0; i < 8; i++) {
		CHECK(mfs_client_submit(client, &task, MFS_COOKIE_NONE, &id[i]) == 0);
		post(r, qp, (uint64_t)i, 64, IBV_SEND_SIGNALED);
	}
	WAIT(daemon_counts(d).submitted == 16);
	CHECK_EQUAL(mfs_client_permit(client, id[0]), -EAGAIN);
	daemon_grant(d, 16);
	for (int i = 0; i < 8; i++) {
		CHECK_EQUAL(mfs_client_permit_wait(client, id[i], 20000000000ull), 0);
		mfs_client_complete(client, id[i]);
	}
	WAIT(posted(qp) == 8);
	WAIT(daemon_counts(d).completed == 8);

	daemon_kill(d);
	WAIT(!api->client());
	CHECK_EQUAL(mfs_client_submit(client, &task, MFS_COOKIE_NONE, &id[0]), -ENOTCONN);
	d = daemon_with(hold_rule(), GATE_ALL);
	WAIT(api->client());
	CHECK(api->client() != client);
	CHECK_EQUAL(mfs_client_submit(client, &task, MFS_COOKIE_NONE, &id[0]), -ENOTCONN);
	CHECK(mfs_client_submit(api->client(), &task, MFS_COOKIE_NONE, &id[0]) == 0);
	daemon_grant(d, 1);
	CHECK_EQUAL(mfs_client_permit_wait(api->client(), id[0], 20000000000ull), 0);
}

/* A chain of several tags in memory that cannot be written, held and not, and refused by the device in the middle. */
static void chain_is_not_touched(void)
{
	enum { N = 70 };
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), 0);
	struct rig *r = rig_open(512);
	struct ibv_qp *qp = ready_with(r, 2 * N), *unusual = ready_with(r, 2 * N);
	struct ibv_send_wr *wr = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *bad;
	struct ibv_sge *sge = (struct ibv_sge *)(wr + N);
	const struct fake_record *log;
	unsigned n;

	CHECK(api->range_add((uintptr_t)r->buffer, 64, &of_request) == 0);
	CHECK(api->range_add((uintptr_t)r->buffer + 64, 64, &of_other) == 0);
	for (int i = 0; i < N; i++) { /* 40 of one, and then of each in turn */
		wr[i] = rig_write(r, &sge[i], (uint64_t)i, 8, IBV_SEND_SIGNALED);
		sge[i].addr += i < 40 || i % 2 ? 0 : 64;
		wr[i].next = i < N - 1 ? &wr[i + 1] : NULL;
	}
	wr[60].opcode = IBV_WR_LOCAL_INV;
	CHECK(mprotect(wr, 65536, PROT_READ) == 0);
	bad = NULL;
	CHECK_EQUAL(ibv_post_send(unusual, wr, &bad), EOPNOTSUPP);
	CHECK(bad == &wr[60]);
	CHECK_EQUAL(posted(unusual), 60);
	CHECK(mprotect(wr, 65536, PROT_READ | PROT_WRITE) == 0);
	wr[60].opcode = IBV_WR_RDMA_WRITE;
	CHECK(mprotect(wr, 65536, PROT_READ) == 0);
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), N);
	daemon_gate(d, GATE_ALL);
	CHECK(ibv_post_send(qp, wr, &bad) == 0);
	CHECK_EQUAL(posted(qp), N);
	CHECK_EQUAL(ibv_post_send(qp, wr, &bad), ENOMEM);
	CHECK(bad == wr);
	daemon_grant_all(d, true);
	WAIT(posted(qp) == 2 * N);
	log = fake_log(qp, &n);
	for (unsigned i = 0; i < n; i++)
		CHECK_EQUAL(log[i].wr_id, i % N);
}

/* Nothing is held past the time that its context names, whatever is ahead of it. */
static void lease(void)
{
	const struct mfs_api *api = mfs_api();
	struct mfs_context c = {.request_id = 3, .stage = HOLD_STAGE, .batch = MFS_NONE_U32, .hold_until_ns = UINT64_MAX};
	struct daemon *d = daemon_with(hold_rule(), GATE_ALL);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = ready(r), *other = ready(r);
	struct timespec t;

	post(r, other, 0, 64, IBV_SEND_SIGNALED); /* without a lease */
	for (int i = 0; i < 10; i++)
		post(r, qp, (uint64_t)i, 64, IBV_SEND_SIGNALED);
	CHECK(api->context_set(&c) == 0);
	post(r, qp, 10, 64, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 12);
	CHECK_EQUAL(posted(qp), 0);
	clock_gettime(CLOCK_MONOTONIC, &t);
	c.hold_until_ns = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + 50000000;
	CHECK(api->context_set(&c) == 0);
	post(r, qp, 11, 64, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 12);
	post(r, qp, 12, 64, IBV_SEND_SIGNALED); /* the lease is over already */
	WAIT(posted(qp) == 13);
	CHECK_EQUAL(posted(other), 0);
	CHECK(api->context_set(NULL) == 0);
	post(r, qp, 13, 64, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 13);
}

static void without_a_daemon(void)
{
	const struct mfs_api *api = mfs_api();
	struct mfs_context c = {.request_id = 1, .stage = MFS_STAGE_P2D, .batch = MFS_NONE_U32};
	struct rig *r;
	struct ibv_qp *qp;

	CHECK(api->context_set(&c) == 0);
	CHECK(api->range_add(4096, 10, &c) == 0);
	CHECK(api->lane_set(0) == 0);
	CHECK(api->client() == NULL);
	r = rig_open(64);
	qp = ready(r);
	post(r, qp, 0, 64, 0);
	CHECK_EQUAL(posted(qp), 1);
	CHECK_EQUAL(fake_traffic_class(qp), 2);
}

static void child_starts_without(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_with(hold_rule(), GATE_ALL);
	struct rig *r = rig_open(64); /* from here on fork() is watched */
	int status;
	pid_t child;

	CHECK(api->context_set(&of_request) == 0 && api->lane_set(1) == 0);
	CHECK(api->range_add((uintptr_t)r->buffer, 4096, &of_other) == 0);
	child = fork();
	if (!child) {
		struct rig *own = rig_open(64);
		struct ibv_qp *qp = ready(own);

		post(own, qp, 0, 64, 0);
		CHECK_EQUAL(posted(qp), 0); /* no lane */
		CHECK_EQUAL(fake_traffic_class(qp), 10 << 2 | 2);
		CHECK_EQUAL(api->range_remove((uintptr_t)r->buffer), -ENOENT);
		CHECK_EQUAL(api->range_add((uintptr_t)r->buffer, 4096, &of_other), 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	WAIT(daemon_counts(d).submitted == 1);
	check_message(daemon_submitted(d, 0), 0, HOLD_STAGE, 64); /* no context, no range */
	CHECK_EQUAL(api->range_remove((uintptr_t)r->buffer), 0);
}

/* Readers see only whole tags while others change the ranges under them. */
#define BLOCKS 64
static _Atomic bool stop;
static uint64_t race_base;

static void *change_ranges(void *unused)
{
	const struct mfs_api *api = mfs_api();

	(void)unused;
	for (uint64_t i = 0; !atomic_load(&stop); i++) {
		uint64_t block = i * 7 % BLOCKS, address = race_base + block * 64;
		struct mfs_context c = {.request_id = 1000 + block, .deadline_ns = 5000 + block, .layer = (uint16_t)block,
					.batch = MFS_NONE_U32, .stage = MFS_STAGE_REUSE};
		int rc;

		do
			rc = i / BLOCKS % 3 == 2 ? api->range_remove(address) : api->range_add(address, 64, &c);
		while (rc == -EAGAIN);
		CHECK(rc == 0 || rc == -ENOENT);
	}
	return NULL;
}

static void *post_blocks(void *argument)
{
	struct rig *r = argument;
	struct ibv_qp *qp = ready(r);
	struct ibv_sge sge;
	struct ibv_wc wc[16];

	for (uint64_t i = 0; i < 3000; i++) {
		struct ibv_send_wr wr = rig_write(r, &sge, i, 64, IBV_SEND_SIGNALED), *bad;
		int rc;

		sge.addr = race_base + i % BLOCKS * 64;
		while ((rc = ibv_post_send(qp, &wr, &bad)) == ENOMEM)
			rig_poll(r, wc, 16);
		CHECK_EQUAL(rc, 0);
	}
	return NULL;
}

static void ranges_change_under_readers(void)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1, .gate = GATE_ALL,
					 .mode = MFS_MODE_ENFORCE, .grant_all = true};
	struct daemon *d = daemon_start(&options);
	struct rig *r[3] = {rig_open(64), rig_open(64), rig_open(64)};
	pthread_t writers[2], posters[3];
	unsigned tagged = 0;

	fake_complete_at_once(true);
	race_base = (uintptr_t)r[0]->buffer;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&writers[i], NULL, change_ranges, NULL) == 0);
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&posters[i], NULL, post_blocks, r[i]) == 0);
	for (int i = 0; i < 3; i++)
		pthread_join(posters[i], NULL);
	atomic_store(&stop, true);
	for (int i = 0; i < 2; i++)
		pthread_join(writers[i], NULL);
	for (unsigned i = 0; i < daemon_counts(d).submitted; i++) {
		struct mfs_message m = daemon_submitted(d, i);

		if (!m.request_id)
			continue;
		tagged++;
		CHECK_EQUAL(m.deadline_ns - 5000, m.request_id - 1000);
		CHECK_EQUAL(m.layer, m.request_id - 1000);
		CHECK_EQUAL(m.stage, MFS_STAGE_REUSE);
	}
	CHECK(tagged > 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"context", context},
		{"stage_of_context_is_asked", stage_of_context_is_asked},
		{"unscheduled_never_waits", unscheduled_never_waits},
		{"unsignaled_bytes_keep_their_stage", unsignaled_bytes_keep_their_stage},
		{"in_flight_moves_to_a_new_daemon", in_flight_moves_to_a_new_daemon},
		{"ranges", ranges},
		{"range_errors", range_errors},
		{"builder", builder},
		{"lanes", lanes},
		{"session", session},
		{"chain_is_not_touched", chain_is_not_touched},
		{"lease", lease},
		{"without_a_daemon", without_a_daemon},
		{"child_starts_without", child_starts_without},
		{"ranges_change_under_readers", ranges_change_under_readers},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
