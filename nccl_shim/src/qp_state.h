/* What happens to a queue pair when its state or the daemon changes. */
#ifndef MFS_SHIM_QP_STATE_H
#define MFS_SHIM_QP_STATE_H

#include "records.h"

uint32_t shim_quantum_bytes(uint64_t rate_bytes_per_s);
int shim_qp_modify(struct shim_qp *q, struct ibv_qp_attr *attr, int mask);
void shim_qp_break(struct shim_qp *q);
void shim_qp_reset_counts(struct shim_qp *q);
bool shim_qp_bind(struct shim_qp *q, struct mfs_client *client);
void shim_qp_bind_current(struct shim_qp *q);
void shim_qp_unbind(struct shim_qp *q);

#endif
