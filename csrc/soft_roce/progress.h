/* Which thread moves the bytes. */
#ifndef MFS_SOFT_ROCE_PROGRESS_H
#define MFS_SOFT_ROCE_PROGRESS_H

#include "objects.h"

int mfs_progress_start(struct mfs_context *context);
void mfs_progress_stop(struct mfs_context *context);
void mfs_progress_help(struct mfs_context *context);

#endif
