/* The number by which the daemon knows an agent. */
#ifndef MFS_NIXL_NAME_H
#define MFS_NIXL_NAME_H

#include "nixl.h"

/* Hashes an agent's name, with the same result in every process, on every host and in mfsd.client. 0: the
 * name is empty. Takes less than a microsecond. */
uint32_t nixl_name_peer(const struct nixl_string *name);

#endif
