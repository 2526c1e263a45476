/* The sending half of a queue pair. */
#ifndef MFS_SOFT_ROCE_REQUESTER_H
#define MFS_SOFT_ROCE_REQUESTER_H

#include "objects.h"

void mfs_requester_open(struct mfs_qp *qp);
void mfs_requester_resume(struct mfs_pacer *pacer);
void mfs_requester_send(struct mfs_qp *qp);
int mfs_requester_memory(struct mfs_qp *qp, uint32_t index, struct iovec *pieces);
enum mfs_verdict mfs_requester_frame(struct mfs_connection *connection);
enum mfs_verdict mfs_requester_payload_done(struct mfs_connection *connection);
enum mfs_verdict mfs_requester_revalidate(struct mfs_connection *connection);
void mfs_requester_lost(struct mfs_connection *connection);
void mfs_requester_done_by_peer(struct mfs_qp *qp, uint32_t done);
void mfs_requester_timer(struct mfs_qp *qp);

#endif
