/* Attaching to the daemon, and losing it. */
#ifndef MFS_SHIM_LIFECYCLE_H
#define MFS_SHIM_LIFECYCLE_H

#include "records.h"

void shim_start(struct shim_context *context);

#endif
