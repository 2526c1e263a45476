/* The functions that an engine finds by the name mfs_api_v1: mfs/api.h. */
#include "metadata.h"
#include "session.h"

#include <mfs/api.h>

__attribute__((visibility("default"))) extern const struct mfs_api mfs_api_v1;
const struct mfs_api mfs_api_v1 = {
	.version = 1,
	.bytes = sizeof(struct mfs_api),
	.context_set = shim_context_set,
	.range_add = shim_range_add,
	.range_remove = shim_range_remove,
	.lane_set = shim_lane_set,
	.client = shim_client_share,
};
