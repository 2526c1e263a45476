/* The private functions of libibverbs. */
#ifndef MFS_SOFT_ROCE_LIBRARY_H
#define MFS_SOFT_ROCE_LIBRARY_H

#include "provider_abi.h"

#include <stdbool.h>

/* Looks them up. False: this libibverbs lacks some, which has been printed. */
bool mfs_library_load(void *library);

#endif
