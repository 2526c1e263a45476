/* The accounting of completions: what a returned signal finishes. */
#ifndef MFS_SHIM_COMPLETE_H
#define MFS_SHIM_COMPLETE_H

#include "records.h"

/* Accounts for `signals` more polled completions of signaled work requests; 0: only for deferred ones. */
void shim_complete(struct shim_qp *q, uint32_t signals);
void shim_settle(struct shim_qp *q);
void shim_in_flight(struct shim_qp *q, uint64_t bytes[MFS_STAGES_MAX]);
void shim_complete_all(struct shim_qp *q);

#endif
