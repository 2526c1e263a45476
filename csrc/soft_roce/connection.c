/* TCP connections of queue pairs: opened towards the peer, accepted from it, watched, closed. */
#define _GNU_SOURCE
#include <endian.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "soft_roce.h"

enum { LISTEN_BACKLOG = 1024, SYN_RETRIES = 3 };

static int watch(struct mfs_context *context, struct mfs_source *source, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = source };

	return epoll_ctl(context->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) ? -errno : 0;
}

/* Opens a further listening port. Ephemeral: its number becomes the upper part of queue pair numbers. */
int mfs_port_open(struct mfs_context *context, struct mfs_port **out)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = context->address };
	socklen_t size = sizeof(address);
	struct mfs_port *port;
	int ret;

	if (context->port_count == MFS_MAX_PORTS)
		return -ENOMEM;
	port = calloc(1, sizeof(*port));
	if (!port)
		return -ENOMEM;
	port->source.kind = MFS_SOURCE_PORT;
	port->datagrams.kind = MFS_SOURCE_DATAGRAMS;
	port->datagrams.fd = -1;
	port->source.fd = mfs_descriptor_own(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	if (port->source.fd < 0 || bind(port->source.fd, (struct sockaddr *)&address, sizeof(address)) ||
	    listen(port->source.fd, LISTEN_BACKLOG) ||
	    getsockname(port->source.fd, (struct sockaddr *)&address, &size)) {
		ret = -errno;
		goto fail;
	}
	ret = watch(context, &port->source, EPOLLIN);
	if (ret)
		goto fail;
	port->number = ntohs(address.sin_port);
	context->ports[context->port_count++] = port;
	*out = port;
	return 0;
fail:
	if (port->source.fd >= 0)
		mfs_descriptor_close(port->source.fd);
	free(port);
	return ret;
}

static void resume_paced(struct mfs_pacer *pacer)
{
	mfs_connection_send(mfs_container_of(pacer, struct mfs_connection, pacer));
}

static struct mfs_connection *connection_new(struct mfs_context *context, int fd, uint32_t events)
{
	struct mfs_connection *connection = calloc(1, sizeof(*connection));
	int on = 1;

	if (!connection) {
		mfs_descriptor_close(fd);
		return NULL;
	}
	connection->source.kind = MFS_SOURCE_CONNECTION;
	connection->source.fd = fd;
	connection->context = context;
	connection->events = events;
	connection->pacer.resume = resume_paced;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (watch(context, &connection->source, events)) {
		mfs_descriptor_close(fd);
		free(connection);
		return NULL;
	}
	return connection;
}

/* TCP keeps the two ECN bits to itself; the six bits of the class are ours. */
void mfs_connection_set_class(struct mfs_connection *connection, uint8_t traffic_class)
{
	int tos = traffic_class;

	setsockopt(connection->source.fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
}

/* Starts the connection to the queue pair's peer. A failure leaves it lost, like that of a peer which is not
 * there. */
void mfs_connection_open(struct mfs_qp *qp)
{
	struct mfs_context *context = mfs_context_of(qp->verbs.qp.context);
	const struct ibv_global_route *route = &qp->attr.ah_attr.grh;
	struct sockaddr_in from = { .sin_family = AF_INET, .sin_addr = context->address };
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)(qp->attr.dest_qp_num >> 8)) };
	struct mfs_connection *connection;
	int fd, on = 1, tries = SYN_RETRIES, tos = route->traffic_class;

	qp->requester_lost = true;
	memcpy(&to.sin_addr, &route->dgid.raw[12], sizeof(to.sin_addr));
	fd = mfs_descriptor_own(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	if (fd < 0)
		return;
	setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos)); /* the first packet has the class, too */
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &tries, sizeof(tries));
	if (bind(fd, (struct sockaddr *)&from, sizeof(from)) ||
	    (connect(fd, (struct sockaddr *)&to, sizeof(to)) && errno != EINPROGRESS)) {
		mfs_descriptor_close(fd);
		return;
	}
	connection = connection_new(context, fd, EPOLLIN | EPOLLOUT);
	if (!connection)
		return;
	connection->requester = true;
	connection->state = MFS_CONNECTING;
	connection->qp = qp;
	connection->first = qp->sq.head;
	qp->requester = connection;
	qp->requester_lost = false;
}

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

static void stranger_add(struct mfs_connection *connection, enum mfs_connection_state state)
{
	connection->state = state;
	TAILQ_INSERT_TAIL(&connection->context->strangers, connection, link);
	connection->context->stranger_count++;
}

static void stranger_remove(struct mfs_connection *connection)
{
	TAILQ_REMOVE(&connection->context->strangers, connection, link);
	connection->context->stranger_count--;
}

/* Registers with epoll what the connection waits for. */
void mfs_connection_update(struct mfs_connection *connection)
{
	struct epoll_event event = { .data.ptr = &connection->source };

	if (connection->state == MFS_CLOSED)
		return;
	if (!connection->stalled)
		event.events |= EPOLLIN;
	if (connection->want_write || connection->state == MFS_CONNECTING)
		event.events |= EPOLLOUT;
	if (event.events == connection->events)
		return;
	connection->events = event.events;
	epoll_ctl(connection->context->epoll_fd, EPOLL_CTL_MOD, connection->source.fd, &event);
}

/* The connection is freed later: events that were fetched before may still name it. */
void mfs_connection_close(struct mfs_connection *connection)
{
	struct mfs_context *context = connection->context;

	if (connection->state == MFS_CLOSED)
		return;
	if (connection->state == MFS_GREETING || connection->state == MFS_DRAINING)
		stranger_remove(connection);
	if (connection->state == MFS_WAITING)
		connection->qp->waiting = NULL;
	mfs_pacer_stop(context, &connection->pacer);
	mfs_descriptor_close(connection->source.fd);
	connection->source.fd = -1;
	connection->state = MFS_CLOSED;
	connection->qp = NULL;
	TAILQ_INSERT_TAIL(&context->closed, connection, link);
}

/* Leaves a connection whose last frame says why it ends, until the peer has read that and closes: closing a
 * socket with unread data would reset the connection and could overtake the frame. */
void mfs_connection_drain(struct mfs_connection *connection)
{
	mfs_pacer_stop(connection->context, &connection->pacer);
	shutdown(connection->source.fd, SHUT_WR);
	connection->qp->responder = NULL;
	connection->qp = NULL;
	connection->stalled = connection->want_write = false;
	stranger_add(connection, MFS_DRAINING);
	mfs_connection_update(connection);
}

/* The peer is gone. What that means for requests is the requester's matter; a queue pair that only answers
 * goes on. */
void mfs_connection_lost(struct mfs_connection *connection)
{
	if (connection->requester) {
		mfs_requester_lost(connection);
		return;
	}
	connection->qp->responder = NULL;
	mfs_connection_close(connection);
}

void mfs_connection_send(struct mfs_connection *connection)
{
	if (connection->requester)
		mfs_requester_send(connection->qp);
	else
		mfs_responder_send(connection);
}

void mfs_connection_close_qp(struct mfs_qp *qp)
{
	struct mfs_context *context = mfs_context_of(qp->verbs.qp.context);

	if (qp->requester)
		mfs_connection_close(qp->requester);
	if (qp->responder)
		mfs_connection_close(qp->responder);
	qp->requester = qp->responder = NULL;
	qp->requester_lost = false;
	if (qp->deferred)
		TAILQ_REMOVE(&context->deferred, qp, deferred_link);
	qp->deferred = false;
	qp->reopen_until_ns = 0;
	mfs_progress_stop_timer(qp);
}

void mfs_connection_free_closed(struct mfs_context *context)
{
	struct mfs_connection *connection;

	while ((connection = TAILQ_FIRST(&context->closed))) {
		TAILQ_REMOVE(&context->closed, connection, link);
		free(connection->stash);
		free(connection);
	}
}

static bool comes_from_peer(const struct mfs_connection *connection, const struct mfs_qp *qp)
{
	struct sockaddr_in peer;
	socklen_t size = sizeof(peer);

	return !getpeername(connection->source.fd, (struct sockaddr *)&peer, &size) &&
	       !memcmp(&peer.sin_addr, &qp->attr.ah_attr.grh.dgid.raw[12], sizeof(peer.sin_addr));
}

/* Until the queue pair is ready; a NIC would drop and the peer retry. Who comes later is the peer that has
 * connected anew. */
static void wait_for_queue_pair(struct mfs_connection *connection, struct mfs_qp *qp)
{
	if (qp->waiting)
		mfs_connection_close(qp->waiting);
	stranger_remove(connection);
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
	if (qp->verbs.qp.state == IBV_QPS_RESET || qp->verbs.qp.state == IBV_QPS_INIT) {
		wait_for_queue_pair(connection, qp);
		return;
	}
	if (qp->verbs.qp.state == IBV_QPS_ERR || qp->responder ||
	    qp->attr.dest_qp_num != le32toh(hello->value) || !comes_from_peer(connection, qp)) {
		mfs_connection_close(connection);
		return;
	}
	if (connection->state == MFS_WAITING)
		qp->waiting = NULL;
	else
		stranger_remove(connection);
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
		connection = connection_new(context, mfs_descriptor_own(fd), EPOLLIN);
		if (connection)
			stranger_add(connection, MFS_GREETING);
		while (context->stranger_count > MFS_MAX_STRANGERS)
			dismiss_oldest(context);
	}
}

void mfs_connection_close_strangers(struct mfs_context *context)
{
	struct mfs_connection *connection;

	while ((connection = TAILQ_FIRST(&context->strangers)))
		mfs_connection_close(connection);
	mfs_connection_free_closed(context);
}

static void discard(struct mfs_connection *connection)
{
	ssize_t size = recv(connection->source.fd, connection->context->rx_buffer, MFS_RX_BUFFER_SIZE, 0);

	if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR))
		mfs_connection_close(connection);
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
			mfs_connection_send(connection);
		return;
	case MFS_CLOSED:
		return;
	}
}

/* How many of the wanted bytes may be sent now under the device's rate limit. */
uint32_t mfs_connection_pace(struct mfs_connection *connection, uint32_t wanted_bytes)
{
	uint32_t turn = mfs_rate_turn_bytes(&connection->context->rate);

	if (!turn)
		return wanted_bytes;
	return mfs_min(mfs_pacer_credit(connection->context, &connection->pacer, mfs_min(turn, wanted_bytes)),
		       wanted_bytes);
}
