/* Turns bytes into frames and payload. */
#ifndef MFS_SOFT_ROCE_RECEIVE_H
#define MFS_SOFT_ROCE_RECEIVE_H

#include "objects.h"

void mfs_receive(struct mfs_connection *connection);
void mfs_receive_resume(struct mfs_connection *connection);
void mfs_connection_lost(struct mfs_connection *connection);

#endif
