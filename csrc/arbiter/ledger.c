/* Accounts of requests. Rows are found by (client, request), cells by (row, stage, layer), both in chained
 * hash tables whose links are numbers (slot + 1; 0: none), so nothing is allocated later. Rows are also
 * kept in the order of their last use. The least recently used row without an open task makes room. */
#include "ledger.h"

#include "../base/mix.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ROW_BUCKETS MFS_LEDGER_REQUESTS
#define CELL_BUCKETS MFS_LEDGER_CELLS
#define FINISHED_SLOTS 1024u
#define EVICTION_STEPS 16 /* rows with open tasks that are skipped when searching for one without */

struct cell {
	struct mfs_account_cell account;
	uint32_t row;       /* slot + 1; 0: free */
	uint32_t next;      /* next cell of the same row, or next free cell */
	uint32_t hash_next; /* next cell of the same bucket */
};

struct row {
	struct mfs_account account;
	uint32_t first_cell;
	uint32_t hash_next;
	uint32_t newer, older; /* by last use */
	uint32_t lives; /* announced and not ended: between two chunks a request is in two batches at once */
	bool used;
	bool ended;        /* it has ended, and was not closed since */
	bool client_alive; /* when it ended */
};

struct ledger {
	/* clients choose the numbers of their requests, and must not know which share a bucket */
	uint64_t salt;
	uint32_t row_bucket[ROW_BUCKETS];
	uint32_t cell_bucket[CELL_BUCKETS];
	uint32_t newest, oldest;
	uint32_t rows_used, cells_used; /* slots used at some time; never decreases */
	uint32_t free_row, free_cell;
	uint32_t rows, cells;
	uint64_t evicted, unaccounted, unreported;
	_Atomic uint64_t finished_head, finished_tail; /* written by the arbiter's thread only */
	struct mfs_finished finished[FINISHED_SLOTS];
	struct row row[MFS_LEDGER_REQUESTS];
	struct cell cell[MFS_LEDGER_CELLS];
};

static uint32_t *row_bucket(struct ledger *ledger, uint32_t client_id, uint64_t request_id)
{
	return &ledger->row_bucket[mfs_mix64(ledger->salt ^ (request_id + ((uint64_t)client_id << 40))) %
				   ROW_BUCKETS];
}

static uint32_t *cell_bucket(struct ledger *ledger, uint32_t row, uint8_t stage, uint16_t layer)
{
	return &ledger->cell_bucket[mfs_mix64(ledger->salt ^
					      ((uint64_t)row << 24 | (uint64_t)stage << 16 | layer)) %
				    CELL_BUCKETS];
}

struct ledger *ledger_create(uint64_t salt)
{
	struct ledger *ledger = calloc(1, sizeof(*ledger));

	if (ledger)
		ledger->salt = salt;
	return ledger;
}

void ledger_destroy(struct ledger *ledger)
{
	free(ledger);
}

/* ---- order of use ------------------------------------------------------------------------------------------------ */

static void order_remove(struct ledger *ledger, struct row *row)
{
	*(row->newer ? &ledger->row[row->newer - 1].older : &ledger->newest) = row->older;
	*(row->older ? &ledger->row[row->older - 1].newer : &ledger->oldest) = row->newer;
}

static void order_add(struct ledger *ledger, struct row *row)
{
	uint32_t r = (uint32_t)(row - ledger->row) + 1;

	row->newer = 0;
	row->older = ledger->newest;
	*(ledger->newest ? &ledger->row[ledger->newest - 1].newer : &ledger->oldest) = r;
	ledger->newest = r;
}

/* ---- rows and cells ---------------------------------------------------------------------------------------------- */

static void row_free(struct ledger *ledger, struct row *row)
{
	uint32_t r = (uint32_t)(row - ledger->row) + 1;
	uint32_t *link = row_bucket(ledger, row->account.client_id, row->account.request_id);

	while (*link != r)
		link = &ledger->row[*link - 1].hash_next;
	*link = row->hash_next;
	for (uint32_t c = row->first_cell; c;) {
		struct cell *cell = &ledger->cell[c - 1];
		uint32_t next = cell->next;
		uint32_t *hash = cell_bucket(ledger, r, cell->account.stage, cell->account.layer);

		while (*hash != c)
			hash = &ledger->cell[*hash - 1].hash_next;
		*hash = cell->hash_next;
		memset(cell, 0, sizeof(*cell));
		cell->next = ledger->free_cell;
		ledger->free_cell = c;
		ledger->cells--;
		c = next;
	}
	order_remove(ledger, row);
	memset(row, 0, sizeof(*row));
	row->hash_next = ledger->free_row;
	ledger->free_row = r;
	ledger->rows--;
}

/* Makes room without removing `keep`. Returns false if every visited row has open tasks. */
static bool evict(struct ledger *ledger, uint32_t keep)
{
	uint32_t r = ledger->oldest;

	for (unsigned n = 0; r && n < EVICTION_STEPS; n++, r = ledger->row[r - 1].newer) {
		if (ledger->row[r - 1].account.open || r == keep)
			continue;
		row_free(ledger, &ledger->row[r - 1]);
		ledger->evicted++;
		return true;
	}
	return false;
}

static struct row *row_find(struct ledger *ledger, uint32_t client_id, uint64_t request_id)
{
	for (uint32_t r = *row_bucket(ledger, client_id, request_id); r; r = ledger->row[r - 1].hash_next)
		if (ledger->row[r - 1].account.request_id == request_id &&
		    ledger->row[r - 1].account.client_id == client_id)
			return &ledger->row[r - 1];
	return NULL;
}

/* Returns the account, made if it is new, as the most recently used one. NULL: there is no room. */
static struct row *row_use(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint64_t now_ns)
{
	struct row *row = row_find(ledger, client_id, request_id);
	uint32_t *bucket, r;

	if (row) {
		order_remove(ledger, row);
		order_add(ledger, row);
		return row;
	}
	if (!ledger->free_row && ledger->rows_used == MFS_LEDGER_REQUESTS && !evict(ledger, 0))
		return NULL;
	r = ledger->free_row ? ledger->free_row : ++ledger->rows_used;
	row = &ledger->row[r - 1];
	if (ledger->free_row)
		ledger->free_row = row->hash_next;
	bucket = row_bucket(ledger, client_id, request_id);
	row->account =
		(struct mfs_account){.request_id = request_id, .client_id = client_id, .begin_ns = now_ns};
	row->used = true;
	row->hash_next = *bucket;
	*bucket = r;
	order_add(ledger, row);
	ledger->rows++;
	return row;
}

static uint32_t cell_find(struct ledger *ledger, uint32_t row, uint8_t stage, uint16_t layer)
{
	uint32_t c = *cell_bucket(ledger, row, stage, layer);

	while (c && (ledger->cell[c - 1].row != row || ledger->cell[c - 1].account.stage != stage ||
		     ledger->cell[c - 1].account.layer != layer))
		c = ledger->cell[c - 1].hash_next;
	return c;
}

static uint32_t cell_use(struct ledger *ledger, struct row *row, uint8_t stage, uint16_t layer)
{
	uint32_t r = (uint32_t)(row - ledger->row) + 1, c = cell_find(ledger, r, stage, layer);
	uint32_t *bucket;

	if (c)
		return c;
	if (row->account.cells >= MFS_LEDGER_REQUEST_CELLS && layer != MFS_LEDGER_LAYER_REST)
		return cell_use(ledger, row, stage, MFS_LEDGER_LAYER_REST);
	if (!ledger->free_cell && ledger->cells_used == MFS_LEDGER_CELLS && !evict(ledger, r))
		return 0;
	if (!ledger->free_cell && ledger->cells_used == MFS_LEDGER_CELLS)
		return 0; /* the row that made room had no cells */
	c = ledger->free_cell ? ledger->free_cell : ++ledger->cells_used;
	if (ledger->free_cell)
		ledger->free_cell = ledger->cell[c - 1].next;
	bucket = cell_bucket(ledger, r, stage, layer);
	ledger->cell[c - 1] = (struct cell){
		.account = {.stage = stage, .layer = layer},
		.row = r,
		.next = row->first_cell,
		.hash_next = *bucket,
	};
	*bucket = c;
	row->first_cell = c;
	row->account.cells++;
	ledger->cells++;
	return c;
}

/* ---- what happens to requests ------------------------------------------------------------------------------------ */

/* Stores the verdict for ledger_take, once the request has ended and none of its tasks is open. */
static bool row_close(struct ledger *ledger, struct row *row)
{
	struct mfs_account *account = &row->account;
	uint64_t done_ns = account->done_ns ? account->done_ns : account->end_ns;
	struct mfs_finished *finished;

	if (!row->ended || account->open || !account->announced)
		return false;
	row->ended = false; /* only once */
	if (account->deadline_ns && row->client_alive)
		account->verdict = done_ns <= account->deadline_ns ? MFS_VERDICT_MET : MFS_VERDICT_MISSED;
	if (ledger->finished_tail - ledger->finished_head == FINISHED_SLOTS) {
		ledger->unreported++;
		return true;
	}
	finished = &ledger->finished[ledger->finished_tail++ % FINISHED_SLOTS];
	*finished = (struct mfs_finished){
		.request_id = account->request_id,
		.batch_id = account->batch_id,
		.begin_ns = account->begin_ns,
		.end_ns = account->end_ns,
		.done_ns = done_ns,
		.deadline_ns = account->deadline_ns,
		.client_id = account->client_id,
		.verdict = (uint8_t)account->verdict,
		.pruned = account->pruned != 0,
	};
	for (uint32_t c = row->first_cell; c; c = ledger->cell[c - 1].next)
		finished->bytes += ledger->cell[c - 1].account.completed_bytes +
				   ledger->cell[c - 1].account.bypassed_bytes;
	return true;
}

uint32_t ledger_submit(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint8_t stage,
		       uint16_t layer, uint64_t bytes, uint64_t deadline_ns, uint64_t now_ns)
{
	struct row *row = row_use(ledger, client_id, request_id, now_ns);
	uint32_t c =
		row ? cell_use(ledger, row, stage < MFS_STAGES_MAX ? stage : MFS_STAGES_MAX - 1, layer) : 0;
	struct mfs_account_cell *cell;

	if (!c) {
		ledger->unaccounted++;
		return 0;
	}
	cell = &ledger->cell[c - 1].account;
	cell->submitted_bytes += bytes;
	cell->tasks++;
	if (!cell->first_ns)
		cell->first_ns = now_ns;
	if (!row->account.deadline_ns)
		row->account.deadline_ns = deadline_ns;
	row->account.open++;
	return c;
}

void ledger_late(struct ledger *ledger)
{
	ledger->unaccounted++;
}

bool ledger_finish(struct ledger *ledger, uint32_t c, enum ledger_end how, uint64_t bytes, uint64_t now_ns)
{
	struct mfs_account_cell *cell = &ledger->cell[c - 1].account;
	struct row *row = &ledger->row[ledger->cell[c - 1].row - 1];

	if (how == LEDGER_COMPLETE)
		cell->completed_bytes += bytes;
	else if (how == LEDGER_BYPASS)
		cell->bypassed_bytes += bytes;
	else
		cell->dropped_bytes += bytes;
	if (how != LEDGER_DROP)
		cell->last_ns = row->account.done_ns = now_ns;
	row->account.open--;
	return row_close(ledger, row);
}

void ledger_announced(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint64_t deadline_ns,
		      uint64_t now_ns)
{
	struct row *row = row_use(ledger, client_id, request_id, now_ns);

	if (!row)
		return;
	row->account.announced = true;
	row->lives++;
	row->account.end_ns = 0;
	row->account.verdict = MFS_VERDICT_NONE;
	row->ended = false;
	if (deadline_ns)
		row->account.deadline_ns = deadline_ns;
}

void ledger_batch(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint64_t batch_id)
{
	struct row *row = row_find(ledger, client_id, request_id);

	if (row)
		row->account.batch_id = batch_id;
}

void ledger_pruned(struct ledger *ledger, uint32_t client_id, uint64_t request_id)
{
	struct row *row = row_find(ledger, client_id, request_id);

	if (row)
		row->account.pruned = true;
}

bool ledger_ended(struct ledger *ledger, uint32_t client_id, uint64_t request_id, bool client_alive,
		  uint64_t now_ns)
{
	struct row *row = row_find(ledger, client_id, request_id);

	if (!row || !row->lives || --row->lives)
		return false;
	row->account.end_ns = now_ns;
	row->ended = true;
	row->client_alive = client_alive;
	return row_close(ledger, row);
}

/* ---- what there is to see ---------------------------------------------------------------------------------------- */

int ledger_read(const struct ledger *ledger, uint64_t request_id, uint32_t first,
		struct mfs_account *accounts, int n, struct mfs_account_cell *cells, uint32_t cells_max,
		uint32_t *next)
{
	uint32_t end = first + MFS_LEDGER_ROWS_PER_CALL < ledger->rows_used ? first + MFS_LEDGER_ROWS_PER_CALL
									    : ledger->rows_used;
	uint32_t slot, written = 0;
	int found = 0;

	for (slot = first; slot < end && found < n; slot++) {
		const struct row *row = &ledger->row[slot];

		if (!row->used || (request_id && row->account.request_id != request_id))
			continue;
		if (written + row->account.cells > cells_max)
			break;
		for (uint32_t c = row->first_cell; c; c = ledger->cell[c - 1].next)
			cells[written++] = ledger->cell[c - 1].account;
		accounts[found++] = row->account;
	}
	*next = slot < ledger->rows_used ? slot : MFS_LEDGER_REQUESTS;
	return found;
}

bool ledger_any(const struct ledger *ledger)
{
	return atomic_load_explicit(&ledger->finished_tail, memory_order_acquire) !=
	       atomic_load_explicit(&ledger->finished_head, memory_order_acquire);
}

int ledger_take(struct ledger *ledger, struct mfs_finished *finished, int n)
{
	int taken = 0;

	while (taken < n && ledger->finished_head != ledger->finished_tail)
		finished[taken++] = ledger->finished[ledger->finished_head++ % FINISHED_SLOTS];
	return taken;
}

void ledger_totals(const struct ledger *ledger, struct mfs_ledger_totals *totals)
{
	*totals = (struct mfs_ledger_totals){
		.evicted = ledger->evicted,
		.unaccounted = ledger->unaccounted,
		.unreported = ledger->unreported,
		.requests = ledger->rows,
		.cells = ledger->cells,
	};
}
