/* Service levels of InfiniBand: packets that stay within a subnet carry no DSCP. */
#ifndef MFS_SHIM_SERVICE_LEVEL_H
#define MFS_SHIM_SERVICE_LEVEL_H

#include "symbols.h"

#include <stdbool.h>

/* Reads MFS_SERVICE_LEVELS. Called once, before any queue pair is connected. */
void shim_service_level_load(void);

/* True if a queue pair of this DSCP, connected through this port, gets another level than the program
 * gives. Writes it to *level. */
bool shim_service_level(struct ibv_context *context, const struct shim_verbs *verbs, uint8_t dscp,
			const struct ibv_ah_attr *given, uint8_t *level);

#endif
