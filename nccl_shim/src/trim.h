/* Gives back memory in which nothing has been held for a while. */
#ifndef MFS_SHIM_TRIM_H
#define MFS_SHIM_TRIM_H

#include "records.h"

bool shim_trim(struct shim_qp *q);

#endif
