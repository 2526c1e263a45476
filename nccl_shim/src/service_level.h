/* Service levels of InfiniBand, which has no DSCP in what does not leave its subnet. */
#ifndef MFS_SHIM_SERVICE_LEVEL_H
#define MFS_SHIM_SERVICE_LEVEL_H

#include "symbols.h"

#include <stdbool.h>

/* Reads MFS_SERVICE_LEVELS, once, before any queue pair is connected. */
void shim_service_level_load(void);

/* Whether a queue pair of this DSCP, connected by this port, gets a level in place of the one that the program gives: it is written. */
bool shim_service_level(struct ibv_context *context, const struct shim_verbs *verbs, uint8_t dscp,
			const struct ibv_ah_attr *given, uint8_t *level);

#endif
