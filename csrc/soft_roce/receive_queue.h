/* Queues of receives. */
#ifndef MFS_SOFT_ROCE_RECEIVE_QUEUE_H
#define MFS_SOFT_ROCE_RECEIVE_QUEUE_H

#include "objects.h"

int mfs_recv_queue_init(struct mfs_recv_queue *queue, uint32_t max_wr, uint32_t max_sge);
void mfs_recv_queue_free(struct mfs_recv_queue *queue);
int mfs_recv_queue_post(struct mfs_recv_queue *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
bool mfs_recv_queue_take(struct mfs_recv_queue *queue, struct mfs_recv_wqe *wqe, struct ibv_sge *sges);
/* Raises the limit event if it is due. Called after a receive was taken or another limit was set. */
void mfs_srq_check(struct mfs_context *context, struct mfs_srq *srq);

#endif
