/* The part of holding that the shim's thread does: nothing is held for too long. */
#ifndef MFS_SHIM_SWEEP_H
#define MFS_SHIM_SWEEP_H

#include <stdint.h>

void shim_sweep(uint64_t now_ns, uint64_t max_hold_ns);
void shim_sweep_after_fork(void);

#endif
