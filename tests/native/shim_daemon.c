/* Daemons that die, hang, come back or are of another kind; programs that fork. */
#define _GNU_SOURCE
#include "shim_test.h"

#include <mfs/api.h>

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

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
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	daemon_kill(d);
	WAIT(posted(qp) == 4); /* the closed socket shows it; the heartbeat would be good for a quarter of an hour */
	rig_post_writes(r, qp, 4, 2, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 6);

	d = hold_daemon(); /* a new one: attached again, scheduled again, old completions are not reported to it */
	WAIT(daemon_counts(d).attached == 1);
	WAIT(daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV] == 1);
	rig_post_writes(r, qp, 6, 2, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 2);
	CHECK_EQUAL(posted(qp), 6);
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[HOLD_STAGE], 6 * 64); /* includes what is in flight */
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

/* Posts one more work request. Returns whether it is held: until the shim has seen a fresh heartbeat, it
 * passes through. */
static bool next_is_held(struct rig *r, struct ibv_qp *qp)
{
	unsigned before = posted(qp);
	struct ibv_wc wc[16];

	rig_post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	fake_complete(qp, 16);
	while (rig_poll(r, wc, 16) > 0)
		;
	return posted(qp) == before;
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
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	daemon_pause(d, true);
	paused_ns = now_ns();
	WAIT(posted(qp) == 4);
	printf("posted %.1f ms after the last heartbeat\n", (double)(now_ns() - paused_ns) / 1e6);
	rig_post_writes(r, qp, 4, 2, IBV_SEND_SIGNALED);
	WAIT(posted(qp) == 6);
	daemon_pause(d, false); /* it was late, not dead: the session stays and scheduling goes on */
	WAIT(next_is_held(r, qp));
	CHECK_EQUAL(daemon_counts(d).attached, 1);
}

static void daemon_detaches(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	atomic_store(&daemon_segment(d)->header.state, MFS_SEGMENT_DETACHED);
	WAIT(posted(qp) == 4);
	WAIT(daemon_counts(d).attached == 2); /* the shim has noticed, and searched for the next daemon */
}

static void daemon_comes_later(void)
{
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	struct daemon *d;

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
	d = hold_daemon();
	WAIT(daemon_counts(d).attached == 1);
	WAIT(daemon_segment(d)->report.queue_pairs[MFS_ROLE_KV] == 1);
	rig_post_writes(r, qp, 4, 1, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
	WAIT(daemon_counts(d).submitted == 1);
}

/* On a loaded machine the daemon may take longer than the shim waits for it. */
static void device_named_late(void)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE, .nics_unanswered = 1};
	struct daemon *d = daemon_start(&options);
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);

	rig_ready(qp);
	WAIT(next_is_held(r, qp));
	CHECK_EQUAL(daemon_counts(d).attached, 1);
}

/* The environment is read when the first device is opened, not on the shim's thread while the program may be changing it. */
static void environment_is_read_once(void)
{
	char path[256];
	struct daemon_options options = {.path = path, .rules = {hold_rule()}, .rules_count = 1,
					 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE};
	struct daemon *d;

	snprintf(path, sizeof(path), "%s", socket_path());
	d = daemon_start(&options);
	rig_open(64);
	setenv("MFS_SOCKET", "/nowhere", 1);
	daemon_kill(d);
	d = daemon_start(&options);
	WAIT(daemon_counts(d).named == 1);
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
		rig_post_writes(r, qp, next, 5, IBV_SEND_SIGNALED);
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
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
}

static void other_version(void)
{
	refused_by(&(struct daemon_options){.path = socket_path(), .mode = MFS_MODE_ENFORCE, .major = 99});
}

static const union ibv_gid far = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 7}};

/* Holds one work request. Returns what the daemon received about it. */
static struct mfs_message reported(struct daemon *d, struct ibv_qp **qp)
{
	struct rig *r = rig_open(64);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = 7,
				   .ah_attr = {.is_global = 1, .grh = {.dgid = far}}};

	*qp = rig_qp(r, 16);
	CHECK(rig_state(*qp, IBV_QPS_INIT) == 0);
	CHECK(ibv_modify_qp(*qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) == 0);
	CHECK(rig_state(*qp, IBV_QPS_RTS) == 0);
	rig_post_writes(r, *qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 1);
	return daemon_submitted(d, 0);
}

static void destination(void)
{
	struct daemon *d = hold_daemon();
	struct ibv_qp *qp;
	struct mfs_message message = reported(d, &qp);

	CHECK_EQUAL(message.bytes, 64);
	CHECK_EQUAL(message.queue, qp->qp_num & MFS_TASK_QUEUE_MAX);
	CHECK_EQUAL(message.peer, mfs_peer_hash(far.raw));
	CHECK(message.peer && message.queue);
}

/* A daemon of a lower minor version gets what it knows, and nothing in fields that it reads in another
 * way. */
static void older_daemon(uint16_t minor)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE,
					 .older = (uint16_t)(MFS_ABI_MINOR - minor)};
	struct mfs_request_info request = {.request_id = 7};
	struct daemon *d = daemon_start(&options);
	struct mfs_client *client;
	struct ibv_qp *qp;
	struct mfs_message message = reported(d, &qp);
	int slot;

	CHECK_EQUAL(message.bytes, 64);
	CHECK_EQUAL(message.queue, 0);
	CHECK_EQUAL(message.peer, 0);
	CHECK_EQUAL(posted(qp), 0);
	client = mfs_api()->client();
	CHECK_EQUAL(mfs_client_minor(client), minor);
	slot = mfs_client_request_begin(client, &request, MFS_NONE_U32);
	CHECK(slot >= 0 && mfs_client_request_judgement(client, (uint32_t)slot) == 0);
	CHECK(mfs_client_request_end(client, (uint32_t)slot) == 0);
	daemon_grant(d, 1);
	WAIT(posted(qp) == 1);
	CHECK_EQUAL(daemon_counts(d).requests, minor ? 2 : 0);
}

static void older_than_destinations(void)
{
	older_daemon(3);
}

static uint8_t behind_of_task(uint16_t older)
{
	struct daemon_options options = {.path = socket_path(), .gate = GATE_CLOSED, .mode = MFS_MODE_ENFORCE,
					 .older = older};
	struct mfs_task task = {.bytes = 1000, .bytes_left = 1000 + (1 << 20), .stage = MFS_STAGE_REUSE,
				.batch = MFS_NONE_U32, .request_id = 1};
	struct daemon *d = daemon_start(&options);
	struct mfs_message message;
	uint64_t task_id;

	rig_open(64);
	WAIT(mfs_api()->client());
	CHECK_EQUAL(mfs_client_submit(mfs_api()->client(), &task, MFS_COOKIE_NONE, &task_id), 0);
	WAIT(daemon_counts(d).submitted == 1);
	message = daemon_submitted(d, 0);
	CHECK_EQUAL(message.bytes, 1000);
	CHECK_EQUAL(message.flags, 0);
	return message.wire_class;
}

static void bytes_left(void)
{
	CHECK_EQUAL(mfs_behind_bytes(behind_of_task(0)), 1 << 20);
}

/* A daemon of minor 7 takes that byte for a class, so it gets 0. */
static void older_than_bytes_left(void)
{
	CHECK_EQUAL(behind_of_task(MFS_ABI_MINOR - 7), 0);
}

/* Such a daemon has zeros in the place of the credit or, as here, arbitrary values. */
static void older_than_credit(void)
{
	struct daemon_options options = {.path = socket_path(), .rules = {hold_rule()}, .rules_count = 1,
					 .mode = MFS_MODE_ENFORCE, .older = MFS_ABI_MINOR - 1};
	struct daemon *d = daemon_start(&options);
	struct ibv_qp *qp;
	struct rig *r = rig_open(64);

	WAIT(mfs_api()->client());
	atomic_store(&daemon_segment(d)->gate[0].credit[0], 1000000);
	atomic_store(&daemon_segment(d)->gate[0].credit_class_marked[0], 1000000);
	daemon_gate(d, GATE_CLOSED);
	qp = rig_qp(r, 16);
	rig_ready(qp);
	rig_post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 1);
	CHECK_EQUAL(posted(qp), 0);
	CHECK_EQUAL(daemon_submitted(d, 0).flags & MFS_TASK_TAKEN, 0);
}

static void older_than_requests(void)
{
	older_daemon(0);
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
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 4);
	rig_open(64); /* a second device does not repeat the complaint */
}

/* ---- a post that is stopped ------------------------------------------------------------------------------------------ */

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

#define TRAP_FLAG 0x100 /* a signal after each instruction */

static struct {
	struct daemon *daemon;
	uintptr_t not_gate; /* complement of the gate's address in the shim's mapping: no register here may hold that */
	int log;	    /* what the shim logs */
	bool stopped;
} stepped;

/* Runs after each instruction. When the shim has the gate's address in a register, the daemon dies. The
 * thread goes on when the shim has noticed that. */
static void step(int number, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	char line[256] = {0};

	(void)number, (void)info;
	registers[REG_EFL] |= TRAP_FLAG;
	for (int i = REG_R8; i <= REG_RSP && !stepped.stopped; i++)
		stepped.stopped = (uintptr_t)registers[i] == ~stepped.not_gate;
	if (!stepped.stopped)
		return;
	registers[REG_EFL] &= ~TRAP_FLAG;
	daemon_kill(stepped.daemon);
	while (!strstr(line, "the daemon is gone"))
		CHECK(read(stepped.log, memset(line, 0, sizeof(line)), sizeof(line) - 1) > 0);
}

/* Returns where the shim has mapped the segment that the daemon has at `other`. */
static uintptr_t segment_of_shim(const void *other)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	uintptr_t found = 0;
	unsigned long first;
	char line[512];

	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "memfd:segment") && sscanf(line, "%lx", &first) == 1 && first != (uintptr_t)other)
			found = first;
	fclose(maps);
	return found;
}

/* A thread may be off its core anywhere in a post while the daemon dies. What it reads after that is still
 * mapped. */
static void daemon_dies_in_a_post(void)
{
	struct daemon *d = hold_daemon();
	struct rig *r = rig_open(64);
	struct ibv_qp *qp = rig_qp(r, 16);
	const struct sigaction action = {.sa_sigaction = step, .sa_flags = SA_SIGINFO};
	struct mfs_segment *s = daemon_segment(d);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	int pipes[2], errors = dup(2);

	rig_ready(qp);
	rig_post_writes(r, qp, 0, 1, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 1);
	CHECK(pipe(pipes) == 0 && dup2(pipes[1], 2) == 2);
	stepped.daemon = d;
	stepped.log = pipes[0];
	stepped.not_gate = ~segment_of_shim(s) - (uintptr_t)((char *)&s->gate[0].word - (char *)s);
	wr = rig_write(r, &sge, 1, 64, IBV_SEND_SIGNALED);
	CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
	raise(SIGTRAP);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	dup2(errors, 2);
	CHECK(stepped.stopped);
	WAIT(posted(qp) == 2);
}

#else

static void daemon_dies_in_a_post(void)
{
}

#endif

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
	rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
	WAIT(daemon_counts(d).submitted == 4);
	child = fork();
	if (!child) {
		/* the child posts natively to its own copy; what the parent holds is not posted again here */
		rig_post_writes(r, qp, 50, 2, IBV_SEND_SIGNALED);
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

/* After ibv_fork_init a child lacks the pages of registered memory, and everything else that the heap has
 * put there. */
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
	rig_post_writes(r, ex, 0, 4, IBV_SEND_SIGNALED);
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
	char path[256];
	int status;
	pid_t child = fork();

	if (!child) {
		held_in_child:;
		struct daemon *d = hold_daemon();
		struct rig *r = rig_open(64);
		struct ibv_qp *qp = rig_qp(r, 16);

		rig_ready(qp);
		rig_post_writes(r, qp, 0, 4, IBV_SEND_SIGNALED);
		CHECK_EQUAL(posted(qp), 0);
		daemon_grant(d, 4);
		WAIT(posted(qp) == 4);
		/* and once more in a child of this one, which has opened devices */
		if (strstr(socket_path(), ".2")) {
			_exit(0);
		} else {
			daemon_kill(d);
			/* a socket of its own: the shim of this process searches for a daemon at the old
			 * path */
			snprintf(path, sizeof(path), "%s.2", socket_path());
			setenv("MFS_SOCKET", path, 1);
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
		{"daemon_killed", daemon_killed},
		{"daemon_dies_in_a_post", daemon_dies_in_a_post},
		{"daemon_hangs", daemon_hangs},
		{"daemon_detaches", daemon_detaches},
		{"daemon_comes_later", daemon_comes_later},
		{"environment_is_read_once", environment_is_read_once},
		{"device_named_late", device_named_late},
		{"daemon_restarts_often", daemon_restarts_often},
		{"other_version", other_version},
		{"destination", destination},
		{"older_than_destinations", older_than_destinations},
		{"bytes_left", bytes_left},
		{"older_than_bytes_left", older_than_bytes_left},
		{"older_than_credit", older_than_credit},
		{"older_than_requests", older_than_requests},
		{"no_memory", no_memory},
		{"no_daemon", no_daemon},
		{"forked", forked},
		{"forked_without_pages", forked_without_pages},
		{"opened_after_fork", opened_after_fork},
		{NULL, NULL},
	};

	return run_tests(tests, argc, argv);
}
