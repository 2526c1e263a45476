/* Completion queues with functions of their own. */
#ifndef MFS_SHIM_CQ_EX_H
#define MFS_SHIM_CQ_EX_H

#include "records.h"

struct shim_cq_ex *shim_cq_ex_patch(struct ibv_cq_ex *ex);
void shim_cq_ex_unpatch(struct shim_cq_ex *p);

#endif
