/* Fuzzes what a soft RoCE device receives by UDP: datagrams of any content for two UD queue pairs, one of them with shared
 * receives, while these take receives, lose the memory behind them, fail and start anew, and for an RC queue pair on the
 * same port, which must never see one. Memory outside of what was registered must stay as it was, every receive completes
 * at most once, and nothing leaks. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../csrc/soft_roce/ah.h"
#include "../../csrc/soft_roce/context.h"
#include "../../csrc/soft_roce/cq.h"
#include "../../csrc/soft_roce/mr.h"
#include "../../csrc/soft_roce/poll.h"
#include "../../csrc/soft_roce/post.h"
#include "../../csrc/soft_roce/progress.h"
#include "../../csrc/soft_roce/qp.h"
#include "../../csrc/soft_roce/qp_state.h"
#include "../../csrc/soft_roce/srq.h"
#include "input.h"

enum { REGION = 64 * 1024, GUARD = 4096, WRS = 16, QKEY = 0x1234, QPS = 3, RC = 2 };

struct device {
	struct mfs_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr, *other; /* `other` comes and goes */
	struct ibv_srq *srq;
	struct ibv_ah *ah; /* of the stranger */
	struct mfs_qp *qps[QPS];
	int stranger; /* who sends, by UDP */
	uint16_t port; /* its own */
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

static void state_set(struct mfs_qp *qp, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = {.qp_state = state, .port_num = 1, .qkey = QKEY};

	require(mfs_modify_qp(&qp->verbs.qp, &attr, IBV_QP_STATE | mask) == 0, "state");
}

static void ready(struct mfs_qp *qp)
{
	state_set(qp, IBV_QPS_RESET, 0);
	state_set(qp, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
	state_set(qp, IBV_QPS_RTR, 0);
	state_set(qp, IBV_QPS_RTS, IBV_QP_SQ_PSN);
}

static void queue_pair_make(struct device *d, unsigned i)
{
	struct ibv_qp_init_attr init = {.send_cq = d->cq, .recv_cq = d->cq, .sq_sig_all = 1, .srq = i ? d->srq : NULL,
					.qp_type = i == RC ? IBV_QPT_RC : IBV_QPT_UD, .cap = {WRS, WRS, 4, 4, 64}};

	d->qps[i] = mfs_qp_of(mfs_create_qp(d->pd, &init));
	require(d->qps[i], "queue pair");
	d->qps[i]->verbs.qp.context = &d->context->verbs.context;
	if (i != RC) {
		ready(d->qps[i]);
		return;
	}
	mfs_qp_enter(d->qps[i], IBV_QPS_RTS);
	d->qps[i]->attr.qkey = QKEY;
}

static void stranger_make(struct device *d)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);

	d->stranger = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	require(d->stranger >= 0 && !bind(d->stranger, (struct sockaddr *)&address, size) &&
			!getsockname(d->stranger, (struct sockaddr *)&address, &size),
		"a socket");
	d->port = ntohs(address.sin_port);
}

static void open_device(struct device *d)
{
	struct ibv_srq_init_attr init = {.attr = {.max_wr = WRS, .max_sge = 2}};
	struct ibv_ah_attr address = {.is_global = 1, .port_num = 1};

	d->context = calloc(1, sizeof(*d->context));
	require(d->context, "context");
	mfs_context_init(d->context);
	d->context->address.s_addr = htonl(INADDR_LOOPBACK);
	require(mfs_context_start(d->context) == 0, "progress");
	d->pd = mfs_alloc_pd(&d->context->verbs.context);
	d->cq = mfs_create_cq(&d->context->verbs.context, 1024, NULL, 0);
	d->mr = mfs_reg_mr(d->pd, memory + GUARD, REGION, (uintptr_t)memory + GUARD, IBV_ACCESS_LOCAL_WRITE);
	d->srq = mfs_create_srq(d->pd, &init);
	require(d->pd && d->cq && d->mr && d->srq, "device");
	d->srq->context = &d->context->verbs.context; /* what libibverbs fills in */
	d->srq->pd = d->pd;
	pthread_mutex_init(&d->srq->mutex, NULL);
	for (unsigned i = 0; i < QPS; i++)
		queue_pair_make(d, i);
	address.grh.dgid.raw[10] = address.grh.dgid.raw[11] = 0xff;
	memcpy(&address.grh.dgid.raw[12], &d->context->address, sizeof(d->context->address));
	d->ah = mfs_create_ah(d->pd, &address);
	require(d->ah, "address handle");
	d->ah->context = &d->context->verbs.context;
	d->ah->pd = d->pd;
	stranger_make(d);
}

static void close_device(struct device *d)
{
	close(d->stranger);
	for (unsigned i = 0; i < QPS; i++)
		require(mfs_destroy_qp(&d->qps[i]->verbs.qp) == 0, "queue pair destroyed");
	require(mfs_destroy_ah(d->ah) == 0 && mfs_destroy_srq(d->srq) == 0 && mfs_destroy_cq(d->cq) == 0, "all destroyed");
	if (d->other)
		mfs_dereg_mr((struct verbs_mr *)d->other);
	mfs_dereg_mr((struct verbs_mr *)d->mr);
	require(mfs_dealloc_pd(d->pd) == 0, "protection domain freed");
	mfs_context_stop(d->context);
	close(d->context->verbs.context.async_fd);
	free(d->context->mrs);
	free(d->context);
}

static void post_receive(struct device *d, struct input *in)
{
	unsigned shape = (unsigned)take(in, 1), to = shape & 1;
	bool from_other = d->other && shape & 2;
	uint32_t length = (uint32_t)take(in, 2) % 5000, cut = length ? (uint32_t)take(in, 2) % length : 0;
	uintptr_t base = from_other ? (uintptr_t)spare : (uintptr_t)memory + GUARD;
	uint32_t size = from_other ? sizeof(spare) : REGION, key = from_other ? d->other->lkey : d->mr->lkey;
	/* either piece ends where the memory does */
	struct ibv_sge sges[2] = {{base + (shape & 4 ? size - cut : 0), cut, key},
				  {base + (shape & 4 ? 0 : size - (length - cut)), length - cut, key}};
	struct ibv_recv_wr *bad, wr = {.wr_id = d->posted, .sg_list = sges, .num_sge = 2};

	if (to == 1 ? !mfs_post_srq_recv(d->srq, &wr, &bad) : !mfs_post_recv(&d->qps[0]->verbs.qp, &wr, &bad))
		d->posted++;
}

static void post_send(struct device *d, struct input *in)
{
	struct ibv_sge sge = {(uintptr_t)memory + GUARD, (uint32_t)take(in, 2) % 5000, d->mr->lkey};
	struct ibv_send_wr *bad, wr = {.wr_id = d->posted, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	unsigned shape = (unsigned)take(in, 1);
	struct mfs_qp *from = d->qps[shape & 1];

	wr.wr.ud.ah = shape & 2 ? NULL : d->ah;
	wr.wr.ud.remote_qpn = shape & 4 ? (uint32_t)take(in, 4) : d->qps[shape >> 3 & 1]->verbs.qp.qp_num;
	wr.wr.ud.remote_qkey = shape & 32 ? (uint32_t)take(in, 4) : QKEY;
	if (!mfs_post_send(&from->verbs.qp, &wr, &bad))
		d->posted++;
}

/* Most are near the truth, where the interesting mistakes are. */
static void send_datagram(struct device *d, struct input *in)
{
	static uint8_t bytes[60 * 1024];
	unsigned shape = (unsigned)take(in, 1), receiver = (unsigned)take(in, 1) % QPS;
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
				      .sin_port = htons(d->qps[0]->port->number)};
	struct mfs_datagram head = {.magic = MFS_DATAGRAM_MAGIC, .qkey = QKEY, .source = (uint32_t)d->port << 8,
				    .destination = d->qps[receiver]->verbs.qp.qp_num, .immediate = 7, .flags = shape & 3};
	size_t size = take(in, 2) % 5000;

	if ((shape & 0x1c) == 0x1c)
		head.destination ^= 1u << take(in, 1) % 32;
	if ((shape & 0x2c) == 0x2c)
		head.source ^= 1u << take(in, 1) % 32;
	if ((shape & 0x4c) == 0x4c)
		head.qkey ^= 1u << take(in, 1) % 32;
	if ((shape & 0x8c) == 0x8c)
		take_bytes(in, &head, sizeof(head));
	memset(bytes, (int)shape, sizeof(bytes));
	memcpy(bytes, &head, sizeof(head));
	if (shape == 0x40)
		size = sizeof(bytes) - sizeof(head);
	else if (shape == 0x41) /* a piece of a head */
		size = 0;
	sendto(d->stranger, bytes, shape == 0x41 ? take(in, 1) % sizeof(head) : sizeof(head) + size, 0,
	       (struct sockaddr *)&address, sizeof(address));
}

static void poll(struct device *d)
{
	struct ibv_wc wc[8];
	int n;

	while ((n = mfs_poll_cq(d->cq, 8, wc)) > 0) {
		d->completed += (uint64_t)n;
		for (int i = 0; i < n; i++) {
			require(wc[i].qp_num != d->qps[RC]->verbs.qp.qp_num, "RC queue pairs receive no datagrams");
			require(wc[i].status || wc[i].opcode != IBV_WC_RECV ||
					(wc[i].byte_len >= 40 && wc[i].byte_len <= 40 + MFS_MTU),
				"a length");
		}
	}
	require(n == 0, "the queue did not overflow");
	require(d->completed <= d->posted, "what was posted completes once");
}

static void step(struct device *d, struct input *in)
{
	struct mfs_qp *qp;

	switch (take(in, 1) % 16) {
	case 0:
		post_send(d, in);
		break;
	case 1:
	case 2:
	case 3:
		post_receive(d, in);
		break;
	case 4: /* a key goes away, or comes back */
		if (d->other) {
			mfs_dereg_mr((struct verbs_mr *)d->other);
			d->other = NULL;
		} else {
			d->other = mfs_reg_mr(d->pd, spare, sizeof(spare), (uintptr_t)spare, IBV_ACCESS_LOCAL_WRITE);
		}
		break;
	case 5:
		poll(d);
		break;
	case 6: /* what was posted is forgotten, and may not complete any more */
		qp = d->qps[take(in, 1) & 1];
		poll(d);
		if (qp->state != IBV_QPS_RTS)
			ready(qp);
		else
			state_set(qp, IBV_QPS_ERR, 0);
		break;
	default:
		send_datagram(d, in);
	}
	mfs_progress_help(d->context);
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
	struct device d = {0};
	int free_before = lowest_descriptor();

	memset(memory, 0x5a, sizeof(memory));
	open_device(&d);
	while (in.left)
		step(&d, &in);
	mfs_progress_help(d.context);
	poll(&d);
	close_device(&d);
	for (size_t i = 0; i < GUARD; i++)
		require(memory[i] == 0x5a && memory[GUARD + REGION + i] == 0x5a, "memory that was not registered is untouched");
	require(lowest_descriptor() == free_before, "descriptors are given back");
	return 0;
}
