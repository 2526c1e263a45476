/* Completions that the shim makes itself. */
#ifndef MFS_SHIM_FLUSHED_H
#define MFS_SHIM_FLUSHED_H

#include <infiniband/verbs.h>

int shim_flushed(struct ibv_cq *cq, int n, struct ibv_wc *wc);

#endif
