/* Completion queues. */
#ifndef MFS_SOFT_ROCE_CQ_H
#define MFS_SOFT_ROCE_CQ_H

#include "objects.h"

struct ibv_cq *mfs_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel,
			     int vector);
int mfs_destroy_cq(struct ibv_cq *cq);
int mfs_resize_cq(struct ibv_cq *cq, int cqe);
int mfs_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void mfs_cq_event(struct ibv_cq *cq);
void mfs_cq_push(struct mfs_cq *cq, const struct ibv_wc *wc, bool solicited);
void mfs_cq_remove(struct mfs_cq *cq, uint32_t qp_num);

#endif
