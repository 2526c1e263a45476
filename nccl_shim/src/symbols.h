/* libc's own dlsym and dlvsym, found without calling either. */
#ifndef MFS_SHIM_SYMBOLS_H
#define MFS_SHIM_SYMBOLS_H

#include "shim.h"

extern void *(*mfs_real_dlsym)(void *, const char *);
extern void *(*mfs_real_dlvsym)(void *, const char *, const char *);

void mfs_symbols_load(void);
void mfs_symbols_after_fork(void);

#endif
