/* Opening and closing a device. */
#ifndef MFS_SOFT_ROCE_CONTEXT_H
#define MFS_SOFT_ROCE_CONTEXT_H

#include "objects.h"

void mfs_context_init(struct mfs_context *context);
int mfs_context_start(struct mfs_context *context);
void mfs_context_stop(struct mfs_context *context);
struct verbs_context *mfs_context_open(struct ibv_device *device, int cmd_fd, void *private_data);

#endif
