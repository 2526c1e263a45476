/* The table behind mfs/ledger.h. It knows nothing of the arbiter: the caller passes the time. Owned by one
 * thread; allocates once. */
#ifndef MFS_ARBITER_LEDGER_H
#define MFS_ARBITER_LEDGER_H

#include <mfs/ledger.h>

#include <stdbool.h>

struct ledger;

enum ledger_end { LEDGER_COMPLETE, LEDGER_BYPASS, LEDGER_DROP };

/* Returns NULL if there is no memory. Pages that are never used are never touched. */
struct ledger *ledger_create(uint64_t salt);
void ledger_destroy(struct ledger *ledger); /* NULL is allowed */

/* A task of the request begins. Returns the cell to pass to ledger_finish; 0: there is no room for its account. */
uint32_t ledger_submit(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint8_t stage,
		       uint16_t layer, uint64_t bytes, uint64_t deadline_ns, uint64_t now_ns);
/* A task had ended before it was seen. It is counted, but on no account. */
void ledger_late(struct ledger *ledger);
/* The task has ended. Returns true if a finished request can be taken. */
bool ledger_finish(struct ledger *ledger, uint32_t cell, enum ledger_end how, uint64_t bytes,
		   uint64_t now_ns);

void ledger_announced(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint64_t deadline_ns,
		      uint64_t now_ns);
void ledger_batch(struct ledger *ledger, uint32_t client_id, uint64_t request_id, uint64_t batch_id);
void ledger_pruned(struct ledger *ledger, uint32_t client_id, uint64_t request_id);
/* client_alive: its program had not ended before it. Returns as ledger_finish does. */
bool ledger_ended(struct ledger *ledger, uint32_t client_id, uint64_t request_id, bool client_alive,
		  uint64_t now_ns);

int ledger_read(const struct ledger *ledger, uint64_t request_id, uint32_t first,
		struct mfs_account *accounts, int n, struct mfs_account_cell *cells, uint32_t cells_max,
		uint32_t *next);
/* true if finished requests can be taken; may be called by any thread */
bool ledger_any(const struct ledger *ledger);
int ledger_take(struct ledger *ledger, struct mfs_finished *finished, int n);
void ledger_totals(const struct ledger *ledger, struct mfs_ledger_totals *totals);

#endif
