/* The number by which the daemon knows where an agent is. */
#ifndef MFS_NIXL_NAME_H
#define MFS_NIXL_NAME_H

#include "nixl.h"

/* As mfs_peer_hash: the same in every process and on every host, and as mfsd.client has it of the same name; 0: of an empty
 * one. Less than a microsecond. */
uint32_t nixl_name_peer(const struct nixl_string *name);

#endif
