/* Fuzzes what a soft RoCE device receives from the network: bytes in pieces of any size on the connection of a peer's
 * requests and on that of the responses to its own, while it posts, gives memory back and takes it again. Memory outside
 * of what was registered must stay as it was, every request completes at most once, and nothing leaks. */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* Connections are pairs of unix sockets, all of them from the peer that the queue pair expects. */
static int fuzz_getpeername(int fd, struct sockaddr *address, socklen_t *size)
{
	(void)fd;
	memset(address, 0, *size);
	return 0;
}
#define getpeername fuzz_getpeername
#include "../../csrc/soft_roce/handshake.c"
#undef getpeername
#include "../../csrc/soft_roce/context.h"
#include "../../csrc/soft_roce/cq.h"
#include "../../csrc/soft_roce/mr.h"
#include "../../csrc/soft_roce/poll.h"
#include "../../csrc/soft_roce/post.h"
#include "../../csrc/soft_roce/progress.h"
#include "../../csrc/soft_roce/qp.h"
#include "input.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { REGION = 64 * 1024, GUARD = 4096, WRS = 16 };

struct peer {
	struct mfs_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *other; /* `other` comes and goes */
	struct mfs_qp *qp;
	int requests, responses; /* the peer's ends; -1: closed */
	uint64_t posted, completed;
};

static uint8_t memory[GUARD + REGION + GUARD], spare[8192];

static void require(bool truth, const char *what)
{
	if (truth)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static struct mfs_context *context_make(void)
{
	struct mfs_context *context = calloc(1, sizeof(*context));

	require(context, "context");
	mfs_context_init(context);
	context->address.s_addr = htonl(INADDR_LOOPBACK);
	require(mfs_context_start(context) == 0, "progress");
	return context;
}

static void context_free(struct mfs_context *context)
{
	mfs_context_stop(context);
	close(context->verbs.context.async_fd);
	free(context->mrs);
	free(context);
}

/* A connection of this queue pair; answers the peer's end. */
static int connection_make(struct peer *p, bool requester)
{
	struct mfs_connection *connection;
	int pair[2];

	require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) == 0, "socketpair");
	connection = mfs_connection_new(p->context, pair[0], EPOLLIN,
					requester ? mfs_requester_resume : mfs_responder_resume);
	require(connection, "connection");
	if (requester) {
		connection->requester = true;
		connection->state = MFS_OPEN;
		connection->qp = p->qp;
		connection->first = p->qp->sq.head;
		p->qp->requester = connection;
		p->qp->requester_lost = false;
	} else {
		mfs_stranger_add(connection, MFS_GREETING);
	}
	return pair[1];
}

/* In the state in which two connected queue pairs are; its own connection is made here instead of by TCP. */
static void queue_pair_make(struct peer *p, struct input *in)
{
	struct ibv_qp_init_attr init = {.send_cq = p->cq, .recv_cq = p->cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
					.cap = {WRS, WRS, 4, 4, 64}};
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1,
				   .qp_access_flags = (unsigned)take(in, 1) & 1 ? 0
									       : IBV_ACCESS_REMOTE_WRITE |
											 IBV_ACCESS_REMOTE_READ |
											 IBV_ACCESS_REMOTE_ATOMIC};

	p->qp = mfs_qp_of(mfs_create_qp(p->pd, &init));
	require(p->qp, "queue pair");
	mfs_qp_enter(p->qp, IBV_QPS_RTS);
	p->qp->attr.qp_access_flags = attr.qp_access_flags;
	p->qp->attr.dest_qp_num = 77;
	p->qp->attr.max_rd_atomic = p->qp->attr.max_dest_rd_atomic = 4;
	p->qp->attr.rnr_retry = p->qp->attr.retry_cnt = 7;
	p->qp->attr.timeout = 31;
	p->qp->requester_lost = true;
}

static void post_send(struct peer *p, struct input *in)
{
	static const enum ibv_wr_opcode opcodes[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
						     IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
						     IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD};
	enum ibv_wr_opcode opcode = opcodes[take(in, 1) % 7];
	uint32_t length = opcode >= IBV_WR_ATOMIC_CMP_AND_SWP && opcode <= IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : (uint32_t)take(in, 2);
	struct ibv_sge sges[2] = {{(uintptr_t)memory + GUARD, length / 2, p->mr->lkey},
				  {(uintptr_t)memory + GUARD + REGION / 2, length - length / 2, p->mr->lkey}};
	struct ibv_send_wr *bad, wr = {.wr_id = p->posted, .sg_list = sges, .num_sge = 2, .opcode = opcode};

	if (opcode >= IBV_WR_ATOMIC_CMP_AND_SWP)
		wr.wr.atomic.remote_addr = 8;
	if (mfs_post_send(&p->qp->verbs.qp, &wr, &bad) == 0)
		p->posted++;
}

static void post_receive(struct peer *p, struct input *in)
{
	bool from_other = p->other && take(in, 1) & 1;
	struct ibv_sge sge = {from_other ? (uintptr_t)spare : (uintptr_t)memory + GUARD, (uint32_t)take(in, 2) % sizeof(spare),
			      from_other ? p->other->lkey : p->mr->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = p->posted, .sg_list = &sge, .num_sge = 1};

	if (mfs_post_recv(&p->qp->verbs.qp, &wr, &bad) == 0)
		p->posted++;
}

static void poll(struct peer *p)
{
	struct ibv_wc wc[8];
	int n;

	while ((n = mfs_poll_cq(p->cq, 8, wc)) > 0)
		p->completed += (uint64_t)n;
	require(n == 0, "the queue did not overflow");
	require(p->completed <= p->posted, "what was posted completes once");
}

/* Most frames are near the truth, where the interesting mistakes are. */
static size_t frame_make(struct peer *p, struct input *in, uint8_t *to)
{
	unsigned shape = (unsigned)take(in, 1);
	struct mfs_frame frame;

	if (shape & 1) {
		take_bytes(in, &frame, sizeof(frame));
	} else {
		uint64_t address = (uintptr_t)memory + GUARD + take(in, 2);

		frame = (struct mfs_frame){
			.opcode = (uint8_t)(take(in, 1) % 10),
			.flags = shape & 2 ? (uint8_t)take(in, 1) & 3 : 0,
			.syndrome = shape & 4 ? (uint8_t)take(in, 1) % 6 : 0,
			.length = (uint32_t)take(in, shape & 8 ? 2 : 1),
			.address = shape & 16 ? (uintptr_t)memory + take(in, 3) : address,
			.key = shape & 32 && p->other ? p->other->rkey : p->mr->rkey,
			.value = (uint32_t)take(in, 1),
			.done = (uint32_t)take(in, 1),
		};
		if (frame.opcode == MFS_COMPARE_SWAP || frame.opcode == MFS_FETCH_ADD)
			frame.length = MFS_ATOMIC_OPERANDS_SIZE;
	}
	memcpy(to, &frame, sizeof(frame));
	return sizeof(frame);
}

static void bytes_send(struct peer *p, struct input *in, int fd)
{
	static uint8_t bytes[64 * 1024];
	size_t size = frame_make(p, in, bytes);
	unsigned more = (unsigned)take(in, 1);

	memset(bytes + size, (int)more, sizeof(bytes) - size);
	size += more & 64 ? take(in, 2) % (sizeof(bytes) - size) : more % 32;
	if (more & 128) /* a piece of a frame */
		size = take(in, 1) % sizeof(struct mfs_frame);
	for (size_t sent = 0; sent < size;) { /* the device takes what the socket holds when it makes progress */
		ssize_t n = send(fd, bytes + sent, size - sent, MSG_NOSIGNAL);

		if (n < 0)
			return;
		sent += (size_t)n;
		mfs_progress_help(p->context);
	}
}

static void hello_send(struct peer *p, int fd)
{
	struct mfs_frame hello = {.opcode = MFS_HELLO, .address = MFS_WIRE_MAGIC, .key = p->qp->verbs.qp.qp_num, .value = 77};

	send(fd, &hello, sizeof(hello), MSG_NOSIGNAL);
}

static void drain(int fd)
{
	static uint8_t bytes[64 * 1024];

	while (fd >= 0 && recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
}

static void step(struct peer *p, struct input *in)
{
	switch (take(in, 1) % 16) {
	case 0:
		post_send(p, in);
		break;
	case 1:
		post_receive(p, in);
		break;
	case 2: /* a key goes away while bytes for it are on their way, or comes back */
		if (p->other) {
			mfs_dereg_mr((struct verbs_mr *)p->other);
			p->other = NULL;
		} else {
			p->other = mfs_reg_mr(p->pd, spare, sizeof(spare), (uintptr_t)spare,
					      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
		}
		break;
	case 3:
		poll(p);
		break;
	case 4: /* the peer's end closes, or comes anew */
		if (p->requests >= 0)
			close(p->requests);
		p->requests = -1;
		if (!p->qp->responder && p->qp->state == IBV_QPS_RTS) {
			pthread_mutex_lock(&p->context->lock);
			p->requests = connection_make(p, false);
			pthread_mutex_unlock(&p->context->lock);
			if (take(in, 1) & 7)
				hello_send(p, p->requests);
		}
		break;
	case 5:
		drain(p->requests);
		drain(p->responses);
		break;
	case 6:
	case 7:
	case 8:
		bytes_send(p, in, p->responses);
		break;
	default:
		bytes_send(p, in, p->requests);
	}
	mfs_progress_help(p->context);
}

static int lowest_descriptor(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {data, size};
	struct peer p = {.requests = -1};
	int free_before = lowest_descriptor();

	memset(memory, 0x5a, sizeof(memory));
	p.context = context_make();
	p.pd = mfs_alloc_pd(&p.context->verbs.context);
	p.cq = mfs_create_cq(&p.context->verbs.context, 256, NULL, 0);
	p.mr = mfs_reg_mr(p.pd, memory + GUARD, REGION, (uintptr_t)memory + GUARD,
			  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	require(p.pd && p.cq && p.mr, "device");
	queue_pair_make(&p, &in);
	pthread_mutex_lock(&p.context->lock);
	p.requests = connection_make(&p, false);
	p.responses = connection_make(&p, true);
	pthread_mutex_unlock(&p.context->lock);
	hello_send(&p, p.requests);
	while (in.left)
		step(&p, &in);
	poll(&p);
	if (p.requests >= 0)
		close(p.requests);
	close(p.responses);
	require(mfs_destroy_qp(&p.qp->verbs.qp) == 0, "queue pair destroyed");
	require(mfs_destroy_cq(p.cq) == 0, "completion queue destroyed");
	if (p.other)
		mfs_dereg_mr((struct verbs_mr *)p.other);
	mfs_dereg_mr((struct verbs_mr *)p.mr);
	require(mfs_dealloc_pd(p.pd) == 0, "protection domain freed");
	context_free(p.context);
	for (size_t i = 0; i < GUARD; i++)
		require(memory[i] == 0x5a && memory[GUARD + REGION + i] == 0x5a, "memory that was not registered is untouched");
	require(lowest_descriptor() == free_before, "descriptors are given back");
	return 0;
}
