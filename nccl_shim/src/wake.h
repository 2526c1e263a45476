/* The sleep of the shim's thread. */
#ifndef MFS_SHIM_WAKE_H
#define MFS_SHIM_WAKE_H

#include <stdint.h>

void shim_wake(void);
void shim_sleep(uint64_t timeout_ns);
void shim_wake_after_fork(void);

#endif
