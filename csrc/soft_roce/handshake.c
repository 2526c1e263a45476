/* Connections that are accepted: a peer says hello to a queue pair. And what happens on a connection. */
#define _GNU_SOURCE
#include "handshake.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "connection.h"
#include "descriptors.h"
#include "port.h"
#include "receive.h"
#include "requester.h"
#include "responder.h"

static void connected(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	struct mfs_frame hello = {
		.opcode = MFS_HELLO,
		.address = htole64(MFS_WIRE_MAGIC),
		.key = htole32(qp->attr.dest_qp_num),
		.value = htole32(qp->verbs.qp.qp_num),
	};
	socklen_t size = sizeof(int);
	int error = 0;

	getsockopt(connection->source.fd, SOL_SOCKET, SO_ERROR, &error, &size);
	/* a new socket has room for one frame */
	if (error || send(connection->source.fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
		mfs_requester_lost(connection);
		return;
	}
	connection->state = MFS_OPEN;
	mfs_connection_update(connection);
	mfs_requester_send(qp);
}

static bool comes_from_peer(const struct mfs_connection *connection, const struct mfs_qp *qp)
{
	struct sockaddr_in peer;
	socklen_t size = sizeof(peer);

	return !getpeername(connection->source.fd, (struct sockaddr *)&peer, &size) &&
	       !memcmp(&peer.sin_addr, &qp->attr.ah_attr.grh.dgid.raw[12], sizeof(peer.sin_addr));
}

/* Until the queue pair is ready; a NIC would drop and the peer retry. One that comes later is the same peer,
 * connected anew. */
static void wait_for_queue_pair(struct mfs_connection *connection, struct mfs_qp *qp)
{
	if (qp->waiting)
		mfs_connection_close(qp->waiting);
	mfs_stranger_remove(connection);
	connection->state = MFS_WAITING;
	connection->stalled = true;
	connection->qp = qp;
	qp->waiting = connection;
	mfs_connection_update(connection);
}

/* Gives a connection that has said hello to its queue pair, if that is ready to receive and expects this
 * peer. */
void mfs_connection_greet(struct mfs_connection *connection)
{
	const struct mfs_frame *hello = &connection->frame;
	struct mfs_qp *qp = mfs_qp_find(connection->context, le32toh(hello->key));

	if (hello->opcode != MFS_HELLO || le64toh(hello->address) != MFS_WIRE_MAGIC || !qp ||
	    mfs_qp_is_datagram(qp)) {
		mfs_connection_close(connection);
		return;
	}
	if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_INIT) {
		wait_for_queue_pair(connection, qp);
		return;
	}
	if (qp->state == IBV_QPS_ERR || qp->responder || qp->attr.dest_qp_num != le32toh(hello->value) ||
	    !comes_from_peer(connection, qp)) {
		mfs_connection_close(connection);
		return;
	}
	if (connection->state == MFS_WAITING)
		qp->waiting = NULL;
	else
		mfs_stranger_remove(connection);
	mfs_connection_set_class(connection, qp->attr.ah_attr.grh.traffic_class);
	connection->state = MFS_OPEN;
	connection->stalled = false;
	connection->frame_bytes = 0;
	connection->qp = qp;
	qp->responder = connection;
	connection->ack_wanted = true; /* says that the peer is accepted */
	mfs_connection_update(connection);
	mfs_receive(connection);
}

static void receive_hello(struct mfs_connection *connection)
{
	uint8_t *into = (uint8_t *)&connection->frame + connection->frame_bytes;
	ssize_t size =
		recv(connection->source.fd, into, sizeof(connection->frame) - connection->frame_bytes, 0);

	if (size <= 0) {
		if (size == 0 || (errno != EAGAIN && errno != EINTR))
			mfs_connection_close(connection);
		return;
	}
	connection->frame_bytes += (uint32_t)size;
	if (connection->frame_bytes == sizeof(connection->frame))
		mfs_connection_greet(connection);
}

/* The oldest stranger makes room, unless its hello lies there unread. A peer that is sent away so has lost
 * nothing: what it posted counts as unsent until a queue pair takes its connection, and it comes again. */
static void dismiss_oldest(struct mfs_context *context)
{
	struct mfs_connection *oldest = TAILQ_FIRST(&context->strangers);

	if (oldest->state == MFS_GREETING)
		receive_hello(oldest);
	if (oldest == TAILQ_FIRST(&context->strangers))
		mfs_connection_close(oldest);
}

void mfs_port_accept(struct mfs_context *context, struct mfs_port *port)
{
	struct mfs_connection *connection;
	int fd;

	while ((fd = accept4(port->source.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
		port->starved = false;
		connection =
			mfs_connection_new(context, mfs_descriptor_own(fd), EPOLLIN, mfs_responder_resume);
		if (connection)
			mfs_stranger_add(connection, MFS_GREETING);
		while (context->stranger_count > MFS_MAX_STRANGERS)
			dismiss_oldest(context);
	}
	if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
		mfs_port_rest(context, port, errno);
}

static void discard(struct mfs_connection *connection)
{
	ssize_t size = recv(connection->source.fd, connection->context->rx_buffer, MFS_RX_BUFFER_SIZE, 0);

	if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
		mfs_connection_close(connection);
}

static void send_more(struct mfs_connection *connection)
{
	if (connection->requester)
		mfs_requester_send(connection->qp);
	else
		mfs_responder_send(connection);
}

void mfs_connection_event(struct mfs_connection *connection, uint32_t events)
{
	switch (connection->state) {
	case MFS_CONNECTING:
		if (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))
			connected(connection);
		return;
	case MFS_GREETING:
		receive_hello(connection);
		return;
	case MFS_WAITING:
		if (events & (EPOLLERR | EPOLLHUP))
			mfs_connection_close(connection);
		return;
	case MFS_DRAINING:
		discard(connection);
		return;
	case MFS_OPEN:
		if (connection->stalled && (events & (EPOLLERR | EPOLLHUP)))
			mfs_connection_lost(connection);
		else if (!connection->stalled && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)))
			mfs_receive(connection);
		if (connection->state == MFS_OPEN && (events & EPOLLOUT))
			send_more(connection);
		return;
	case MFS_CLOSED:
		return;
	}
}
