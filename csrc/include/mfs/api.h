/* What an engine passes to MFS from inside its own process, through the preloaded shim. Nothing is linked:
 * mfs_api() looks up the shim's functions and returns NULL when the shim is not loaded.
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
 * All functions may be called from any thread, with or without a daemon. They return 0 or -errno unless
 * their comment says otherwise, and never wait for another program. Only range_add allocates memory. After
 * fork() the child starts with no context, no ranges and no lane. */
#ifndef MFS_API_H
#define MFS_API_H

#include <dlfcn.h>
#include <mfs/client.h>

/* What bytes are for. Zero means "not known" in every field except `batch`. */
struct mfs_context {
	uint64_t request_id;
	uint64_t deadline_ns; /* CLOCK_MONOTONIC of this host; 0: none */
	uint32_t batch;       /* slot returned by mfs_client_batch_begin; MFS_NONE_U32: none */
	uint16_t layer;       /* layer that needs the bytes (L_target) */
	uint8_t stage;        /* enum mfs_stage; 0: decided by the daemon's rules */
	uint8_t reserved[1];
	/* CLOCK_MONOTONIC: nothing is held beyond this time. 0: only the daemon's max_hold applies */
	uint64_t hold_until_ns;
};
_Static_assert(sizeof(struct mfs_context) == 32, "context");
_Static_assert(offsetof(struct mfs_context, hold_until_ns) == 24, "in the place of reserved bytes");

#define MFS_RANGES_MAX 4096 /* address ranges that one process may have at once */

struct mfs_api {
	/* 4. Grows whenever a function is added at the end; check it before you use a later function */
	uint32_t version;
	uint32_t bytes; /* size of this structure */

	/* Work requests that this thread posts from now on carry `context`, which is copied. NULL ends it. */
	int (*context_set)(const struct mfs_context *context);

	/* Work requests whose first local scatter element begins in [address, address + bytes) carry
	 * `context`, which is copied. It does not matter which thread posts them, but a context set by
	 * that thread goes first. Adding the same range again replaces its context. Every call copies the
	 * whole table: use it for buffers and requests, not for single packets.
	 * -EEXIST: overlaps another range; -ENOSPC: MFS_RANGES_MAX are in use; -EAGAIN: a reader is stuck,
	 * try again; -EINVAL: empty range, wraps around, or no context. */
	int (*range_add)(uint64_t address, uint64_t bytes, const struct mfs_context *context);
	int (*range_remove)(uint64_t address); /* removes the range that begins there; -ENOENT: none does */

	/* Opens lanes. A queue pair that this thread creates from now on carries the DSCP of this class on
	 * the wire (0 highest; the daemon's table). So does one that any thread creates later on a device
	 * that this thread opens from now on. Its traffic is counted but never held, because the code that
	 * opens a lane asks for permits itself. -1 ends it. -EINVAL: no such class. */
	int (*lane_set)(int wire_class);

	/* The shim's session with the daemon; NULL while there is none. It may be used for as long as you
	 * like: when the daemon is gone its functions return -ENOTCONN (call this again for the new session),
	 * and its memory stays valid. Submit with MFS_COOKIE_NONE and wait with mfs_client_permit: the
	 * permits that mfs_client_permits returns belong to the shim. Do not detach it. Call this only if
	 * mfs_api_lends_client() is true, which it may not be for a shim of another version. */
	struct mfs_client *(*client)(void);

	/* Since version 2: what the network knows, from the outlook page (mfs/outlook.h). Each call costs
	 * less than a microsecond. -ENODATA: nothing is known, so decide as you would without MFS. */

	/* One direction of a NIC of this node. `nic` is the index that the session gave it. */
	int (*outlook_port)(unsigned nic, enum mfs_direction direction, struct mfs_port_outlook *port);
	/* Estimates how long a fetch of `bytes` from `peer` (a GID; NULL: not known) takes if it starts
	 * now. `deadline_ns` 0: nothing waits for the fetch, and it goes behind everything else. Ask
	 * before you announce the fetch: once announced, it is part of what the owner's port owes. */
	int (*fetch_ns)(unsigned nic, uint64_t bytes, const uint8_t peer[16], uint64_t deadline_ns,
			uint64_t *ns);
	/* 1: the request, of any process of this node, is pruned; 0: it is not. */
	int (*pruned)(uint64_t request_id);

	/* Since version 3: copies this thread's context or, if it has none, that of the range that
	 * contains `address`. For code that asks for permits itself. -ENOENT: neither exists. Costs as
	 * much as the lookup for one work request. */
	int (*context_of)(uint64_t address, struct mfs_context *context);

	/* Since version 4: MFS_CLIENT_LAYOUT of the client that `client` returns. */
	uint32_t client_layout;
	uint32_t reserved;
};

/* Whether the client that api->client() returns has the layout that this file describes. If not, the shim
 * was built from other sources. It still schedules what the process posts, but code that asks for permits
 * itself must not use its client. */
static inline int mfs_api_lends_client(const struct mfs_api *api)
{
	return api->bytes >= sizeof(struct mfs_api) && api->client_layout == MFS_CLIENT_LAYOUT;
}

/* Returns the preloaded shim's functions, or NULL. Costs one symbol lookup in each source file that uses it. */
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
