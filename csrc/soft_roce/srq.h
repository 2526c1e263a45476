/* Shared receive queues. */
#ifndef MFS_SOFT_ROCE_SRQ_H
#define MFS_SOFT_ROCE_SRQ_H

#include "objects.h"

struct ibv_srq *mfs_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
struct ibv_srq *mfs_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int mfs_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int attr_mask);
int mfs_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int mfs_destroy_srq(struct ibv_srq *srq);
int mfs_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);

#endif
