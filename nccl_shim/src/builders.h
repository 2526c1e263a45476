/* The ibv_wr_* interface. */
#ifndef MFS_SHIM_BUILDERS_H
#define MFS_SHIM_BUILDERS_H

#include "records.h"

void shim_builder_patch(struct shim_qp *q, struct ibv_qp_ex *qpx, uint64_t ops);
void shim_builders_after_fork(void);
bool shim_builder_can_hold(uint64_t ops);

#endif
