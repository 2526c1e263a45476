/* ibv_post_send and ibv_bind_mw of an open device. */
#ifndef MFS_SHIM_POST_H
#define MFS_SHIM_POST_H

#include <infiniband/verbs.h>

int shim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int shim_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

#endif
