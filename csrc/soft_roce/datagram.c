/*
 * UD queue pairs: each message is one UDP datagram, from the port in the sender's QPN to the port in the
 * receiver's. Nothing is acknowledged or sent again; what finds no receive, no room or no queue pair is gone.
 */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "datagram.h"

#include "cq.h"
#include "descriptors.h"
#include "failure.h"
#include "mr.h"
#include "pacer.h"
#include "rate.h"
#include "receive_queue.h"
#include "requester.h"

enum {
	GRH_SIZE = 40, /* the route header in front of every message received */
	DATAGRAM_AT = GRH_SIZE - sizeof(struct mfs_datagram),
	BUFFER_BYTES = 4 * 1024 * 1024, /* of the socket; the system may allow less */
	SEND_TURN_BYTES = 512 * 1024,   /* then others get the context's lock */
	RECEIVE_TURN = 64,              /* so many datagrams, likewise */
	TIME_TO_LIVE = 64,
	ROCE_V2_IPV4 =
		0xa, /* instead of a service level, as of ConnectX: UDP (8) over IPv4 (2); UCX asks for it */
};

/* A request's Q_Key with this bit means that of its queue pair. */
static const uint32_t PRIVILEGED_QKEY = 1u << 31;

/* Fails with -EADDRINUSE when another program has the UDP port of that number. */
int mfs_datagrams_open(struct mfs_context *context, struct mfs_port *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr = context->address,
				      .sin_port = htons(port->number)};
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = &port->datagrams};
	int fd = mfs_descriptor_own(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	int on = 1, size = BUFFER_BYTES, ret;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) ||
	    setsockopt(fd, IPPROTO_IP, IP_RECVTOS, &on, sizeof(on)) ||
	    epoll_ctl(context->epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
		ret = -errno;
		mfs_descriptor_close(fd);
		return ret;
	}
	if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size)))
		setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	port->datagrams.fd = fd;
	return 0;
}

static void want_write(struct mfs_context *context, struct mfs_port *port, bool wanted)
{
	struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0),
				    .data.ptr = &port->datagrams};

	if (port->datagrams_full == wanted)
		return;
	port->datagrams_full = wanted;
	epoll_ctl(context->epoll_fd, EPOLL_CTL_MOD, port->datagrams.fd, &event);
}

/* Hands a datagram with this head to the network. Returns 0 or -errno. */
static int transmit(const struct mfs_qp *qp, const struct mfs_send_wqe *wqe, struct iovec *pieces,
		    size_t count)
{
	const struct mfs_destination *to = &wqe->to;
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr = to->address,
				      .sin_port = htons((uint16_t)(to->qp_num >> 8))};
	union {
		struct cmsghdr header;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control = {
		.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = IPPROTO_IP, .cmsg_type = IP_TOS}};
	struct msghdr message = {.msg_name = &address,
				 .msg_namelen = sizeof(address),
				 .msg_iov = pieces,
				 .msg_iovlen = count,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	int tos = to->traffic_class;
	ssize_t size;

	memcpy(CMSG_DATA(&control.header), &tos, sizeof(tos));
	size = sendmsg(qp->port->datagrams.fd, &message, MSG_NOSIGNAL);
	if (size < 0)
		return -errno;
	mfs_counters_add(&mfs_context_of(qp->verbs.qp.context)->counters, MFS_SENT, to->traffic_class,
			 (uint64_t)size);
	return 0;
}

/* Sends the oldest request. Returns 0, -EAGAIN when it has to wait, -EIO with the status that it fails with. */
static int send_oldest(struct mfs_qp *qp, enum ibv_wc_status *status)
{
	struct mfs_context *context = mfs_context_of(qp->verbs.qp.context);
	const struct mfs_send_wqe *wqe = &qp->sq.wqes[qp->sq.head & (qp->sq.size - 1)];
	struct mfs_datagram head = {
		.magic = htole64(MFS_DATAGRAM_MAGIC),
		.destination = htole32(wqe->to.qp_num),
		.source = htole32(qp->verbs.qp.qp_num),
		.qkey = htole32(wqe->to.qkey & PRIVILEGED_QKEY ? qp->attr.qkey : wqe->to.qkey),
		.immediate = wqe->frame.value,
		.flags = wqe->frame.flags,
	};
	struct iovec pieces[MFS_MAX_SGE + 1] = {{.iov_base = &head, .iov_len = sizeof(head)}};
	uint32_t bytes = mfs_wqe_wire_bytes(wqe);
	int count, ret;

	*status = wqe->to.pd != qp->verbs.qp.pd ? IBV_WC_LOC_QP_OP_ERR
		  : wqe->length > MFS_MTU       ? IBV_WC_LOC_LEN_ERR
						: IBV_WC_SUCCESS;
	if (*status != IBV_WC_SUCCESS)
		return -EIO;
	count = mfs_requester_memory(qp, qp->sq.head, pieces + 1);
	if (count >= 0 && mfs_rate_turn_bytes(&context->rate) &&
	    !mfs_pacer_credit(context, &qp->pacer, bytes))
		return -EAGAIN;
	ret = count < 0 ? -EFAULT : transmit(qp, wqe, pieces, (size_t)count + 1);
	if (ret == -EFAULT) {
		*status = IBV_WC_LOC_PROT_ERR;
		return -EIO;
	}
	if (ret == -EAGAIN || ret == -EINTR) {
		want_write(context, qp->port, true);
		return -EAGAIN;
	}
	mfs_pacer_spend(&qp->pacer, bytes);
	return 0; /* whatever else went wrong is a loss on the way, which is not reported */
}

static void complete_oldest(struct mfs_qp *qp)
{
	struct mfs_send_queue *sq = &qp->sq;
	const struct mfs_send_wqe *wqe = &sq->wqes[sq->head & (sq->size - 1)];
	struct ibv_wc wc = {
		.wr_id = wqe->wr_id,
		.status = IBV_WC_SUCCESS,
		.opcode = wqe->wc_opcode,
		.byte_len = wqe->length,
		.qp_num = qp->verbs.qp.qp_num,
	};

	sq->unsent_bytes -= mfs_wqe_wire_bytes(wqe);
	if (wqe->flags & MFS_WQE_SIGNALED)
		mfs_cq_push(mfs_cq_of(qp->init.send_cq), &wc, false);
	sq->sent = ++sq->head;
}

/* Sends what can be sent, up to a turn's worth; with the context's lock held. */
void mfs_datagrams_send(struct mfs_qp *qp)
{
	struct mfs_send_queue *sq = &qp->sq;
	enum ibv_wc_status status;
	uint32_t total = 0;
	int ret = 0;

	while (qp->state == IBV_QPS_RTS && sq->head != sq->tail) {
		if (total >= SEND_TURN_BYTES) {
			want_write(mfs_context_of(qp->verbs.qp.context), qp->port, true);
			return;
		}
		total += mfs_wqe_wire_bytes(&sq->wqes[sq->head & (sq->size - 1)]);
		ret = send_oldest(qp, &status);
		if (ret == -EAGAIN)
			return;
		if (ret)
			mfs_qp_fail_send(qp, status);
		else
			complete_oldest(qp);
	}
	qp->pacer.backlogged = false;
}

void mfs_datagrams_resume(struct mfs_pacer *pacer)
{
	mfs_datagrams_send(mfs_container_of(pacer, struct mfs_qp, pacer));
}

/* What the network says of a datagram. */
struct arrival {
	struct sockaddr_in from;
	uint8_t traffic_class;
	uint32_t size;
};

static uint16_t header_checksum(const struct ip *header)
{
	uint16_t words[sizeof(*header) / sizeof(uint16_t)];
	uint32_t sum = 0;

	memcpy(words, header, sizeof(words));
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~(sum + (sum >> 16));
}

/* What stands in the place of the global route header when that is IPv4's: its second half, with a right
 * checksum, by which ibv_create_ah_from_wc knows it. */
static void make_route_header(const struct mfs_context *context, const struct arrival *arrival, uint8_t *to)
{
	struct ip header = {
		.ip_v = IPVERSION,
		.ip_hl = sizeof(header) / 4,
		.ip_tos = arrival->traffic_class,
		.ip_len = htons((uint16_t)(sizeof(header) + sizeof(struct udphdr) + arrival->size)),
		.ip_off = htons(IP_DF),
		.ip_ttl = TIME_TO_LIVE,
		.ip_p = IPPROTO_UDP,
		.ip_src = arrival->from.sin_addr,
		.ip_dst = context->address,
	};

	header.ip_sum = header_checksum(&header);
	memset(to, 0, GRH_SIZE - sizeof(header));
	memcpy(to + GRH_SIZE - sizeof(header), &header, sizeof(header));
}

static void scatter(const struct iovec *piece, const uint8_t *from, size_t size)
{
	for (; size; piece++) {
		size_t part = mfs_min(size, piece->iov_len);

		memcpy(piece->iov_base, from, part);
		from += part;
		size -= part;
	}
}

static bool takes_messages(const struct mfs_qp *qp)
{
	enum ibv_qp_state state = qp->state;

	return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_SQE;
}

/* The queue pair that a datagram is for, or NULL: there is none, or the sender is not what it claims. */
static struct mfs_qp *find_receiver(const struct mfs_port *port, const struct mfs_datagram *head,
				    const struct arrival *arrival)
{
	uint32_t number = le32toh(head->destination);
	struct mfs_qp *qp = number >> 8 == port->number ? port->qps[number & 0xff] : NULL;

	if (!qp || !mfs_qp_is_datagram(qp) || !takes_messages(qp) || le32toh(head->qkey) != qp->attr.qkey ||
	    le32toh(head->source) >> 8 != ntohs(arrival->from.sin_port))
		return NULL;
	return qp;
}

static bool take_receive(struct mfs_context *context, struct mfs_qp *qp)
{
	bool taken = mfs_recv_queue_take(qp->receives, &qp->receiving, qp->receiving_sges);

	if (qp->init.srq)
		mfs_srq_check(context, (struct mfs_srq *)qp->init.srq);
	return taken;
}

/* `message` has the route header in front. A receive that it does not fit fails, and the queue pair, too. */
static void deliver(struct mfs_context *context, struct mfs_qp *qp, const struct mfs_datagram *head,
		    const uint8_t *message, uint32_t size)
{
	struct iovec pieces[MFS_MAX_SGE];
	struct ibv_wc wc = {
		.opcode = IBV_WC_RECV,
		.byte_len = size,
		.qp_num = qp->verbs.qp.qp_num,
		.src_qp = le32toh(head->source),
		.wc_flags = IBV_WC_GRH,
		.sl = ROCE_V2_IPV4,
	};
	int count;

	if (!take_receive(context, qp))
		return;
	wc.wr_id = qp->receiving.wr_id;
	if (head->flags & MFS_FRAME_IMMEDIATE) {
		wc.wc_flags |= IBV_WC_WITH_IMM;
		wc.imm_data = head->immediate;
	}
	count = mfs_mr_resolve_sges(context, qp->verbs.qp.pd, qp->receiving_sges, qp->receiving.num_sge, size,
				    IBV_ACCESS_LOCAL_WRITE, pieces);
	if (count >= 0)
		scatter(pieces, message, size);
	else
		wc.status = count == -EMSGSIZE ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR;
	mfs_cq_push(mfs_cq_of(qp->init.recv_cq), &wc, head->flags & MFS_FRAME_SOLICITED);
	if (count < 0)
		mfs_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
}

/* Takes one datagram apart. It lies so in the buffer that its message begins where a route header ends. */
static void receive_one(struct mfs_context *context, const struct mfs_port *port, uint8_t *buffer,
			const struct arrival *arrival)
{
	struct mfs_datagram head;
	struct mfs_qp *qp;
	uint32_t size;

	if (arrival->size < sizeof(head) || arrival->size > sizeof(head) + MFS_MTU)
		return;
	memcpy(&head, buffer + DATAGRAM_AT, sizeof(head));
	if (le64toh(head.magic) != MFS_DATAGRAM_MAGIC)
		return;
	qp = find_receiver(port, &head, arrival);
	if (!qp)
		return;
	size = arrival->size - (uint32_t)sizeof(head);
	make_route_header(context, arrival, buffer);
	deliver(context, qp, &head, buffer, GRH_SIZE + size);
}

/* Reads the next datagram. False when there is none. */
static bool read_one(const struct mfs_port *port, uint8_t *buffer, struct arrival *arrival)
{
	union {
		struct cmsghdr header;
		uint8_t bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec piece = {.iov_base = buffer + DATAGRAM_AT, .iov_len = MFS_RX_BUFFER_SIZE - DATAGRAM_AT};
	struct msghdr message = {.msg_name = &arrival->from,
				 .msg_namelen = sizeof(arrival->from),
				 .msg_iov = &piece,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	ssize_t size = recvmsg(port->datagrams.fd, &message, 0);
	struct cmsghdr *tos = size < 0 ? NULL : CMSG_FIRSTHDR(&message);

	if (size < 0)
		return false;
	arrival->size = (uint32_t)size;
	arrival->traffic_class = 0;
	if (tos && tos->cmsg_level == IPPROTO_IP && tos->cmsg_type == IP_TOS)
		arrival->traffic_class = *CMSG_DATA(tos);
	return true;
}

static void send_more(struct mfs_context *context, struct mfs_port *port)
{
	want_write(context, port, false);
	for (uint32_t i = 0; i < MFS_QPS_PER_PORT; i++)
		if (port->qps[i] && mfs_qp_is_datagram(port->qps[i]))
			mfs_datagrams_send(port->qps[i]);
}

/* With the context's lock held. What is left after a turn makes the next event. */
void mfs_datagrams_event(struct mfs_context *context, struct mfs_port *port, uint32_t events)
{
	struct arrival arrival = {0};

	if (events & (EPOLLIN | EPOLLERR))
		for (uint32_t i = 0; i < RECEIVE_TURN && read_one(port, context->rx_buffer, &arrival); i++) {
			mfs_counters_add(&context->counters, MFS_RECEIVED, arrival.traffic_class,
					 arrival.size);
			receive_one(context, port, context->rx_buffer, &arrival);
		}
	if (events & EPOLLOUT)
		send_more(context, port);
}
