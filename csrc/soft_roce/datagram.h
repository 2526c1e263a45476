/* UD queue pairs. */
#ifndef MFS_SOFT_ROCE_DATAGRAM_H
#define MFS_SOFT_ROCE_DATAGRAM_H

#include "objects.h"

int mfs_datagrams_open(struct mfs_context *context, struct mfs_port *port);
void mfs_datagrams_event(struct mfs_context *context, struct mfs_port *port, uint32_t events);
void mfs_datagrams_send(struct mfs_qp *qp);
void mfs_datagrams_resume(struct mfs_pacer *pacer);

#endif
