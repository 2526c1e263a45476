/* Wraps an engine of the real plugin. */
#ifndef MFS_NIXL_ENGINE_H
#define MFS_NIXL_ENGINE_H

#include "nixl.h"

/* Replaces what a transfer passes through. False, and one line is logged: the engine stays unscheduled. */
bool nixl_engine_wrap(struct nixl_object *engine, const struct nixl_engine_params *params);

#endif
