/* Roles by caller and shape, rules by role and peer, classes on the wire. argv: test, folder of the caller libraries. */
#define _GNU_SOURCE
#include "../../csrc/base/clock.h"
#include "shim_callers.h"

static void connect_to(struct ibv_qp *qp, uint32_t number, const char *gid, uint8_t traffic_class)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = number,
				   .ah_attr = {.is_global = 1, .grh = {.traffic_class = traffic_class}}};

	memcpy(attr.ah_attr.grh.dgid.raw, gid, 16);
	CHECK(rig_state(qp, IBV_QPS_INIT) == 0);
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN) == 0);
	CHECK(rig_state(qp, IBV_QPS_RTS) == 0);
	CHECK_EQUAL(attr.ah_attr.grh.traffic_class, traffic_class); /* the caller's own copy is not touched */
}

#define IPV4(a, b, c, d) "\0\0\0\0\0\0\0\0\0\0\xff\xff" #a #b #c #d

static void roles(void)
{
	struct daemon_options options = {
		.path = socket_path(), .mode = MFS_MODE_ENFORCE, .gate = ~0u >> 1, .rules_count = 6,
		.rules = {
			{.role = MFS_ROLE_NCCL_CTS, .stage = MFS_STAGE_CONTROL, .dscp = 46},
			{.role = MFS_ROLE_NCCL_FLUSH, .stage = MFS_STAGE_CONTROL, .dscp = MFS_DSCP_KEEP},
			{.library = "libnccl", .stage = MFS_STAGE_COLLECTIVE, .dscp = 40},
			{.library = "store.so", .action = MFS_RULE_HOLD, .stage = MFS_STAGE_REUSE, .dscp = 20},
			{.role = MFS_ROLE_KV, .peer = IPV4(\x0a, \x01, \0, \0), .peer_prefix_bits = 96 + 16,
			 .action = MFS_RULE_HOLD, .stage = MFS_STAGE_P2D, .dscp = 10},
			{.process = "shim_ro", .library = "libother", .set_role = MFS_ROLE_BULK,
			 .stage = MFS_STAGE_BACKGROUND, .dscp = 8},
		}};
	struct daemon *d = daemon_start(&options);
	struct rig *r = rig_open(4096);
	struct ibv_qp *data = create_by(r, "libnccl.so.2", 512, 0), *cts = create_by(r, "libnccl.so.2", 512, 256);
	struct ibv_qp *flush = create_by(r, "libnccl.so.2", 256, 0), *store = create_by(r, "mooncake/store.so", 256, 0);
	struct ibv_qp *near = create_by(r, "mooncake/engine.so", 256, 0);
	struct ibv_qp *far = create_by(r, "mooncake/engine.so", 256, 0), *other = create_by(r, "libother.so", 64, 0);
	struct ibv_send_wr wr, *bad;
	struct ibv_sge sge;
	struct ibv_qp *const all[] = {data, cts, flush, store, near, far, other};
	static const unsigned passes[] = {1, 1, 1, 0, 0, 1, 1};

	connect_to(data, 9, IPV4(\x0a, \x02, \0, \x01), 1);
	connect_to(cts, 9, IPV4(\x0a, \x02, \0, \x01), 0);
	connect_to(flush, flush->qp_num, IPV4(\x0a, \x02, \0, \x01), 3);
	connect_to(store, 9, IPV4(\x0a, \x02, \0, \x01), 0);
	connect_to(near, 9, IPV4(\x0a, \x01, \x07, \x01), 2);
	connect_to(far, 9, IPV4(\x0a, \x02, \x07, \x01), 2);
	connect_to(other, 9, IPV4(\x0a, \x02, \x07, \x01), 0);
	CHECK_EQUAL(fake_traffic_class(data), 40 << 2 | 1);
	CHECK_EQUAL(fake_traffic_class(cts), 46 << 2);
	CHECK_EQUAL(fake_traffic_class(flush), 3);
	CHECK_EQUAL(fake_traffic_class(store), 20 << 2);
	CHECK_EQUAL(fake_traffic_class(near), 10 << 2 | 2);
	CHECK_EQUAL(fake_traffic_class(far), 2);
	CHECK_EQUAL(fake_traffic_class(other), 8 << 2);

	struct mfs_segment *s = daemon_segment(d);

	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_NCCL_DATA], 1);
	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_NCCL_CTS], 1);
	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_NCCL_FLUSH], 1);
	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_KV], 3);
	CHECK_EQUAL(s->report.queue_pairs[MFS_ROLE_BULK], 1);
	for (unsigned i = 0; i < 7; i++) {
		wr = rig_write(r, &sge, i, 100, IBV_SEND_SIGNALED);
		CHECK(ibv_post_send(all[i], &wr, &bad) == 0);
		CHECK_EQUAL(posted(all[i]), passes[i]);
	}
	CHECK_EQUAL(s->usage[0].posted.bytes[MFS_STAGE_CONTROL], 200);
	CHECK_EQUAL(s->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE], 100);
	CHECK_EQUAL(s->usage[0].posted.bytes[MFS_STAGE_BACKGROUND], 100);
	CHECK_EQUAL(s->usage[0].posted.bytes[MFS_STAGE_P2D], 100);
	CHECK_EQUAL(s->usage[0].posted.bytes[MFS_STAGE_REUSE], 0);
}

/* What a store reads is under a lease (MFS_STORE_LEASE_MS, see test_native.py). Its queue pairs are held
 * for a quarter of the lease, whatever the daemon allows. An engine's queue pairs beside them are not
 * affected. */
static void store_lease(void)
{
	const uint64_t lease_ns = getenv("STORE_LEASE_NS") ? strtoull(getenv("STORE_LEASE_NS"), NULL, 10) : 0;
	struct daemon_options options = {
		.path = socket_path(), .mode = MFS_MODE_ENFORCE, .gate = ~0u >> 1, .rules_count = 1,
		.rules = {{.role = MFS_ROLE_KV, .action = MFS_RULE_HOLD, .stage = MFS_STAGE_REUSE,
			   .dscp = MFS_DSCP_KEEP}}};
	struct daemon *d = daemon_start(&options); /* it allows an hour */
	struct rig *r = rig_open(64);
	struct ibv_qp *store = create_by(r, "mooncake/store.so", 64, 0);
	struct ibv_qp *engine = create_by(r, "mooncake/engine.so", 64, 0);
	uint64_t began_ns;

	CHECK(lease_ns);
	rig_ready(store);
	rig_ready(engine);
	rig_post_writes(r, engine, 0, 1, IBV_SEND_SIGNALED);
	began_ns = mfs_clock_ns();
	rig_post_writes(r, store, 1, 10, IBV_SEND_SIGNALED);
	WAIT(posted(store) == 10);
	CHECK(mfs_clock_ns() - began_ns >= lease_ns / 4);
	CHECK_EQUAL(posted(engine), 0);
	CHECK(daemon_segment(d)->report.bypassed_hold > 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {{"roles", roles}, {"store_lease", store_lease}, {NULL, NULL}};

	folder = argc > 2 ? argv[2] : "";
	return run_tests(tests, argc > 2 ? 2 : argc, argv);
}
