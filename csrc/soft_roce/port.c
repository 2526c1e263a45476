/* TCP ports of a context: the upper part of queue pair numbers. */
#include "port.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "../base/clock.h"
#include "descriptors.h"
#include "timer.h"

enum { LISTEN_BACKLOG = 1024, STARVED_NS = 10 * 1000 * 1000 };

int mfs_source_watch(struct mfs_context *context, struct mfs_source *source, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = source};

	return epoll_ctl(context->epoll_fd, EPOLL_CTL_ADD, source->fd, &event) ? -errno : 0;
}

/* Opens a further listening port. Ephemeral: its number becomes the upper part of queue pair numbers. */
int mfs_port_open(struct mfs_context *context, struct mfs_port **out)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = context->address};
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
	ret = mfs_source_watch(context, &port->source, EPOLLIN);
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

static void listen_for(struct mfs_context *context, struct mfs_port *port, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = &port->source};

	epoll_ctl(context->epoll_fd, EPOLL_CTL_MOD, port->source.fd, &event);
}

/* A connection cannot be taken for want of descriptors or memory. It waits in the backlog, and the port is left alone for
 * a while: it would be ready all the time. */
void mfs_port_rest(struct mfs_context *context, struct mfs_port *port, int error)
{
	if (!port->starved)
		fprintf(stderr, "mfs soft RoCE: peers wait, their connections cannot be taken: %s\n",
			strerror(error));
	port->starved = true;
	listen_for(context, port, 0);
	context->accept_due_ns = mfs_clock_ns() + STARVED_NS;
	mfs_timer_set(context, context->accept_due_ns);
}

void mfs_ports_resume(struct mfs_context *context)
{
	context->accept_due_ns = 0;
	for (uint32_t i = 0; i < context->port_count; i++)
		if (context->ports[i]->starved)
			listen_for(context, context->ports[i], EPOLLIN);
}

static struct mfs_port *port_of(struct mfs_context *context, uint32_t qp_num)
{
	uint32_t i;

	for (i = 0; i < context->port_count; i++)
		if (context->ports[i]->number == qp_num >> 8)
			return context->ports[i];
	return NULL;
}

struct mfs_qp *mfs_qp_find(struct mfs_context *context, uint32_t qp_num)
{
	struct mfs_port *port = port_of(context, qp_num);

	return port ? port->qps[qp_num & 0xff] : NULL;
}
