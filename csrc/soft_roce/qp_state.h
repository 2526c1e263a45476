/* ibv_modify_qp. */
#ifndef MFS_SOFT_ROCE_QP_STATE_H
#define MFS_SOFT_ROCE_QP_STATE_H

#include "objects.h"

int mfs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);

#endif
