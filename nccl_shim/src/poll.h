/* ibv_poll_cq of an open device. */
#ifndef MFS_SHIM_POLL_H
#define MFS_SHIM_POLL_H

#include <infiniband/verbs.h>

int shim_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);

#endif
