/* The process's session with the daemon. */
#ifndef MFS_NIXL_SESSION_H
#define MFS_NIXL_SESSION_H

#include "nixl.h"

#include <mfs/api.h>

/* False: MFS_MODE says that nothing is scheduled here, or another part of MFS asks for this program's transfers. */
bool nixl_session_wanted(void);

/* Around the making of an engine: queue pairs that it opens, now or later, are not held by the preloaded shim. */
void nixl_session_lane(bool on);

/* Finds the daemon, for 200 ms at most, and has it searched for from now on. After an engine was made: the shim finds its own
 * with the first device. */
void nixl_session_start(void);

/* The session, while its daemon lives and enforces; NULL: nothing is scheduled. Some loads. */
const struct nixl_session *nixl_session_now(uint64_t now_ns);

/* What the program has told the shim of this memory, or of what this thread does (mfs/api.h). False: nothing. */
bool nixl_session_context(uint64_t address, struct mfs_context *context);

#endif
