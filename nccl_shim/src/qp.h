/* A queue pair's creation and destruction. */
#ifndef MFS_SHIM_QP_H
#define MFS_SHIM_QP_H

#include "records.h"

void shim_qp_add(struct ibv_qp *qp, const struct ibv_qp_init_attr *attr, const struct ibv_qp_cap *asked,
		 uint64_t ops, const void *caller);
int shim_qp_destroy(struct shim_qp *q);
void shim_qp_forget_context(const struct shim_context *context);

#endif
