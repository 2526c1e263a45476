/* Which network card UCX's bytes leave through, according to the environment. */
#ifndef MFS_NIXL_NIC_H
#define MFS_NIXL_NIC_H

#include <stdint.h>

#define NIXL_NIC_NAME_BYTES 32

/* Writes the name of the device or interface ("" if there is none) and the device's GUID (0: unknown). */
void nixl_nic_chosen(char name[NIXL_NIC_NAME_BYTES], uint64_t *guid);

#endif
