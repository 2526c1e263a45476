/* Patching an open device. */
#ifndef MFS_SHIM_CONTEXT_H
#define MFS_SHIM_CONTEXT_H

#include "records.h"

struct shim_verbs;

void shim_context_patch(struct ibv_context *context, const struct shim_verbs *verbs);
void shim_context_remove(struct ibv_context *context);

#endif
