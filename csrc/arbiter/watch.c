/* The rarer events, and what the daemon's Python reads from the ledger and the counters. */
#include "watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int watch_create(struct mfs_arbiter *arbiter)
{
	arbiter->watch = calloc(1, sizeof(*arbiter->watch));
	if (!arbiter->watch)
		return -ENOMEM;
	arbiter->watch->ledger = ledger_create(arbiter->key_secret);
	return arbiter->watch->ledger ? 0 : -ENOMEM;
}

void watch_destroy(struct mfs_arbiter *arbiter)
{
	if (!arbiter->watch)
		return;
	free(arbiter->watch->trace); /* the arbiter's thread has ended */
	ledger_destroy(arbiter->watch->ledger);
	free(arbiter->watch);
}

static uint64_t batch_id_of(const struct session *session, const struct request *request)
{
	return request->batch < MFS_BATCHES_MAX ? session->batch[request->batch].id : 0;
}

/* The batch's requests came before it, when it had no id yet. */
void watch_batch_begun(struct mfs_arbiter *arbiter, const struct session *session, const struct batch *batch)
{
	if (watch_recorded(arbiter))
		trace_batch(arbiter, session, batch, MFS_EVENT_BATCH_BEGIN);
	for (uint32_t r = session->batch_request[batch - session->batch]; r;
	     r = session->request[r - 1].next) {
		ledger_batch(arbiter->watch->ledger, session->client_id, session->request[r - 1].id,
			     batch->id);
		if (watch_recorded(arbiter))
			trace_request(arbiter, session, &session->request[r - 1], MFS_EVENT_REQUEST_BATCH, 0);
	}
}

/* A request that still queues moves nothing yet: its account begins with its batch or its first task. */
void watch_request(struct mfs_arbiter *arbiter, const struct session *session, const struct request *request)
{
	uint64_t budget_us = request->budget_ns / 1000;

	if (request->flags & MFS_REQUEST_WAITING)
		return;
	ledger_announced(arbiter->watch->ledger, session->client_id, request->id, request->deadline_ns,
			 arbiter->now_ns);
	if (batch_id_of(session, request))
		ledger_batch(arbiter->watch->ledger, session->client_id, request->id,
			     batch_id_of(session, request));
	if (watch_recorded(arbiter))
		trace_request(arbiter, session, request, MFS_EVENT_REQUEST_ANNOUNCED,
			      budget_us < UINT32_MAX ? (uint32_t)budget_us : UINT32_MAX);
}

void watch_request_end(struct mfs_arbiter *arbiter, const struct session *session,
		       const struct request *request)
{
	if (request->flags & MFS_REQUEST_WAITING)
		return;
	if (watch_recorded(arbiter))
		trace_request(arbiter, session, request, MFS_EVENT_REQUEST_ENDED, 0);
	if (ledger_ended(arbiter->watch->ledger, session->client_id, request->id,
			 session->state == MFS_SEGMENT_ACTIVE, arbiter->now_ns))
		arbiter_notice(arbiter);
}

void watch_prune(struct mfs_arbiter *arbiter, const struct session *session, const struct request *request)
{
	if (request->pruned)
		ledger_pruned(arbiter->watch->ledger, session->client_id, request->id);
	if (watch_recorded(arbiter))
		trace_request(arbiter, session, request, MFS_EVENT_REQUEST_PRUNED, request->pruned);
}

void watch_promoted(void *argument, uint64_t cookie, uint32_t level, bool critical)
{
	struct mfs_arbiter *arbiter = argument;
	const struct mfs_pick place = {.level = (uint8_t)level,
				       .tier = critical ? MFS_TIER_CRITICAL : MFS_TIER_LAST};

	if (watch_recorded(arbiter))
		trace_task(arbiter, (const struct task *)(uintptr_t)cookie, MFS_EVENT_PROMOTE, &place,
			   arbiter->now_ns);
}

/* ---- what there is to see ---------------------------------------------------------------------------------------- */

struct accounts_argument {
	uint64_t request_id;
	struct mfs_account *accounts;
	struct mfs_account_cell *cells;
	uint32_t *next;
	uint32_t first, cells_max;
	int n;
};

static int run_accounts(struct mfs_arbiter *arbiter, void *argument)
{
	const struct accounts_argument *a = argument;

	return ledger_read(arbiter->watch->ledger, a->request_id, a->first, a->accounts, a->n, a->cells,
			   a->cells_max, a->next);
}

int mfs_arbiter_accounts(struct mfs_arbiter *arbiter, uint64_t request_id, uint32_t first,
			 struct mfs_account *accounts, int n, struct mfs_account_cell *cells,
			 uint32_t cells_max, uint32_t *next)
{
	struct accounts_argument a = {request_id, accounts, cells, next, first, cells_max, n};

	*next = MFS_LEDGER_REQUESTS;
	if (first >= MFS_LEDGER_REQUESTS)
		return 0;
	return cells_max < 2 * MFS_LEDGER_REQUEST_CELLS ? -EINVAL
							: arbiter_command(arbiter, run_accounts, &a);
}

struct finished_argument {
	struct mfs_finished *finished;
	int n;
};

static int run_finished(struct mfs_arbiter *arbiter, void *argument)
{
	const struct finished_argument *a = argument;

	return ledger_take(arbiter->watch->ledger, a->finished, a->n);
}

int mfs_arbiter_finished(struct mfs_arbiter *arbiter, struct mfs_finished *finished, int n)
{
	struct finished_argument a = {finished, n};

	return ledger_any(arbiter->watch->ledger) ? arbiter_command(arbiter, run_finished, &a) : 0;
}

static int run_totals(struct mfs_arbiter *arbiter, void *argument)
{
	ledger_totals(arbiter->watch->ledger, argument);
	return 0;
}

int mfs_arbiter_ledger_totals(struct mfs_arbiter *arbiter, struct mfs_ledger_totals *totals)
{
	return arbiter_command(arbiter, run_totals, totals);
}

static int run_opened(struct mfs_arbiter *arbiter, void *argument)
{
	memcpy(argument, arbiter->watch->opened, sizeof(arbiter->watch->opened));
	return 0;
}

int mfs_arbiter_opened(struct mfs_arbiter *arbiter, uint64_t counts[MFS_OPEN_REASONS])
{
	return arbiter_command(arbiter, run_opened, counts);
}
