/* Queue pairs. */
#ifndef MFS_SOFT_ROCE_QP_H
#define MFS_SOFT_ROCE_QP_H

#include "objects.h"

struct ibv_qp *mfs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *mfs_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
int mfs_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init);
int mfs_destroy_qp(struct ibv_qp *qp);

#endif
