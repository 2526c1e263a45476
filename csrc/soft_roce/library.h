/* The private functions of libibverbs. */
#ifndef MFS_SOFT_ROCE_LIBRARY_H
#define MFS_SOFT_ROCE_LIBRARY_H

#include "provider_abi.h"

#include <stdbool.h>

/* Looks them up. Returns false if this libibverbs lacks some; that has been printed. */
bool mfs_library_load(void *library);

#endif
