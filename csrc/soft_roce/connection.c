/* TCP connections of queue pairs: opening them to the peer, watching and closing them. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"

#include "descriptors.h"
#include "pacer.h"
#include "port.h"
#include "rate.h"
#include "timer.h"

enum { SYN_RETRIES = 3 };

struct mfs_connection *mfs_connection_new(struct mfs_context *context, int fd, uint32_t events,
					  mfs_resume *resume)
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
	connection->pacer.resume = resume;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (mfs_source_watch(context, &connection->source, events)) {
		mfs_descriptor_close(fd);
		free(connection);
		return NULL;
	}
	return connection;
}

/* Sets the DSCP, six bits of the traffic class. TCP keeps the other two, those of ECN, to itself. */
void mfs_connection_set_class(struct mfs_connection *connection, uint8_t traffic_class)
{
	int tos = traffic_class;

	setsockopt(connection->source.fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
}

/* Starts a connection to the queue pair's peer. If that fails, `requester_lost` stays set, as for a peer
 * that cannot be reached. */
void mfs_connection_open(struct mfs_qp *qp, mfs_resume *resume)
{
	struct mfs_context *context = mfs_context_of(qp->verbs.qp.context);
	const struct ibv_global_route *route = &qp->attr.ah_attr.grh;
	struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr = context->address};
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)(qp->attr.dest_qp_num >> 8))};
	struct mfs_connection *connection;
	int fd, on = 1, tries = SYN_RETRIES, tos = route->traffic_class;

	qp->requester_lost = true;
	memcpy(&to.sin_addr, &route->dgid.raw[12], sizeof(to.sin_addr));
	fd = mfs_descriptor_own(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	if (fd < 0)
		return;
	/* before connect(), so that the first packet has the class, too */
	setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof(tos));
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_SYNCNT, &tries, sizeof(tries));
	if (bind(fd, (struct sockaddr *)&from, sizeof(from)) ||
	    (connect(fd, (struct sockaddr *)&to, sizeof(to)) && errno != EINPROGRESS)) {
		mfs_descriptor_close(fd);
		return;
	}
	connection = mfs_connection_new(context, fd, EPOLLIN | EPOLLOUT, resume);
	if (!connection)
		return;
	connection->requester = true;
	connection->state = MFS_CONNECTING;
	connection->qp = qp;
	connection->first = qp->sq.head;
	qp->requester = connection;
	qp->requester_lost = false;
}

void mfs_stranger_add(struct mfs_connection *connection, enum mfs_connection_state state)
{
	connection->state = state;
	TAILQ_INSERT_TAIL(&connection->context->strangers, connection, link);
	connection->context->stranger_count++;
}

void mfs_stranger_remove(struct mfs_connection *connection)
{
	TAILQ_REMOVE(&connection->context->strangers, connection, link);
	connection->context->stranger_count--;
}

/* Registers with epoll what the connection waits for. */
void mfs_connection_update(struct mfs_connection *connection)
{
	struct epoll_event event = {.data.ptr = &connection->source};

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

/* Closes the connection. It is freed only at the end of the turn: events that were fetched before may
 * still point to it. */
void mfs_connection_close(struct mfs_connection *connection)
{
	struct mfs_context *context = connection->context;

	if (connection->state == MFS_CLOSED)
		return;
	if (connection->state == MFS_GREETING || connection->state == MFS_DRAINING)
		mfs_stranger_remove(connection);
	if (connection->state == MFS_WAITING)
		connection->qp->waiting = NULL;
	mfs_pacer_stop(context, &connection->pacer);
	mfs_descriptor_close(connection->source.fd);
	connection->source.fd = -1;
	connection->state = MFS_CLOSED;
	connection->qp = NULL;
	TAILQ_INSERT_TAIL(&context->closed, connection, link);
}

/* Shuts down the sending side of a connection whose last frame says why it ends. The connection stays
 * until the peer has read that frame and closes: closing a socket with unread data would reset the
 * connection, and the reset could overtake the frame. */
void mfs_connection_drain(struct mfs_connection *connection)
{
	mfs_pacer_stop(connection->context, &connection->pacer);
	shutdown(connection->source.fd, SHUT_WR);
	connection->qp->responder = NULL;
	connection->qp = NULL;
	connection->stalled = connection->want_write = false;
	mfs_stranger_add(connection, MFS_DRAINING);
	mfs_connection_update(connection);
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
	mfs_timer_stop(qp);
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

void mfs_connection_close_strangers(struct mfs_context *context)
{
	struct mfs_connection *connection;

	while ((connection = TAILQ_FIRST(&context->strangers)))
		mfs_connection_close(connection);
	mfs_connection_free_closed(context);
}

/* Counts bytes for the device's counters. Received bytes, too, get the class of this end: TCP does not
 * tell the class of their packets, and both ends of a queue pair usually have the same. */
void mfs_connection_count(struct mfs_connection *connection, enum mfs_counter direction, uint64_t bytes)
{
	mfs_counters_add(&connection->context->counters, direction,
			 connection->qp ? connection->qp->attr.ah_attr.grh.traffic_class : 0, bytes);
}

/* Returns how many of the wanted bytes may be sent now under the device's rate limit. 0: the connection is
 * resumed when its turn begins. */
uint32_t mfs_connection_pace(struct mfs_connection *connection, uint32_t wanted_bytes)
{
	uint32_t turn = mfs_rate_turn_bytes(&connection->context->rate);

	if (!turn)
		return wanted_bytes;
	return mfs_min(mfs_pacer_credit(connection->context, &connection->pacer, mfs_min(turn, wanted_bytes)),
		       wanted_bytes);
}
