/* NIXL's own plugins. */
#ifndef MFS_NIXL_REAL_H
#define MFS_NIXL_REAL_H

/* Opens a file of NIXL's own folder of plugins; NULL and one line where it cannot be. `caller`: an address in NIXL's library. */
void *nixl_real_open(const char *file, const void *caller);

#endif
