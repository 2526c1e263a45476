/* The extended polling interface. */
#ifndef MFS_SOFT_ROCE_CQ_EX_H
#define MFS_SOFT_ROCE_CQ_EX_H

#include "objects.h"

struct ibv_cq_ex *mfs_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

#endif
