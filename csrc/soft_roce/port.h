/* TCP ports, and the queue pair numbers on them. */
#ifndef MFS_SOFT_ROCE_PORT_H
#define MFS_SOFT_ROCE_PORT_H

#include "objects.h"

int mfs_port_open(struct mfs_context *context, struct mfs_port **port);
void mfs_port_rest(struct mfs_context *context, struct mfs_port *port, int error);
void mfs_ports_resume(struct mfs_context *context);
int mfs_source_watch(struct mfs_context *context, struct mfs_source *source, uint32_t events);
struct mfs_qp *mfs_qp_find(struct mfs_context *context, uint32_t qp_num);

#endif
