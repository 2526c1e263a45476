/* From the ring of held work requests to the NIC. */
#ifndef MFS_SHIM_PUMP_H
#define MFS_SHIM_PUMP_H

#include "records.h"

void shim_pump(struct shim_qp *q);
int shim_pump_owned(struct shim_qp *q);
/* Clears the owner flag, then posts what others have left to its holder. */
void shim_owner_leave(struct shim_qp *q);

#endif
