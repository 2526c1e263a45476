/* The session with the daemon, shared with an engine in this process. */
#ifndef MFS_SHIM_SESSION_H
#define MFS_SHIM_SESSION_H

#include "process.h"

#include <pthread.h>
#include <stdbool.h>

extern pthread_mutex_t shim_attach_lock; /* held while a daemon comes or goes */

struct mfs_client *shim_client_share(void);
bool shim_client_shared(void);
void shim_batch_now(uint32_t *batch, uint16_t *layer);

#endif
