/* A preloaded shim built from other sources: of an earlier version, or with clients of another layout.
 * None of its functions may be called. */
#include <mfs/api.h>
#include <stdlib.h>

static struct mfs_client *client(void)
{
	abort();
}

static int lane_set(int wire_class)
{
	(void)wire_class;
	abort();
}

static int context_set(const struct mfs_context *context)
{
	(void)context;
	abort();
}

static int context_of(uint64_t address, struct mfs_context *context)
{
	(void)address;
	(void)context;
	abort();
}

extern const struct mfs_api mfs_api_v1;
const struct mfs_api mfs_api_v1 = {
#ifdef EARLIER
	.version = 3,
	.bytes = offsetof(struct mfs_api, client_layout),
	.client_layout = MFS_CLIENT_LAYOUT, /* beyond `bytes`, so it must not be read */
#else
	.version = 4,
	.bytes = sizeof(struct mfs_api),
	.client_layout = MFS_CLIENT_LAYOUT + 1,
#endif
	.client = client,
	.lane_set = lane_set,
	.context_set = context_set,
	.context_of = context_of,
};
