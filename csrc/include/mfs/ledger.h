/* What each request has moved, by stage and layer: a bounded table in the arbiter, the least recently used request goes
 * first. It counts tasks, that is what asks for permits; a program that only observes asks for none. */
#ifndef MFS_LEDGER_H
#define MFS_LEDGER_H

#include <mfs/arbiter.h>

#define MFS_LEDGER_REQUESTS 4096u /* of all clients together; one request of two clients is two accounts */
#define MFS_LEDGER_CELLS 65536u   /* pairs of stage and layer */
#define MFS_LEDGER_REQUEST_CELLS \
	1024u /* of one request; what is more is counted with layer MFS_LEDGER_LAYER_REST */
#define MFS_LEDGER_LAYER_REST UINT16_MAX
#define MFS_LEDGER_ROWS_PER_CALL 512u

struct mfs_account {
	uint64_t request_id;
	uint64_t batch_id;    /* the last that it was seen in; 0: none */
	uint64_t begin_ns;    /* announced, or its first task */
	uint64_t end_ns;      /* ended by its program; 0: not yet */
	uint64_t done_ns;     /* the last of its tasks was complete; 0: none was */
	uint64_t deadline_ns; /* 0: none */
	uint32_t client_id;
	uint32_t open;      /* tasks that wait or are in flight */
	uint32_t announced; /* its program has announced it, not only named it with its tasks */
	uint32_t pruned;    /* it was, at some time */
	uint32_t verdict;   /* enum mfs_verdict; NONE also while it is open */
	uint32_t cells;     /* written to the array */
};

struct mfs_account_cell {
	uint64_t submitted_bytes;
	uint64_t completed_bytes;
	uint64_t bypassed_bytes;    /* sent without a permit */
	uint64_t dropped_bytes;     /* cancelled, or its program ended */
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
	uint64_t done_ns; /* the last completion; where it had no task, its end */
	uint64_t deadline_ns;
	uint64_t bytes; /* completed or bypassed */
	uint32_t client_id;
	uint8_t verdict; /* enum mfs_verdict */
	uint8_t pruned;
};

struct mfs_ledger_totals {
	uint64_t evicted; /* accounts that made room */
	uint64_t
		unaccounted; /* tasks on no account: all in the table had tasks open, or the task's end overtook it */
	uint64_t unreported;      /* finished requests that were not taken in time */
	uint32_t requests, cells; /* in use */
};

/* Accounts from slot `first` on, of one request or (0) of all. Writes up to n accounts and their cells, those of one after
 * those of the other; cells_max is at least twice MFS_LEDGER_REQUEST_CELLS. Looks at no more than
 * MFS_LEDGER_ROWS_PER_CALL slots; *next: where to go on, MFS_LEDGER_REQUESTS: that was all. Answers how many accounts. */
int mfs_arbiter_accounts(struct mfs_arbiter *arbiter, uint64_t request_id, uint32_t first,
			 struct mfs_account *accounts, int n, struct mfs_account_cell *cells,
			 uint32_t cells_max, uint32_t *next);
/* Takes up to n finished requests out, oldest first. mfs_arbiter_notice_fd rings when there are some. */
int mfs_arbiter_finished(struct mfs_arbiter *arbiter, struct mfs_finished *finished, int n);
int mfs_arbiter_ledger_totals(struct mfs_arbiter *arbiter, struct mfs_ledger_totals *totals);

#endif
