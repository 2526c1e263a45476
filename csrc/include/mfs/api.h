/* What an engine passes to MFS from inside its own process, through the preloaded shim. Nothing is linked: mfs_api() finds the
 * shim when it is there and answers NULL when it is not.
 *
 *	const struct mfs_api *api = mfs_api();
 *	struct mfs_context context = {.request_id = 42, .stage = MFS_STAGE_P2D, .batch = MFS_NONE_U32};
 *
 *	if (api)
 *		api->context_set(&context);
 *	ibv_post_send(...);
 *	if (api)
 *		api->context_set(NULL);
 *
 * All functions may be called from any thread, with or without a daemon, answer 0 or -errno, and never wait for another
 * program. Only range_add allocates. After fork() the child starts with no context, no ranges and no lane.
 */
#ifndef MFS_API_H
#define MFS_API_H

#include <dlfcn.h>
#include <mfs/client.h>

/* What bytes are for. Zero says "not known", except for `batch`. */
struct mfs_context {
	uint64_t request_id;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC of this host; 0: none */
	uint32_t batch;       /* slot that mfs_client_batch_begin gave; MFS_NONE_U32: none */
	uint16_t layer;       /* layer that needs the bytes (L_target) */
	uint8_t stage;        /* enum mfs_stage; 0: as the daemon's rules say */
	uint8_t reserved[1];
	uint64_t
		hold_until_ns; /* CLOCK_MONOTONIC: nothing is held past it, as after a lease; 0: the daemon's max_hold alone */
};
_Static_assert(sizeof(struct mfs_context) == 32, "context");
_Static_assert(offsetof(struct mfs_context, hold_until_ns) == 24, "in the place of reserved bytes");

#define MFS_RANGES_MAX 4096 /* address ranges of one process at once */

struct mfs_api {
	uint32_t
		version; /* 4; grows when a function is added at the end: check it before one that came later */
	uint32_t bytes; /* of this structure */

	/* Work requests that this thread posts from now on carry `context` (copied); NULL ends it. */
	int (*context_set)(const struct mfs_context *context);

	/* Work requests whose first local scatter element begins in [address, address + bytes) carry `context` (copied), no matter
	 * which thread posts them, unless that thread has a context of its own. The same range again replaces its context.
	 * -EEXIST: it overlaps another; -ENOSPC: MFS_RANGES_MAX are in use; -EAGAIN: a reader is stuck, try again; -EINVAL: empty, wraps
	 * around, or no context. Costs a copy of all ranges: meant for buffers and requests, not for single packets. */
	int (*range_add)(uint64_t address, uint64_t bytes, const struct mfs_context *context);
	int (*range_remove)(uint64_t address); /* the one that begins there; -ENOENT: none */

	/* Opens lanes: a queue pair that this thread creates from now on, or that any thread creates later on a device opened
	 * from now on, carries the DSCP of this class on the wire (0 highest; the daemon's table), is counted, and is never
	 * held, because its opener asks for permits itself. -1 ends it. -EINVAL: no such class. */
	int (*lane_set)(int wire_class);

	/* The shim's session with the daemon; NULL while there is none. Use it for as long as you like: when the daemon is gone
	 * its functions answer -ENOTCONN (ask again for the new one), its memory stays. Submit with MFS_COOKIE_NONE and ask
	 * for the permit by mfs_client_permit: what mfs_client_permits hands out is the shim's. Do not detach it.
	 * Only where mfs_api_lends_client(), which a shim of another version may not. */
	struct mfs_client *(*client)(void);

	/* Since version 2: what the network knows, from the outlook page (mfs/outlook.h). Each costs less than a microsecond, and
	 * answers -ENODATA where nothing is known: decide as without MFS then. */

	/* One direction of a NIC of this node, by the number that the session gave it. */
	int (*outlook_port)(unsigned nic, enum mfs_direction direction, struct mfs_port_outlook *port);
	/* How long a fetch of so many bytes from `peer` (a GID; NULL: not known) takes from now on. `deadline_ns` 0: nothing waits for
	 * it, and it goes behind all that does. Ask before the fetch is announced: what is owed at the owner's port contains that. */
	int (*fetch_ns)(unsigned nic, uint64_t bytes, const uint8_t peer[16], uint64_t deadline_ns,
			uint64_t *ns);
	/* 1: the request, of any process of this node, is pruned; 0: it is not. */
	int (*pruned)(uint64_t request_id);

	/* Since version 3: what this thread's context is, else that of the range with `address`; for code that asks for permits
	 * itself. -ENOENT: neither. Costs what it costs a work request. */
	int (*context_of)(uint64_t address, struct mfs_context *context);

	/* Since version 4: MFS_CLIENT_LAYOUT of what `client` gives. */
	uint32_t client_layout;
	uint32_t reserved;
};

/* Whether what api->client() gives is a client of this file's layout. If not, the shim was built from other sources: it goes on
 * scheduling what the process posts, and code that asks for permits itself should ask for none. */
static inline int mfs_api_lends_client(const struct mfs_api *api)
{
	return api->bytes >= sizeof(struct mfs_api) && api->client_layout == MFS_CLIENT_LAYOUT;
}

/* The preloaded shim's functions, or NULL. Costs a symbol lookup once in each file that uses it. */
static inline const struct mfs_api *mfs_api(void)
{
	static const struct mfs_api *found;
	static int searched;

	if (!__atomic_load_n(&searched, __ATOMIC_ACQUIRE)) {
		__atomic_store_n(&found,
				 (const struct mfs_api *)dlsym((void *)0 /* RTLD_DEFAULT */, "mfs_api_v1"),
				 __ATOMIC_RELAXED);
		__atomic_store_n(&searched, 1, __ATOMIC_RELEASE);
	}
	return __atomic_load_n(&found, __ATOMIC_RELAXED);
}

#endif
