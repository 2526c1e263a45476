/* Fuzzes what a hostile daemon can send to a process: its packets and descriptors during the handshake and after it, all
 * of the segment that it shares, and the rules in it. The process must go on, keep its descriptors, and wait for nothing
 * longer than it allows. */
#define _GNU_SOURCE
#include <sys/socket.h>
#include <sys/types.h>

/* The connection to the daemon is one end of a pair; the other end is the input's. */
static int socket_given;
#define socket(family, kind, protocol) socket_given
#define connect(fd, address, bytes) ((void)(address), 0)
#include "../../csrc/client/attach.c"
#undef socket
#undef connect

#include "../../nccl_shim/src/classify.c"
#include "../../nccl_shim/src/rules.c"
#include "input.h"

#include <stdio.h>
#include <sys/eventfd.h>

enum { TIMEOUT_MS = 1, TASKS = 8, STEPS = 64 };

/* ---- what the classification needs of the rest of the shim ---------------------------------------------------------- */

__thread struct shim_collective shim_collective;

bool shim_acquire_for(_Atomic uint32_t *flag, uint64_t timeout_ns)
{
	(void)timeout_ns;
	atomic_store(flag, 1);
	return true;
}

bool shim_owner_acquire_for(struct shim_qp *q, uint64_t timeout_ns)
{
	(void)timeout_ns;
	return shim_owner_try(q);
}

bool shim_owner_settled(struct shim_qp *q, uint32_t word)
{
	(void)q;
	(void)word;
	return true;
}

void shim_owner_share(struct shim_qp *q)
{
	(void)q;
}

void shim_owner_leave(struct shim_qp *q)
{
	shim_owner_release(q);
}

bool shim_hold_allocate(struct shim_qp *q)
{
	(void)q;
	return true;
}

int shim_communicator_connecting(void)
{
	return 0;
}

const char *shim_communicator_name(int communicator)
{
	(void)communicator;
	return "tp";
}

void shim_log(enum shim_reason reason, const char *format, ...)
{
	(void)reason;
	(void)format;
}

/* ---- the hostile daemon ---------------------------------------------------------------------------------------------- */

static void require(bool truth, const char *what)
{
	if (truth)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static void send_packet(int to, const void *packet, size_t bytes, const int *descriptors, unsigned count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(12 * sizeof(int))] = {0};
	struct iovec vector = {(void *)(uintptr_t)packet, bytes};
	struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};

	if (count) {
		struct cmsghdr *c = (struct cmsghdr *)control;

		message.msg_control = control;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), descriptors, count * sizeof(int));
	}
	sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* What is wrong with a message: mostly nothing, so that what comes after it is reached. */
static unsigned take_wrong(struct input *in)
{
	unsigned chosen = (unsigned)take(in, 1);

	return chosen < 192 ? 0 : chosen & 15;
}

/* A segment as the daemon makes it, unless the input wants it wrong. */
static struct mfs_segment *segment_make(struct input *in, int *memfd)
{
	unsigned wrong = take_wrong(in);
	off_t bytes = wrong & 1 ? (off_t)take(in, 3) : (off_t)sizeof(struct mfs_segment) + (wrong & 2 ? 4096 : 0);
	struct mfs_segment *segment;

	*memfd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	require(*memfd >= 0 && ftruncate(*memfd, bytes) == 0, "memfd");
	segment = bytes < (off_t)sizeof(*segment)
			  ? NULL
			  : mmap(NULL, sizeof(*segment), PROT_READ | PROT_WRITE, MAP_SHARED, *memfd, 0);
	require(segment != MAP_FAILED, "mmap");
	if (segment) {
		segment->header = (struct mfs_segment_header){
			.magic = MFS_ABI_MAGIC, .major = MFS_ABI_MAJOR, .minor = MFS_ABI_MINOR,
			.header_bytes = sizeof(segment->header), .segment_bytes = (uint64_t)bytes, .epoch = 7,
			.stale_after_ns = 1000000000, .max_hold_ns = 1000000000, .classes = 8,
			.heartbeat_ns = mfs_clock_ns(), .state = MFS_SEGMENT_ACTIVE, .mode = MFS_MODE_ENFORCE};
	}
	if (!(wrong & 4))
		fcntl(*memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | (wrong & 8 ? F_SEAL_WRITE : 0));
	return segment;
}

static void welcome_send(struct input *in, int to, int memfd)
{
	struct mfs_welcome welcome = {.magic = MFS_ABI_MAGIC, .major = MFS_ABI_MAJOR, .minor = MFS_ABI_MINOR,
				      .segment_bytes = sizeof(struct mfs_segment), .client_id = 1};
	int doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), descriptors[12];
	unsigned wrong = take_wrong(in), count = wrong & 1 ? (unsigned)take(in, 1) % 13 : 2;
	size_t bytes = wrong & 2 ? (size_t)take(in, 1) : sizeof(welcome);
	uint8_t packet[256] = {0};

	memcpy(packet, &welcome, sizeof(welcome));
	if (wrong & 4)
		take_bytes(in, packet + take(in, 1) % 64, 8);
	for (unsigned i = 0; i < 12; i++)
		descriptors[i] = i == 0 ? memfd : doorbell;
	if (wrong & 8)
		descriptors[0] = doorbell; /* no memory at all */
	send_packet(to, packet, bytes, descriptors, count);
	close(doorbell);
}

/* Mostly in the tables that the process reads. */
static void scribble(struct input *in, struct mfs_segment *segment)
{
	static const size_t places[] = {
		offsetof(struct mfs_segment, header), offsetof(struct mfs_segment, rules),
		offsetof(struct mfs_segment, submit), offsetof(struct mfs_segment, grant),
		offsetof(struct mfs_segment, grant_slot), offsetof(struct mfs_segment, request),
		offsetof(struct mfs_segment, demand), offsetof(struct mfs_segment, batch)};
	size_t offset = places[take(in, 1) % (sizeof(places) / sizeof(places[0]))] + take(in, 2);
	uint8_t bytes[64];
	size_t count = take(in, 1) % sizeof(bytes) + 1;

	take_bytes(in, bytes, count);
	for (size_t i = 0; i < count && offset + i < sizeof(*segment); i++)
		((uint8_t *)segment)[offset + i] = bytes[i];
}

static void grant_send(struct input *in, struct mfs_segment *segment, const uint64_t *task)
{
	struct mfs_grant *slot = &segment->grant_slot[take(in, 2) % MFS_GRANT_SLOTS];

	atomic_store(&slot->task, take(in, 1) & 1 ? take(in, 8) : task[take(in, 1) % TASKS]);
	atomic_store(&slot->class_epoch, 7ull << 32 | take(in, 1));
	atomic_fetch_add(&segment->grant.tail, take(in, 1) % 4);
}

/* ---- the process ------------------------------------------------------------------------------------------------------- */

static void classify(struct input *in, struct mfs_client *client)
{
	static const char *const libraries[] = {"/usr/lib/libnccl.so.2", "/x/mooncake/engine.so", ""};
	struct shim_qp q = {.lane = (int8_t)(take(in, 1) % 9) - 1, .found_role = (uint8_t)(take(in, 1) % MFS_ROLES_MAX),
			    .live = 1, .communicator = (int)(take(in, 1) % 2) - 1, .client = client,
			    .report = &mfs_client_segment(client)->report};

	snprintf(q.library, sizeof(q.library), "%s", libraries[take(in, 1) % 3]);
	take_bytes(in, q.peer.raw, sizeof(q.peer.raw));
	shim_rules_changed(client);
	shim_rules_load(client);
	require(shim_classify(&q), "a free queue pair is classified");
	require(q.role < MFS_ROLES_MAX && q.stage < MFS_STAGES_MAX, "role and stage are indices into tables");
}

static void act(struct input *in, struct mfs_client *client, uint64_t *task)
{
	uint64_t *one = &task[take(in, 1) % TASKS];
	struct mfs_permit permits[16];

	switch (take(in, 1) % 12) {
	case 0:
	case 1: {
		struct mfs_task t = {.bytes = take(in, 4), .batch = MFS_NONE_U32, .stage = MFS_STAGE_P2D,
				     .nic = (uint8_t)(take(in, 1) % MFS_NICS_MAX)};
		uint64_t how = take(in, 1);

		t.at_once = how & 2;
		t.class_marked = how & 4;
		t.incoming = how & 8;
		t.stage = how & 16 ? MFS_STAGE_REUSE : MFS_STAGE_P2D;
		t.batch = how & 32 ? (uint32_t)(how >> 6) : MFS_NONE_U32;
		require(mfs_client_submit(client, &t, how & 1 ? MFS_COOKIE_NONE : task, one) <= (how & 2 ? 1 : 0),
			"a permit without asking is reported to callers that ask for it");
		break;
	}
	case 2: {
		int n = mfs_client_permits(client, permits, 16);

		require(n <= 16, "no more permits than asked for");
		for (int i = 0; i < n; i++)
			require(permits[i].cookie == task, "a permit carries the cookie of its task");
		break;
	}
	case 3:
		mfs_client_permit(client, *one);
		break;
	case 4:
		mfs_client_permit_wait(client, *one, 100000);
		break;
	case 5:
		mfs_client_complete(client, *one);
		break;
	case 6:
		mfs_client_cancel(client, *one, take(in, 1) & 1);
		break;
	case 7:
		classify(in, client);
		break;
	case 8: {
		struct mfs_demand_info demands[4] = {{.bytes = 100}, {.bytes = 200}, {.bytes = 300}, {.bytes = 400}};
		struct mfs_request_info request = {.request_id = take(in, 1) + 1, .demands = demands, .demands_count = 4};
		struct mfs_batch_info batch = {.batch_id = take(in, 1) + 1, .layers = 4, .requests = &request,
					       .requests_count = 1};

		mfs_client_batch_begin_with(client, &batch);
		break;
	}
	case 9:
		mfs_client_batch_layer(client, (uint32_t)take(in, 1), (uint32_t)take(in, 1));
		mfs_client_request_judgement(client, (uint32_t)take(in, 2));
		mfs_client_request_end(client, (uint32_t)take(in, 2) % MFS_REQUESTS_MAX);
		break;
	case 10:
		mfs_client_batch_end(client, (uint32_t)take(in, 1) % MFS_BATCHES_MAX);
		break;
	default:
		mfs_client_hung_up(client);
		mfs_client_wait(client, 100000);
		mfs_client_permits_pending(client);
	}
}

static void nic(struct input *in, struct mfs_client *client, int to)
{
	struct mfs_nic_reply reply = {.magic = MFS_ABI_MAGIC, .nic = (uint32_t)take(in, 1) % 16};
	unsigned wrong = take_wrong(in);
	uint8_t packet[sizeof(reply) + 32] = {0};
	uint64_t before = mfs_clock_ns();
	int descriptors[12], index;

	memcpy(packet, &reply, sizeof(reply));
	if (wrong & 1)
		take_bytes(in, packet + take(in, 1) % 24, 8);
	for (int i = 0; i < 12; i++)
		descriptors[i] = to;
	send_packet(to, packet, wrong & 2 ? take(in, 1) % sizeof(packet) : sizeof(reply), descriptors,
		    wrong & 4 ? (unsigned)take(in, 1) % 13 : 0);
	index = mfs_client_nic(client, "rdma0", 1, 0);
	require(index < MFS_NICS_MAX && index > -4096, "a NIC's index, or an error");
	require(mfs_clock_ns() - before < 2000000000, "the answer is not waited for beyond the timeout");
}

static int lowest_descriptor(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct mfs_client_options options = {.socket_path = "/", .mode = MFS_MODE_ENFORCE, .timeout_ms = TIMEOUT_MS};
	struct input in = {data, size};
	uint64_t task[TASKS] = {0};
	struct mfs_client *client = NULL;
	struct mfs_segment *segment;
	const char *why = NULL;
	int pair[2], memfd, rc, free_before = lowest_descriptor();

	require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
	socket_given = pair[0];
	segment = segment_make(&in, &memfd);
	if (segment && take(&in, 1) & 1)
		scribble(&in, segment);
	welcome_send(&in, pair[1], memfd);
	close(memfd);
	rc = mfs_client_attach(&options, &client, &why);
	require(rc == 0 || (rc < 0 && rc > -4096 && why && !strchr(why, '\n')), "one line says why");
	for (int n = 0; rc == 0 && in.left && n < STEPS; n++) {
		unsigned step = (unsigned)take(&in, 1) % 8;

		if (step == 0)
			scribble(&in, segment);
		else if (step == 1)
			grant_send(&in, segment, task);
		else if (step == 2)
			nic(&in, client, pair[1]);
		else
			act(&in, client, task);
	}
	if (client)
		mfs_client_detach(client);
	if (segment)
		munmap(segment, sizeof(*segment));
	close(pair[1]);
	require(lowest_descriptor() == free_before, "descriptors are given back");
	return 0;
}
