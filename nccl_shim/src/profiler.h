/* What NCCL reports: to which communicator a queue pair or a send belongs. */
#ifndef MFS_SHIM_PROFILER_H
#define MFS_SHIM_PROFILER_H

#include "thread.h"

#include <mfs/abi.h>

void shim_collective_sent(uint64_t bytes, uint64_t requests);
int shim_communicator_connecting(void);
const char *shim_communicator_name(int communicator);
void shim_communicators_report(struct mfs_segment *segment);
void shim_profiler_after_fork(void);

#endif
