/* The functions that an engine finds by the name mfs_api_v1: mfs/api.h. */
#include "metadata.h"
#include "session.h"

#include <mfs/api.h>

#include "../../csrc/base/clock.h"

#include <errno.h>
#include <string.h>

static int api_outlook_port(unsigned nic, enum mfs_direction direction, struct mfs_port_outlook *port)
{
	const struct mfs_client *client = shim_client_share();

	return client ? mfs_client_outlook_port(client, nic, direction, mfs_clock_ns(), port) : -ENODATA;
}

static int api_fetch_ns(unsigned nic, uint64_t bytes, const uint8_t peer[16], uint64_t deadline_ns,
			uint64_t *ns)
{
	const struct mfs_client *client = shim_client_share();
	const struct mfs_fetch fetch = {.bytes = bytes, .far_bytes = bytes};

	return client ? mfs_client_fetch_ns(client, nic, &fetch, peer, deadline_ns, ns) : -ENODATA;
}

static int api_pruned(uint64_t request_id)
{
	const struct mfs_client *client = shim_client_share();

	return client ? mfs_client_pruned(client, request_id, mfs_clock_ns()) : -ENODATA;
}

static int api_context_of(uint64_t address, struct mfs_context *context)
{
	struct shim_tag tag;

	if (!shim_tags_exist())
		return -ENOENT;
	tag = shim_tag_find(true, address);
	if (!memcmp(&tag, &shim_untagged, sizeof(tag)))
		return -ENOENT;
	*context = (struct mfs_context){
		.request_id = tag.request_id,
		.deadline_ns = tag.deadline_ns,
		.batch = tag.batch,
		.layer = tag.layer,
		.stage = tag.stage,
		.hold_until_ns = tag.hold_until_ns,
	};
	return 0;
}

__attribute__((visibility("default"))) extern const struct mfs_api mfs_api_v1;
const struct mfs_api mfs_api_v1 = {
	.version = 4,
	.bytes = sizeof(struct mfs_api),
	.context_set = shim_context_set,
	.range_add = shim_range_add,
	.range_remove = shim_range_remove,
	.lane_set = shim_lane_set,
	.client = shim_client_share,
	.outlook_port = api_outlook_port,
	.fetch_ns = api_fetch_ns,
	.pruned = api_pruned,
	.context_of = api_context_of,
	.client_layout = MFS_CLIENT_LAYOUT,
};
