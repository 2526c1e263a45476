/* Protection domains and memory regions. */
#ifndef MFS_SOFT_ROCE_MR_H
#define MFS_SOFT_ROCE_MR_H

#include "objects.h"

struct ibv_pd *mfs_alloc_pd(struct ibv_context *context);
int mfs_dealloc_pd(struct ibv_pd *pd);
void mfs_pd_use(struct ibv_pd *pd, int change);
struct ibv_mr *mfs_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
int mfs_rereg_mr(struct verbs_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);
int mfs_dereg_mr(struct verbs_mr *mr);
void *mfs_mr_resolve(struct mfs_context *context, struct ibv_pd *pd, uint32_t key, uint64_t address,
		     uint64_t length, int access);
int mfs_mr_resolve_sges(struct mfs_context *context, struct ibv_pd *pd, const struct ibv_sge *sges,
			uint32_t count, uint64_t length, int access, struct iovec *out);

#endif
