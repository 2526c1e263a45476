/* What the environment asks for: MFS_MODE. */
#ifndef MFS_SHIM_MODE_H
#define MFS_SHIM_MODE_H

#include <mfs/abi.h>

enum mfs_mode shim_mode(void);

#endif
