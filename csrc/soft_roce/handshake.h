/* Accepting connections, and events on connections. */
#ifndef MFS_SOFT_ROCE_HANDSHAKE_H
#define MFS_SOFT_ROCE_HANDSHAKE_H

#include "objects.h"

void mfs_port_accept(struct mfs_context *context, struct mfs_port *port);
void mfs_connection_greet(struct mfs_connection *connection);
void mfs_connection_event(struct mfs_connection *connection, uint32_t events);

#endif
