/* NIXL's own plugins. */
#ifndef MFS_NIXL_REAL_H
#define MFS_NIXL_REAL_H

#include <stdbool.h>

/* Opens a file of NIXL's own folder of plugins; NULL and one line where it cannot be, which ends with `instead`. `caller`: an
 * address in NIXL's library. */
void *nixl_real_open(const char *file, const void *caller, const char *instead);

/* Whether it is there; if not, the same line. */
bool nixl_real_there(const char *file, const void *caller, const char *instead);

#endif
