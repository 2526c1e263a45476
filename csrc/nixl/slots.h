/* Whether an engine's virtual functions are those that abi.h declares. */
#ifndef MFS_NIXL_SLOTS_H
#define MFS_NIXL_SLOTS_H

#include "abi.h"

/* Returns the size of the engine's table in words, head included. 0: it is different, and *why (up to
 * `room` bytes) says where. */
size_t nixl_slots_known(const struct nixl_object *engine, char *why, size_t room);

#endif
