/* Whether an engine's virtual functions are those that abi.h knows. */
#ifndef MFS_NIXL_SLOTS_H
#define MFS_NIXL_SLOTS_H

#include "abi.h"

/* Words of the engine's table, its head included; 0: it is not as it was, and *why (up to `room` bytes) says where. */
size_t nixl_slots_known(const struct nixl_object *engine, char *why, size_t room);

#endif
