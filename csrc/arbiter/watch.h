/* Where the arbiter is observed: one line at each place where something happens to a flow, a batch or a
 * request. Each function updates the ledger. It writes an event only while a recorder is attached;
 * otherwise that costs one well-predicted branch. */
#ifndef MFS_ARBITER_WATCH_H
#define MFS_ARBITER_WATCH_H

#include "ledger.h"
#include "trace.h"

enum watch_end { WATCH_COMPLETE, WATCH_BYPASS, WATCH_CANCEL, WATCH_DROP };

int watch_create(struct mfs_arbiter *arbiter);
void watch_destroy(struct mfs_arbiter *arbiter); /* also if watch_create has failed or was not called */

/* The observer of a queue, see mfs_rmlq_watch. */
void watch_promoted(void *arbiter, uint64_t cookie, uint32_t level, bool critical);

static inline bool watch_recorded(const struct mfs_arbiter *arbiter)
{
	return __builtin_expect(arbiter->watch->trace != NULL, 0);
}

static inline void watch_submit(struct mfs_arbiter *arbiter, struct task *task)
{
	/* the deadline of a load without a batch is when it must arrive, not when its request is due */
	bool load = task->stage == MFS_STAGE_REUSE && task->batch == MFS_NONE_U32;

	task->account = task->request_id
				? ledger_submit(arbiter->watch->ledger, task->session->client_id,
						task->request_id, task->stage, task->layer, task->bytes,
						load ? 0 : task->deadline_ns, task->submit_ns)
				: 0;
	if (watch_recorded(arbiter))
		trace_task(arbiter, task, MFS_EVENT_SUBMIT, NULL, task->submit_ns);
}

static inline void watch_permit(struct mfs_arbiter *arbiter, const struct task *task,
				const struct mfs_pick *pick)
{
	if (watch_recorded(arbiter))
		trace_task(arbiter, task, MFS_EVENT_PERMIT, pick,
			   task->taken ? task->submit_ns : arbiter->now_ns);
}

static inline void watch_end(struct mfs_arbiter *arbiter, const struct task *task, enum watch_end how,
			     uint64_t end_ns)
{
	static const enum ledger_end end[] = {LEDGER_COMPLETE, LEDGER_BYPASS, LEDGER_DROP, LEDGER_DROP};
	static const enum mfs_event_kind kind[] = {MFS_EVENT_COMPLETE, MFS_EVENT_BYPASS, MFS_EVENT_CANCEL,
						   MFS_EVENT_DROP};

	if (how == WATCH_BYPASS)
		arbiter->watch->opened[MFS_OPEN_BYPASS]++;
	if (task->account &&
	    ledger_finish(arbiter->watch->ledger, task->account, end[how], task->bytes, end_ns))
		arbiter_notice(arbiter);
	if (watch_recorded(arbiter))
		trace_task(arbiter, task, kind[how], NULL, end_ns);
}

/* A task whose end was read before its beginning, because the two came by different rings. */
static inline void watch_late(struct mfs_arbiter *arbiter, uint64_t request_id)
{
	if (request_id)
		ledger_late(arbiter->watch->ledger);
}

/* A task for which its queue had no room goes at once. */
static inline void watch_full(struct mfs_arbiter *arbiter, const struct task *task)
{
	arbiter->watch->opened[MFS_OPEN_QUEUE_FULL]++;
	if (watch_recorded(arbiter))
		trace_client(arbiter, task->session, MFS_OPEN_QUEUE_FULL);
}

static inline void watch_open(struct mfs_arbiter *arbiter, const struct session *session,
			      enum mfs_open_reason why)
{
	arbiter->watch->opened[why]++;
	if (watch_recorded(arbiter))
		trace_client(arbiter, session, why);
}

void watch_batch_begun(struct mfs_arbiter *arbiter, const struct session *session, const struct batch *batch);

static inline void watch_batch(struct mfs_arbiter *arbiter, const struct session *session,
			       const struct batch *batch, bool arrives)
{
	if (arrives)
		watch_batch_begun(arbiter, session, batch);
	else if (watch_recorded(arbiter))
		trace_batch(arbiter, session, batch, MFS_EVENT_BATCH_LAYER);
}

static inline void watch_batch_end(struct mfs_arbiter *arbiter, const struct session *session,
				   const struct batch *batch)
{
	if (watch_recorded(arbiter))
		trace_batch(arbiter, session, batch, MFS_EVENT_BATCH_END);
}

void watch_request(struct mfs_arbiter *arbiter, const struct session *session, const struct request *request);
void watch_request_end(struct mfs_arbiter *arbiter, const struct session *session,
		       const struct request *request);
void watch_prune(struct mfs_arbiter *arbiter, const struct session *session, const struct request *request);

#endif
