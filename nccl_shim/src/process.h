/* The state of the process: whether a daemon is there, and how much is held. */
#ifndef MFS_SHIM_PROCESS_H
#define MFS_SHIM_PROCESS_H

#include <mfs/api.h>
#include <mfs/usage.h>
#include <stdatomic.h>

/* Stands in for a daemon's segment when there is none, so the posting path needs no branch. */
struct shim_detached {
	_Atomic uint32_t gate;
	struct mfs_usage usage;
	struct mfs_usage_shard posted_shard[MFS_USAGE_SHARDS];
	struct mfs_client_report report;
};
extern struct shim_detached shim_detached;

struct shim {
	_Atomic(struct mfs_client *) client; /* NULL: no daemon */
	_Atomic uint32_t enforcing;          /* attached, the daemon is alive, and both sides allow holding */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t held_requests; /* if it is not 0, poll_cq takes permits */
	_Atomic uint64_t held_bytes;
	_Atomic uint32_t failures; /* queue pairs whose held requests become flushed completions */
	_Atomic uint32_t draining; /* flag: permits are being taken */
	_Atomic uint32_t polls;    /* grows when pollers take permits */
	/* queue pairs that hold something, or did at the last sweep of the shim's thread */
	_Atomic uint32_t listed;
};
extern struct shim shim;

#endif
