/* Permits that have arrived. */
#ifndef MFS_SHIM_PERMITS_H
#define MFS_SHIM_PERMITS_H

#include <stdbool.h>

void shim_permits(void);
void shim_permits_poll(void);
bool shim_permits_settle(void);

#endif
