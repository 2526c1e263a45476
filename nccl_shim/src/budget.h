/* For how long a queue pair may be held; which queue pairs hold anything. */
#ifndef MFS_SHIM_BUDGET_H
#define MFS_SHIM_BUDGET_H

#include "records.h"

void shim_budget_load(void);
uint64_t shim_gives_up_ns(bool of_mooncake, bool of_store);
uint64_t shim_hold_until_ns(const struct shim_qp *q, const struct shim_held *held);
uint64_t shim_budget_ns(const struct shim_qp *q, uint64_t max_hold_ns);
bool shim_budget_over(const struct shim_qp *q);
void shim_lease_note(struct shim_qp *q, uint64_t hold_until_ns);

/* The list of queue pairs that hold something: pushed by the posting threads, taken as a whole by the shim's own. */
void shim_list(struct shim_qp *q);
struct shim_qp *shim_list_take(void);

#endif
