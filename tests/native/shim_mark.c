/* Mode "mark": queue pairs get their DSCP from MFS_MARK, and nothing else of them is touched. argv: test, and for `rules`
 * the folder of the caller libraries. */
#define _GNU_SOURCE
#include "shim_callers.h"

#include <mfs/api.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Connects a queue pair for which the program asks for a traffic class. Returns the class that the device
 * gets. */
static unsigned connected(struct ibv_qp *qp, const char *gid, uint8_t traffic_class)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = 9,
				   .ah_attr = {.is_global = 1, .grh = {.traffic_class = traffic_class}}};

	memcpy(attr.ah_attr.grh.dgid.raw, gid, 16);
	CHECK(rig_state(qp, IBV_QPS_INIT) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) == 0);
	CHECK(rig_state(qp, IBV_QPS_RTS) == 0);
	CHECK_EQUAL(attr.ah_attr.grh.traffic_class, traffic_class); /* the caller's own copy is not touched */
	return fake_traffic_class(qp);
}

#define NEAR "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x01\x07\x01"
#define FAR "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x02\x07\x01"
#define SIX "\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x07"

static const struct mfs_api *api(void)
{
	const struct mfs_api *found = dlsym(RTLD_DEFAULT, "mfs_api_v1");

	CHECK(found);
	return found;
}

/* MFS_MARK as tests/unit/shim/test_marking.py sets it. */
static void rules(void)
{
	struct rig *r = rig_open(4096);

	CHECK_EQUAL(connected(create_by(r, "libnccl.so.2", 512, 0), FAR, 1), 40 << 2 | 1);
	CHECK_EQUAL(connected(create_by(r, "libnccl.so.2", 512, 256), FAR, 0), 46 << 2);
	CHECK_EQUAL(connected(create_by(r, "mooncake/store.so", 256, 0), FAR, 0), 20 << 2);
	CHECK_EQUAL(connected(create_by(r, "mooncake/engine.so", 256, 0), NEAR, 2), 10 << 2 | 2);
	CHECK_EQUAL(connected(create_by(r, "mooncake/engine.so", 256, 0), SIX, 0), 12 << 2);
	CHECK_EQUAL(connected(create_by(r, "mooncake/engine.so", 256, 0), FAR, 2), 2);
	CHECK_EQUAL(connected(create_by(r, "libother.so", 64, 0), FAR, 0), 8 << 2);
	CHECK_EQUAL(connected(rig_qp_ex(r, 64), FAR, 106), 106); /* made by ibv_create_qp_ex; no rule matches it */
}

/* A thread's lane takes precedence over the rules until it ends. A class without a mark leaves what the
 * program has set. */
static void lanes(void)
{
	struct rig *r = rig_open(64), *class_marked;

	CHECK(api()->lane_set(1) == 0);
	CHECK_EQUAL(connected(rig_qp(r, 64), FAR, 0), 34 << 2);
	CHECK_EQUAL(connected(rig_qp_ex(r, 64), FAR, 0), 34 << 2);
	class_marked = rig_open(64);
	CHECK(api()->lane_set(2) == 0);
	CHECK_EQUAL(connected(rig_qp(r, 64), FAR, 5), 5);
	CHECK(api()->lane_set(-1) == 0);
	CHECK_EQUAL(connected(rig_qp(r, 64), FAR, 0), 11 << 2); /* the rule's */
	CHECK_EQUAL(connected(rig_qp(class_marked, 64), FAR, 0), 34 << 2); /* its device was opened in the lane */
}

/* The provider's own functions stay in place: nothing is held, counted, or read. No daemon is asked for a session. */
static void untouched(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
	struct rig *r;
	struct ibv_qp *qp;
	struct ibv_wc wc[4];

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", socket_path());
	unlink(address.sun_path);
	CHECK(bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(listener, 8) == 0);
	r = rig_open(64);
	qp = rig_qp(r, 16);
	CHECK_EQUAL(connected(qp, FAR, 0), 11 << 2);
	rig_post_writes(r, qp, 0, 3, IBV_SEND_SIGNALED);
	CHECK_EQUAL(posted(qp), 3);
	CHECK_EQUAL(fake_complete(qp, 3), 3);
	rig_drain(r, wc, 3);
	CHECK(api()->client() == NULL);
	CHECK(rig_state(qp, IBV_QPS_ERR) == 0);
	CHECK(rig_state(qp, IBV_QPS_RESET) == 0);
	CHECK_EQUAL(connected(qp, FAR, 0), 11 << 2);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(r->cq) == 0);
	CHECK(ibv_close_device(r->context) == 0);
	CHECK(accept(listener, NULL, NULL) < 0 && errno == EAGAIN);
}

static void devices(void)
{
	Dl_info post, poll;
	struct rig *r = rig_open(64);

	CHECK(dladdr((void *)r->context->ops.post_send, &post) && dladdr((void *)r->context->ops.poll_cq, &poll));
	CHECK(strstr(post.dli_fname, "libibverbs") && strstr(poll.dli_fname, "libibverbs"));
}

/* A child that opens the device itself marks as its parent does. */
static void forked(void)
{
	struct rig *r = rig_open(64);
	int status;
	pid_t child;

	CHECK_EQUAL(connected(rig_qp(r, 64), FAR, 0), 11 << 2);
	child = fork();
	if (!child) {
		struct rig *own = rig_open(64);

		_exit(connected(rig_qp(own, 64), FAR, 0) != 11 << 2);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Connects a queue pair in the lane of a class, after the program has asked for a service level. Returns
 * the level that the device gets. */
static unsigned level(struct rig *r, int lane, uint8_t asked, bool global)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = 9,
				   .ah_attr = {.is_global = global, .sl = asked, .port_num = 1}};
	struct ibv_qp *qp;

	CHECK(api()->lane_set(lane) == 0);
	qp = rig_qp(r, 64);
	CHECK(rig_state(qp, IBV_QPS_INIT) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) == 0);
	CHECK_EQUAL(attr.ah_attr.sl, asked); /* the caller's own copy is not touched */
	return fake_service_level(qp);
}

/* MFS_SERVICE_LEVELS=46:5,34:4! on InfiniBand, within the subnet and beyond it. The program's own level
 * stays, except where there is a "!". */
static void levels(void)
{
	struct rig *r = rig_open(64);

	for (int global = 0; global < 2; global++) {
		CHECK_EQUAL(level(r, 0, 0, global), 5);
		CHECK_EQUAL(level(r, 0, 3, global), 3);
		CHECK_EQUAL(level(r, 1, 0, global), 4);
		CHECK_EQUAL(level(r, 1, 3, global), 4);
		CHECK_EQUAL(level(r, 2, 0, global), 0); /* no mark */
		CHECK_EQUAL(level(r, 3, 0, global), 0); /* no level for its mark */
	}
}

/* Levels stay as they are without the variable, with one that cannot be parsed, or on Ethernet. */
static void no_levels(void)
{
	struct rig *r = rig_open(64);

	for (int lane = 0; lane < 4; lane++) {
		CHECK_EQUAL(level(r, lane, 0, false), 0);
		CHECK_EQUAL(level(r, lane, 3, true), 3);
	}
}

/* Nothing is marked with a variable that cannot be parsed. */
static void nothing(void)
{
	struct rig *r = rig_open(64);

	CHECK_EQUAL(connected(rig_qp(r, 64), FAR, 3), 3);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {{"rules", rules}, {"lanes", lanes}, {"untouched", untouched},
					    {"devices", devices}, {"forked", forked}, {"levels", levels},
					    {"no_levels", no_levels}, {"nothing", nothing}, {NULL, NULL}};

	folder = argc > 2 ? argv[2] : "";
	return run_tests(tests, argc > 2 ? 2 : argc, argv);
}
