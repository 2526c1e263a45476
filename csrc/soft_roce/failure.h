/* Flushing requests and receives. */
#ifndef MFS_SOFT_ROCE_FAILURE_H
#define MFS_SOFT_ROCE_FAILURE_H

#include "objects.h"

void mfs_qp_fail(struct mfs_qp *qp, enum ibv_wc_status status);
void mfs_qp_fail_send(struct mfs_qp *qp, enum ibv_wc_status status);
void mfs_qp_flush(struct mfs_qp *qp);
void mfs_qp_flush_sends(struct mfs_qp *qp);
void mfs_qp_check_drained(struct mfs_qp *qp);
void mfs_qp_raise(struct mfs_qp *qp, enum ibv_event_type type);

#endif
