/* NCCL's side of its profiler interface, as a script. The plugin is loaded and called as by NCCL: by name,
 * with each version's own structures, from the threads that NCCL would use. The layouts are stated in full
 * here once more, so that a mistake in the shim's declarations shows. argv: test, version, path of the
 * library. */
#define _GNU_SOURCE
#include "shim_test.h"

#include <dlfcn.h>
#include <mfs/api.h>
#include <pthread.h>

/* ---- the interface, version by version ------------------------------------------------------------------------------ */

struct coll_v4 {
	uint64_t sequence;
	const char *function;
	void const *send;
	void *receive;
	size_t count;
	int root;
	const char *datatype;
	uint8_t channels, warps;
	const char *algorithm, *protocol;
};
struct coll_v5 {
	struct coll_v4 v4;
	void *parent_group;
};
struct coll_v7 {
	struct coll_v5 v5;
	const char *kernel;
	bool symmetric;
	uint64_t user_tag;
};
struct p2p_v4 {
	const char *function;
	void *buffer;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t channels;
};
struct p2p_v7 {
	struct p2p_v4 v4;
	void *parent_group;
	uint64_t user_tag;
};
struct proxy_op {
	pid_t pid;
	uint8_t channel;
	int peer, steps, chunk, is_send;
};
struct call {
	const char *function;
	size_t count;
	const char *datatype;
	int root;
	void *stream;
	bool captured;
	uint64_t user_tag;
};
union body {
	struct coll_v7 coll;
	struct p2p_v7 p2p;
	struct proxy_op op;
	struct call call;
	int step;
	uint8_t largest[128];
};
struct event_v4 {
	uint8_t type;
	void *parent;
	int rank;
	union body body;
};
struct event_v5 {
	uint64_t type;
	void *parent;
	int rank;
	union body body;
};
union state_arguments {
	size_t bytes;
	void *data;
};
typedef void logger(int level, unsigned long flags, const char *file, int line, const char *format, ...);

struct plugin_v4 {
	const char *name;
	int (*init)(void **, int *, const char *, uint64_t, int, int, int, logger *);
	int (*start)(void *, void **, struct event_v4 *);
	int (*stop)(void *);
	int (*state)(void *, int, union state_arguments *);
	int (*finalize)(void *);
	void *device_hook; /* some releases look for one behind the last function of version 7 */
};
struct plugin_v5 {
	const char *name;
	int (*init)(void **, uint64_t, int *, const char *, int, int, int, logger *);
	int (*start)(void *, void **, struct event_v5 *);
	int (*stop)(void *);
	int (*state)(void *, int, union state_arguments *);
	int (*finalize)(void *);
	void *device_hook;
};

enum {
	GROUP = 1 << 0, COLL = 1 << 1, P2P = 1 << 2, PROXY_OP = 1 << 3, PROXY_STEP = 1 << 4, PROXY_CONTROL = 1 << 5,
	GROUP_API = 1 << 8, COLL_API = 1 << 9, CE_COLL = 1 << 12,
	GPU_WAIT = 8, SEND_WAIT = 9, PEER_WAIT = 20,
};

static int version;
static const char *path;
static const struct plugin_v4 *v4;
static const struct plugin_v5 *v5;

static void load(void)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *symbol;
	char name[32];

	CHECK(library);
	snprintf(name, sizeof(name), "ncclProfiler_v%d", version);
	symbol = dlsym(library, name);
	CHECK(symbol);
	v4 = version == 4 ? symbol : NULL;
	v5 = version == 4 ? NULL : symbol;
	CHECK(!strcmp(v4 ? v4->name : v5->name, "MFS"));
	CHECK((v4 ? v4->device_hook : v5->device_hook) == NULL);
	CHECK(!dlsym(library, "ncclProfiler_v3") && !dlsym(library, "ncclProfiler_v8"));
}

static int communicator(void **context, const char *name, uint64_t id)
{
	int mask = 0;

	*context = &mask; /* NCCL does not clear it */
	CHECK_EQUAL(v4 ? v4->init(context, &mask, name, id, 2, 4, 1, NULL) : v5->init(context, id, &mask, name, 2, 4, 1, NULL),
		    0);
	return mask;
}

static void *start(void *context, uint64_t type, void *parent, const union body *body)
{
	struct event_v4 e4;
	struct event_v5 e5;
	void *handle = &e5; /* as above */

	memset(&e5, 0, sizeof(e5));
	e5.type = type;
	e5.parent = parent;
	e5.rank = 1;
	if (body)
		e5.body = *body;
	memset(&e4, 0xa5, sizeof(e4)); /* beside the byte of the type is whatever was on the stack */
	e4.type = (uint8_t)type;
	e4.parent = parent;
	e4.rank = 1;
	e4.body = e5.body;
	if (v4 && type > 0xff)
		return NULL; /* that version has no such event */
	CHECK_EQUAL(v4 ? v4->start(context, &handle, &e4) : v5->start(context, &handle, &e5), 0);
	return handle;
}

static void stop(void *handle)
{
	CHECK_EQUAL(v4 ? v4->stop(handle) : v5->stop(handle), 0);
}

static void state(void *handle, int value)
{
	union state_arguments arguments = {.bytes = 77};

	if (handle)
		CHECK_EQUAL(v4 ? v4->state(handle, value, &arguments) : v5->state(handle, value, &arguments), 0);
}

static union body all_reduce(size_t count)
{
	return (union body){.coll.v5.v4 = {.function = "AllReduce", .count = count, .datatype = "ncclBfloat16"}};
}

/* ---- what NCCL does with it -------------------------------------------------------------------------------------------- */

static struct rig *rig;

static void connect_qp(struct ibv_qp *qp)
{
	rig_ready(qp);
}

static struct ibv_qp *data_qp(void)
{
	struct ibv_qp_init_attr attr = {.send_cq = rig->cq, .recv_cq = rig->cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 512, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(rig->pd, &attr);

	CHECK(qp);
	return qp;
}

/* As with adaptive routing: the data, then an empty write with an immediate. */
static void network_send(struct ibv_qp *qp, uint32_t bytes)
{
	struct ibv_sge sge;
	struct ibv_send_wr end = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED}, *bad;
	struct ibv_send_wr data = rig_write(rig, &sge, 1, bytes, 0);

	data.next = &end;
	CHECK(ibv_post_send(qp, &data, &bad) == 0);
}

struct proxied {
	void *context, *operation;
	struct ibv_qp *qp;
	uint32_t bytes;
	pid_t pid;
};

static void *proxy(void *argument)
{
	struct proxied *p = argument;
	union body op = {.op = {.pid = p->pid, .peer = 2, .steps = 2, .chunk = 4096, .is_send = 1}}, step = {.step = 0};
	void *handle = start(p->context, PROXY_OP, p->operation, &op), *steps[2], *receive;

	op.op.is_send = 0;
	receive = start(p->context, PROXY_OP, p->operation, &op);
	CHECK(!receive); /* receives are not tracked */
	CHECK(!start(p->context, PROXY_STEP, NULL, &step));
	for (int i = 0; i < 2; i++) {
		step.step = i;
		steps[i] = start(p->context, PROXY_STEP, handle, &step);
		state(steps[i], GPU_WAIT);
		state(steps[i], PEER_WAIT);
		network_send(p->qp, p->bytes);
		state(steps[i], SEND_WAIT);
	}
	network_send(p->qp, 5); /* it is not known to whom these bytes belong */
	for (int i = 0; i < 2; i++)
		stop(steps[i]);
	stop(handle);
	return NULL;
}

/* The operation is reported on this thread and sent by another, after it has been stopped. */
static void operate(void *context, struct ibv_qp *qp, union body body, uint64_t type, uint32_t bytes, pid_t pid)
{
	struct proxied p = {.context = context, .qp = qp, .bytes = bytes, .pid = pid};
	void *group = start(context, GROUP_API, NULL, NULL), *call = start(context, COLL_API, group, &body);
	pthread_t thread;

	p.operation = start(context, type, version == 4 ? NULL : call, &body);
	stop(p.operation);
	stop(call);
	stop(group);
	CHECK(pthread_create(&thread, NULL, proxy, &p) == 0);
	pthread_join(thread, NULL);
}

static struct daemon *daemon_of_communicators(void)
{
	struct daemon_options options = {
		.path = socket_path(), .mode = MFS_MODE_ENFORCE, .gate = ~0u >> 1, .rules_count = 3,
		.rules = {
			{.communicator = "expert", .stage = MFS_STAGE_COLLECTIVE, .dscp = 34, .role = MFS_ROLE_NCCL_DATA},
			{.communicator = "tensor", .stage = MFS_STAGE_COLLECTIVE, .dscp = 46, .role = MFS_ROLE_NCCL_DATA},
			{.role = MFS_ROLE_NCCL_DATA, .stage = MFS_STAGE_COLLECTIVE, .dscp = 40},
		}};

	return daemon_start(&options);
}

static struct mfs_communicator *seen(struct daemon *d, uint64_t id)
{
	struct mfs_communicator *table = daemon_segment(d)->communicator;

	for (int i = 0; i < MFS_COMMUNICATORS_MAX; i++)
		if (atomic_load(&table[i].id) == id)
			return &table[i];
	return NULL;
}

/* ---- tests ----------------------------------------------------------------------------------------------------------------- */

static void sends_are_tagged(void)
{
	struct mfs_context of_layer = {.batch = 3, .layer = 21};
	union body p2p = {.p2p.v4 = {.function = "Send", .datatype = "ncclInt64", .count = 10, .peer = 3}};
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_of_communicators();
	void *context, *other;
	struct ibv_qp *qp;
	int mask;

	rig = rig_open(4096);
	mask = communicator(&context, "tensor parallel", 0xabc);
	CHECK(context && (mask & (COLL | P2P | PROXY_OP | PROXY_STEP)) == (COLL | P2P | PROXY_OP | PROXY_STEP));
	CHECK(!(mask & PROXY_CONTROL));
	communicator(&other, NULL, 0xdef);
	CHECK(other && other != context);
	qp = data_qp();
	connect_qp(qp);

	operate(context, qp, all_reduce(1000), COLL, 100, getpid()); /* no batch known */
	api->context_set(&of_layer);
	operate(context, qp, all_reduce(1000), COLL, 200, getpid());
	api->context_set(NULL);
	operate(other, qp, p2p, P2P, 300, getpid());
	operate(context, qp, all_reduce(1000), COLL, 400, getpid() + 1); /* on behalf of another process */

	WAIT(seen(d, 0xabc) && seen(d, 0xabc)->work_requests == 12);
	CHECK_EQUAL(seen(d, 0xabc)->bytes[MFS_OPERATION_ALL_REDUCE], 2 * (100 + 200));
	CHECK_EQUAL(seen(d, 0xabc)->bytes[MFS_OPERATION_OTHER], 2 * 400);
	CHECK_EQUAL(seen(d, 0xabc)->operations, 3);
	CHECK_EQUAL(seen(d, 0xabc)->operation_bytes, 3 * 2000);
	CHECK_EQUAL(seen(d, 0xabc)->batch_bytes, 2 * 200);
	CHECK_EQUAL(seen(d, 0xabc)->batch, 3);
	CHECK_EQUAL(seen(d, 0xabc)->layer, 21);
	CHECK_EQUAL(seen(d, 0xabc)->rank, 1);
	CHECK_EQUAL(seen(d, 0xabc)->ranks, 4);
	CHECK(!strcmp(seen(d, 0xabc)->name, "tensor parallel"));
	WAIT(seen(d, 0xdef)->work_requests == 4);
	CHECK_EQUAL(seen(d, 0xdef)->bytes[MFS_OPERATION_SEND], 2 * 300);
	CHECK_EQUAL(seen(d, 0xdef)->operation_bytes, 80);
	CHECK_EQUAL(seen(d, 0xdef)->batch, MFS_NONE_U32);
	/* tagged or not, all of it is stage 2, and none of it waited */
	CHECK_EQUAL(daemon_segment(d)->usage[0].posted.bytes[MFS_STAGE_COLLECTIVE], 2000 + 4 * 5);
	CHECK_EQUAL(daemon_counts(d).submitted, 0);
	CHECK(v4 ? !v4->finalize(other) && !v4->finalize(NULL) : !v5->finalize(other) && !v5->finalize(NULL));
	WAIT(!seen(d, 0xdef));
}

/* Without a context on the calling thread, an operation belongs to the one batch that is under way. */
static void the_batch_under_way(void)
{
	const struct mfs_api *api = mfs_api();
	struct daemon *d = daemon_of_communicators();
	struct mfs_client *client;
	int first, second;
	void *context;
	struct ibv_qp *qp;

	rig = rig_open(4096);
	communicator(&context, "tensor", 1);
	qp = data_qp();
	connect_qp(qp);
	client = api->client();
	CHECK(client);
	first = mfs_client_batch_begin(client, 555, 32, 0, 0);
	CHECK(first >= 0 && mfs_client_batch_layer(client, (uint32_t)first, 9) == 0);
	operate(context, qp, all_reduce(1), COLL, 100, getpid());
	WAIT(seen(d, 1) && seen(d, 1)->work_requests == 4);
	CHECK_EQUAL(seen(d, 1)->batch, first);
	CHECK_EQUAL(seen(d, 1)->layer, 9);
	CHECK_EQUAL(seen(d, 1)->batch_bytes, 200);
	second = mfs_client_batch_begin(client, 556, 32, 0, 0);
	CHECK(second >= 0);
	operate(context, qp, all_reduce(1), COLL, 100, getpid()); /* two batches: which one is unclear */
	WAIT(seen(d, 1)->work_requests == 8);
	CHECK_EQUAL(seen(d, 1)->batch_bytes, 200);
}

/* A queue pair gets the class of its communicator if it is clear which one that is. */
static void class_of_a_communicator(void)
{
	struct daemon *d = daemon_of_communicators();
	void *tensor, *expert, *group, *both, *call;
	union body body = all_reduce(1);
	struct ibv_qp *qp[4];

	(void)d;
	rig = rig_open(4096);
	for (int i = 0; i < 4; i++)
		qp[i] = data_qp();
	communicator(&tensor, "tensor", 1);
	connect_qp(qp[0]); /* the only one, and it has not sent yet */
	CHECK_EQUAL(fake_traffic_class(qp[0]), 46 << 2 | 2);
	operate(tensor, qp[0], body, COLL, 1, getpid());
	communicator(&expert, "expert", 2);
	if (version > 4) {
		group = start(expert, GROUP_API, NULL, NULL);
		call = start(expert, COLL_API, group, &body);
		connect_qp(qp[1]);
		stop(call);
		stop(group);
		both = start(tensor, GROUP_API, NULL, NULL);
		stop(start(tensor, COLL_API, both, &body));
		stop(start(expert, COLL_API, both, &body));
		connect_qp(qp[2]);
		stop(both);
	} else {
		connect_qp(qp[1]);
		connect_qp(qp[2]);
	}
	CHECK_EQUAL(fake_traffic_class(qp[1]), 34 << 2 | 2);
	CHECK_EQUAL(fake_traffic_class(qp[2]), (version > 4 ? 40 : 34) << 2 | 2);
	operate(expert, qp[2], body, COLL, 1, getpid()); /* now it is clear; the class on the wire stays */
	CHECK_EQUAL(fake_traffic_class(qp[2]), (version > 4 ? 40 : 34) << 2 | 2);
	connect_qp(qp[3]); /* both have sent, none is inside a call */
	CHECK_EQUAL(fake_traffic_class(qp[3]), 40 << 2 | 2);
}

static void nonsense_is_survived(void)
{
	static void *contexts[MFS_COMMUNICATORS_MAX + 2];
	struct daemon *d = daemon_of_communicators();
	union body body = all_reduce(1), odd = {.coll.v5.v4 = {.function = NULL, .datatype = NULL, .count = 1}};
	union body op = {.op = {.pid = getpid(), .is_send = 1}};
	void *old, *handle;
	struct ibv_qp *qp;
	int mask;

	rig = rig_open(4096);
	qp = data_qp();
	connect_qp(qp);
	for (int i = 0; i < MFS_COMMUNICATORS_MAX + 2; i++) {
		mask = communicator(&contexts[i], "many", (uint64_t)i + 1);
		CHECK(mask && !contexts[i] == (i >= MFS_COMMUNICATORS_MAX));
	}
	for (uint64_t type = 1; type <= 1 << 20; type <<= 1) {
		CHECK(!start(NULL, type, NULL, &body)); /* of the communicators that found no place */
		stop(start(contexts[0], type, NULL, &odd));
		stop(start(contexts[0], type, (void *)(uintptr_t)-1, &odd));
		stop(start(contexts[0], type, (void *)(uintptr_t)0xfff00fffffffe2, &odd));
	}
	CHECK(!start(contexts[0], CE_COLL, NULL, &body));
	stop(NULL);
	stop((void *)(uintptr_t)-1);
	CHECK_EQUAL(v4 ? v4->state(NULL, PEER_WAIT, NULL) : v5->state(NULL, PEER_WAIT, NULL), 0);
	CHECK_EQUAL(v4 ? v4->start(contexts[0], NULL, NULL) : v5->start(contexts[0], NULL, NULL), 0);
	CHECK_EQUAL(v4 ? v4->start(contexts[0], &handle, NULL) : v5->start(contexts[0], &handle, NULL), 0);
	CHECK(!handle);
	CHECK_EQUAL(v4 ? v4->init(NULL, NULL, NULL, 0, 0, 0, 0, NULL) : v5->init(NULL, 0, NULL, NULL, 0, 0, 0, NULL), 0);

	/* an operation older than the ring counts for its communicator alone */
	old = start(contexts[1], COLL, NULL, &body);
	for (int i = 0; i < 20000; i++)
		stop(start(contexts[0], COLL, NULL, &body));
	handle = start(contexts[1], PROXY_OP, old, &op);
	handle = start(contexts[1], PROXY_STEP, handle, &body);
	state(handle, PEER_WAIT);
	network_send(qp, 64);
	state(handle, SEND_WAIT);
	WAIT(seen(d, 2) && seen(d, 2)->bytes[MFS_OPERATION_OTHER] == 64);
	CHECK_EQUAL(seen(d, 2)->bytes[MFS_OPERATION_ALL_REDUCE], 0);
}

int main(int argc, char **argv)
{
	static const struct test tests[] = {
		{"sends_are_tagged", sends_are_tagged},
		{"the_batch_under_way", the_batch_under_way},
		{"class_of_a_communicator", class_of_a_communicator},
		{"nonsense_is_survived", nonsense_is_survived},
		{NULL, NULL},
	};

	if (argc > 3) {
		version = atoi(argv[2]);
		path = argv[3];
		load();
	}
	return run_tests(tests, argc > 3 ? 2 : argc, argv);
}
