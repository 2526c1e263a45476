/* NCCL's profiler interface, versions 4 to 7, reduced to what is used here. It names only fields that have
 * the same place in every release that asks for the version. Taken from the published headers, and checked
 * in the machine code of 2.27.7 to 2.32.3. */
#ifndef MFS_SHIM_NCCL_ABI_H
#define MFS_SHIM_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

/* event types; the field is a byte up to version 4, eight bytes after it */
#define NCCL_EVENT_GROUP 0x1u
#define NCCL_EVENT_COLL 0x2u
#define NCCL_EVENT_P2P 0x4u
#define NCCL_EVENT_PROXY_OP 0x8u
#define NCCL_EVENT_PROXY_STEP 0x10u
#define NCCL_EVENT_GROUP_API 0x100u
#define NCCL_EVENT_COLL_API 0x200u
#define NCCL_EVENT_P2P_API 0x400u

/* states of a proxy step that sends */
#define NCCL_STATE_SEND_WAIT 9       /* the network has accepted it */
#define NCCL_STATE_SEND_PEER_WAIT 20 /* the next call on this thread hands it to the network */

struct nccl_event {
	uint64_t type; /* version 4: only the lowest byte is valid */
	void *parent;
	int32_t rank;
	union {
		struct {
			uint64_t sequence;
			const char *function;
			const void *send;
			void *receive;
			size_t count;
			int32_t root;
			const char *datatype;
		} coll;
		struct {
			const char *function;
			void *buffer;
			const char *datatype;
			size_t count;
			int32_t peer;
		} p2p;
		struct {
			/* of the process that called NCCL; `parent` is valid in that process only */
			int32_t pid;
			uint8_t channel;
			int32_t peer, steps, chunk_bytes, is_send;
		} proxy_op;
	};
};
_Static_assert(offsetof(struct nccl_event, parent) == 8 && offsetof(struct nccl_event, rank) == 16, "event");
_Static_assert(offsetof(struct nccl_event, coll.function) == 32 &&
		       offsetof(struct nccl_event, coll.datatype) == 72,
	       "coll");
_Static_assert(offsetof(struct nccl_event, p2p.datatype) == 40 && offsetof(struct nccl_event, p2p.peer) == 56,
	       "p2p");
_Static_assert(offsetof(struct nccl_event, proxy_op.peer) == 32 &&
		       offsetof(struct nccl_event, proxy_op.is_send) == 44,
	       "op");

typedef void nccl_log(int level, unsigned long flags, const char *file, int line, const char *format, ...);

/* What NCCL looks up under the name ncclProfiler_v4 and so on. */
struct nccl_profiler_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
		    nccl_log *log);
	int (*start)(void *context, void **handle, const struct nccl_event *event);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, const void *arguments);
	int (*finalize)(void *context);
	void *none[8]; /* in case a later release looks for functions behind the last one */
};

struct nccl_profiler_v5 {
	const char *name;
	int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
		    nccl_log *log);
	int (*start)(void *context, void **handle, const struct nccl_event *event);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, const void *arguments);
	int (*finalize)(void *context);
	void *none[8];
};

#endif
