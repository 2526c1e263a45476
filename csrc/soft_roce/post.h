/* ibv_post_send, ibv_post_recv. */
#ifndef MFS_SOFT_ROCE_POST_H
#define MFS_SOFT_ROCE_POST_H

#include "objects.h"

int mfs_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int mfs_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
bool mfs_post_allowed(const struct mfs_qp *qp);
void mfs_post_publish(struct mfs_send_queue *sq);
void mfs_post_start(struct mfs_qp *qp);

#endif
