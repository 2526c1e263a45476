/* ibv_poll_cq. */
#ifndef MFS_SOFT_ROCE_POLL_H
#define MFS_SOFT_ROCE_POLL_H

#include "objects.h"

int mfs_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);

#endif
