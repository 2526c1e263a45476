/* Finds and opens NIXL's own plugins. */
#ifndef MFS_NIXL_REAL_H
#define MFS_NIXL_REAL_H

#include <stdbool.h>

/* Opens a file in NIXL's own folder of plugins. If that fails, logs one line that ends with `instead` and
 * returns NULL. `caller` is an address in NIXL's library. */
void *nixl_real_open(const char *file, const void *caller, const char *instead);

/* True if the file exists. If not, logs the same line. */
bool nixl_real_there(const char *file, const void *caller, const char *instead);

#endif
