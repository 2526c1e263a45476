/* Address handles of UD queue pairs. */
#ifndef MFS_SOFT_ROCE_AH_H
#define MFS_SOFT_ROCE_AH_H

#include "objects.h"

struct ibv_ah *mfs_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int mfs_destroy_ah(struct ibv_ah *ah);
void mfs_ah_address(struct mfs_destination *to, const struct ibv_ah *ah, uint32_t qp_num, uint32_t qkey);

#endif
