/* What each request has moved, by stage and layer: a bounded table in the arbiter that evicts the least recently
 * used request first. It counts tasks, which ask for permits. A program that only observes submits none. */
#ifndef MFS_LEDGER_H
#define MFS_LEDGER_H

#include <mfs/arbiter.h>

#define MFS_LEDGER_REQUESTS 4096u /* of all clients together; one request of two clients has two accounts */
#define MFS_LEDGER_CELLS 65536u   /* pairs of stage and layer */
/* of one request; what does not fit is counted with layer MFS_LEDGER_LAYER_REST */
#define MFS_LEDGER_REQUEST_CELLS 1024u
#define MFS_LEDGER_LAYER_REST UINT16_MAX
#define MFS_LEDGER_ROWS_PER_CALL 512u

struct mfs_account {
	uint64_t request_id;
	uint64_t batch_id;    /* the last batch that it was seen in; 0: none */
	uint64_t begin_ns;    /* when it was announced or submitted its first task */
	uint64_t end_ns;      /* when its program ended it; 0: not yet */
	uint64_t done_ns;     /* when the last of its tasks was complete; 0: none was */
	uint64_t deadline_ns; /* 0: none */
	uint32_t client_id;
	uint32_t open;      /* tasks that wait or are in flight */
	uint32_t announced; /* 1: its program has announced it, not only named it with its tasks */
	uint32_t pruned;    /* 1: it has been pruned at some time */
	uint32_t verdict;   /* enum mfs_verdict; MFS_VERDICT_NONE also while it is open */
	uint32_t cells;     /* cells written to the array */
};

struct mfs_account_cell {
	uint64_t submitted_bytes;
	uint64_t completed_bytes;
	uint64_t bypassed_bytes;    /* sent without a permit */
	uint64_t dropped_bytes;     /* cancelled, or the program ended first */
	uint64_t first_ns, last_ns; /* first submission, last completion (0: none) */
	uint32_t tasks;
	uint16_t layer;
	uint8_t stage;
};

enum mfs_verdict {
	MFS_VERDICT_NONE = 0, /* no deadline, or its program ended first */
	MFS_VERDICT_MET = 1,
	MFS_VERDICT_MISSED = 2,
};

/* An announced request that has ended and has no task open any more. */
struct mfs_finished {
	uint64_t request_id, batch_id;
	uint64_t begin_ns, end_ns;
	uint64_t done_ns; /* when its last task was complete; if it had no task, when it ended */
	uint64_t deadline_ns;
	uint64_t bytes; /* completed or bypassed */
	uint32_t client_id;
	uint8_t verdict; /* enum mfs_verdict */
	uint8_t pruned;
};

struct mfs_ledger_totals {
	uint64_t evicted; /* accounts removed to make room */
	/* tasks without an account: all accounts had open tasks, or the message of the task's end came first */
	uint64_t unaccounted;
	uint64_t unreported;      /* finished requests that were lost because they were not taken in time */
	uint32_t requests, cells; /* accounts and cells in use */
};

/* Reads accounts from slot `first` on, of one request or (request_id 0) of all. Writes up to n accounts,
 * and their cells one account after the other. cells_max must be at least twice MFS_LEDGER_REQUEST_CELLS.
 * One call visits at most MFS_LEDGER_ROWS_PER_CALL slots. *next is where to go on; MFS_LEDGER_REQUESTS:
 * that was all. Returns the number of accounts. */
int mfs_arbiter_accounts(struct mfs_arbiter *arbiter, uint64_t request_id, uint32_t first,
			 struct mfs_account *accounts, int n, struct mfs_account_cell *cells,
			 uint32_t cells_max, uint32_t *next);
/* Takes up to n finished requests out, oldest first. mfs_arbiter_notice_fd becomes readable when there are some. */
int mfs_arbiter_finished(struct mfs_arbiter *arbiter, struct mfs_finished *finished, int n);
int mfs_arbiter_ledger_totals(struct mfs_arbiter *arbiter, struct mfs_ledger_totals *totals);

#endif
