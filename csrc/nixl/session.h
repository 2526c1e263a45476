/* The process's session with the daemon. */
#ifndef MFS_NIXL_SESSION_H
#define MFS_NIXL_SESSION_H

#include "nixl.h"

#include <mfs/api.h>

/* False if MFS_MODE turns scheduling off, or if another part of MFS asks for this program's transfers. */
bool nixl_session_wanted(void);

/* Called around the creation of an engine: the preloaded shim will not hold the queue pairs that it opens. */
void nixl_session_lane(bool on);

/* Searches for the daemon, for at most 200 ms, and starts the thread that goes on. Call it after an engine
 * was made: the shim attaches with its first device. */
void nixl_session_start(void);

/* The session while its daemon is alive and enforces; NULL: nothing is scheduled. Some loads. */
const struct nixl_session *nixl_session_now(uint64_t now_ns);

/* Copies what the program has announced for this memory or this thread (mfs/api.h). False: nothing. */
bool nixl_session_context(uint64_t address, struct mfs_context *context);

#endif
