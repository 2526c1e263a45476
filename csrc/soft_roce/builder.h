/* The ibv_wr_* interface. */
#ifndef MFS_SOFT_ROCE_BUILDER_H
#define MFS_SOFT_ROCE_BUILDER_H

#include "objects.h"

void mfs_builder_setup(struct mfs_qp *qp, uint64_t operations);

#endif
