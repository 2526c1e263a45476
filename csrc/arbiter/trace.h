/* The ring of events, for a recorder. */
#ifndef MFS_ARBITER_TRACE_H
#define MFS_ARBITER_TRACE_H

#include "state.h"

#include <mfs/trace.h>

struct ledger;
struct trace;

struct watch {
	struct trace *trace; /* NULL: no recorder is attached */
	struct ledger *ledger;
	uint64_t opened[MFS_OPEN_REASONS];
};

/* These are called only while a ring is attached. */
void trace_task(struct mfs_arbiter *arbiter, const struct task *task, enum mfs_event_kind kind,
		const struct mfs_pick *pick, uint64_t time_ns);
void trace_batch(struct mfs_arbiter *arbiter, const struct session *session, const struct batch *batch,
		 enum mfs_event_kind kind);
void trace_request(struct mfs_arbiter *arbiter, const struct session *session, const struct request *request,
		   enum mfs_event_kind kind, uint32_t value);
void trace_client(struct mfs_arbiter *arbiter, const struct session *session, enum mfs_open_reason why);

#endif
