/* The reverse multi-level queue of one NIC (or of one sender in the simulator): which flow goes next.
 *
 * A flow starts as low as its slack allows and is only ever promoted; the scavenger is the one exception. The queue
 * is deterministic and has no clock: `now_ns` is passed in and must never go back, so the simulator can run this
 * very file under virtual time. All memory is taken at creation; no call allocates afterwards. Not thread-safe: one
 * owner.
 *
 * Order, first to last (tests/specification is executable; tests compare both):
 *  - MFS_TIER_CRITICAL: last-stage requests that would miss their deadline. They stand among the early flows of RLI
 *    0, first of their size, then by arrival (variant paper and other early orders: before all early flows, by
 *    deadline).
 *  - MFS_TIER_EARLY: control, collective and reuse. By relative layer index (RLI); by the size class (power of two
 *    of the KiB) of all early bytes that the batch has waiting; by its rank (variant paper: rank alone); control
 *    before collective before reuse; then by arrival. A batch that was not announced goes after those that were.
 *  - MFS_TIER_LAST: other last-stage requests, by deadline (variant paper: level, deadline), then by arrival. Lost
 *    ones go by a renewed deadline.
 *  - MFS_TIER_SCAVENGER: background, unknown stages, pruned requests, and in variant paper lost ones. By deadline
 *    (without one: last), then by arrival.
 *
 * RLI is 0 for control and collectives, and max(0, layer - L_curr) for reuse of an announced batch. For reuse of a
 * batch that was not announced, or without a batch (key 0), it is MFS_RLI_UNKNOWN + layer: it goes after all reuse
 * of announced batches.
 *
 * Reuse without a batch is submitted while its request still queues. Its size is that of all reuse without a batch
 * that the request has waiting, plus what its sender has behind that; without a request, its own size. If it could
 * not arrive by the deadline submitted with it, even alone on the port, it counts as four times as large.
 *
 * Arrival is the order of submission, or the value that the caller gives in its place (mfs_flow.turn).
 *
 * A flow has a destination. While a destination is closed its flows are passed over, and all others keep that
 * order. Facts of requests and batches include the flows to all destinations.
 *
 * Last-stage flows belong to a request. MLU, level, critical and lost are states of the request. They count all
 * bytes that it still has to ship through this NIC: waiting, in flight and announced. Details:
 * docs/internals/rmlq.md.
 *
 * Cost: submit, pick, promote, complete and cancel are O(log groups), where a group is a request or a batch,
 * counted once for each destination that it has flows to. Closing and opening a destination are O(log groups), too.
 * A batch update is O(log groups) for each request of the batch. Promotion by time is driven by a heap of
 * evaluation times, never by a scan. Only mfs_rmlq_stats walks everything.
 *
 * Keys of requests and batches are chosen by the caller: two clients must not share one unless they mean the same
 * thing. */
#ifndef MFS_RMLQ_H
#define MFS_RMLQ_H

#include <mfs/policy.h>

#define MFS_FLOW_BYTES_MAX (1ULL << 40) /* one flow; keeps every sum far from overflow */
#define MFS_FLOWS_MAX (1u << 22)        /* of one queue */
#define MFS_DESTINATIONS_MAX 8192u      /* of one queue */

/* A handle is a slot of the queue's own table (low 32 bits) and its generation (high 32 bits). 0 is never
 * a valid handle. A handle whose flow is gone is recognised (-ENOENT). */
typedef uint64_t mfs_flow_handle;

/* What is submitted. Zero means not known. */
struct mfs_flow {
	uint64_t bytes;   /* up to MFS_FLOW_BYTES_MAX; 0 is allowed */
	uint64_t request; /* key; 0: the flow is a request of its own */
	uint64_t batch;   /* key; 0: none */
	/* of the request, on the clock of now_ns; 0: none. The latest one given counts for the whole
	 * request. For reuse without a batch: when it must have arrived for the request to be in time */
	uint64_t deadline_ns;
	uint64_t cookie;      /* the caller's; returned in mfs_pick */
	uint16_t layer;       /* L_target */
	uint16_t destination; /* below MFS_DESTINATIONS_MAX; 0 (not known) is a destination like any other */
	uint8_t stage;        /* enum mfs_stage; an unknown one is served as background */
	uint8_t reserved[3];
	/* for a last stage, and for reuse without a batch: its bytes plus those that its sender will submit
	 * behind it for the request. The latest value given counts; 0: not known. Up to twice MFS_FLOW_BYTES_MAX */
	uint64_t bytes_left;
	/* Replaces the order of arrival where nothing else orders two flows; 0: order of submission. Must be
	 * below 2^56 and never less than that of an earlier flow of the same request or batch. Give it with all
	 * flows of a queue or with none. (Control flows without a batch always go in order of submission.) */
	uint64_t turn;
};

/* Where a flow stands, or the flow that was picked. */
struct mfs_pick {
	mfs_flow_handle handle;
	uint64_t cookie;
	uint64_t bytes;     /* not completed yet */
	uint32_t rli;       /* 0 outside the early tier */
	uint8_t tier;       /* enum mfs_tier */
	uint8_t level;      /* last stage of variant paper: 1..levels; else 0 */
	uint8_t wire_class; /* 0..classes-1 */
	uint8_t in_flight;  /* 1: it was picked already */
	uint16_t destination;
	uint8_t reserved[6];
};

/* What the engine and the coordinator know of a batch. An announced batch runs until batch_end. While it computes
 * (for compute_left_ns after the last announcement), its requests are promoted by announcements, not by time. */
struct mfs_batch_context {
	uint32_t layer_current; /* L_curr; a lower value than before is ignored */
	uint32_t layers;
	uint32_t rank;            /* smaller goes first; MFS_RANK_NONE */
	uint32_t pruned;          /* 1: all last-stage flows of its requests go to the scavenger */
	uint64_t deadline_ns;     /* robust effective deadline; 0: none, and its slack is unlimited */
	uint64_t compute_left_ns; /* from now to the end of its last layer; 0: unknown or none */
};

/* What is known of a request besides its flows. */
struct mfs_request_context {
	uint64_t deadline_ns; /* 0: that of its flows */
	/* deadline less arrival; 0: deadline less the time when this queue first saw it */
	uint64_t budget_ns;
	/* last-stage bytes still to be submitted; each submit subtracts its own bytes */
	uint64_t bytes_ahead;
	uint64_t bytes_tail; /* the part of its bytes that exists only once compute has ended (last layer) */
};

/* Why a flow stands where it does: the facts from which its order key was made. */
struct mfs_rmlq_snapshot {
	struct mfs_pick place;
	uint64_t arrival; /* order of arrival at this queue */
	uint32_t rank;    /* of its batch; or MFS_RANK_NONE */
	uint8_t batch_announced, batch_pruned;
	uint64_t compute_end_ns; /* of its batch; 0: unknown or past */
	/* of a last-stage flow: facts of its request. Of others: `pruned`, and for early flows that wait
	 * bytes_left: all that their batch, or their request if they have no batch, has waiting and will
	 * submit behind that */
	uint64_t deadline_ns; /* 0: none */
	uint64_t budget_ns, bytes_left, bytes_ahead, bytes_tail;
	uint64_t bytes_whole; /* for a waiting load whose class goes by its whole size: that size; else 0 */
	uint8_t level, critical, lost, pruned;
};

/* The facts about a port that a queue uses. */
struct mfs_rmlq_facts {
	uint64_t rate_bytes_per_s;
	double rho;
	int64_t unit_slack_ns; /* INT64_MAX: no batch is under way here */
};

struct mfs_rmlq_stats {
	uint64_t waiting_bytes[MFS_CLASSES_MAX]; /* by wire class */
	uint64_t waiting_tasks[MFS_CLASSES_MAX];
	uint64_t in_flight_bytes, in_flight_tasks;
	uint64_t promotions;        /* of requests to a better level or to critical, since creation */
	uint64_t evaluations;       /* evaluations of requests by time */
	uint32_t requests, batches; /* known now */
};

struct mfs_rmlq;

/* Creates a queue that knows at most flows_max flows (waiting or in flight) at once. Besides the requests
 * and batches of these flows, it knows up to flows_max announced requests and as many announced batches.
 * Memory that is never used is never touched. -EINVAL: a policy, rate or size out of range; -ENOMEM. */
int mfs_rmlq_create(const struct mfs_policy *policy, uint64_t rate_bytes_per_s, uint32_t flows_max,
		    struct mfs_rmlq **queue);
void mfs_rmlq_destroy(struct mfs_rmlq *queue); /* NULL is allowed */
/* Declares that the flows of this queue are fetched from other hosts' ports. There the queues of many
 * readers meet, and only classes order them, so a load keeps the class of its whole size. Call it before
 * any flow is submitted. */
void mfs_rmlq_set_incoming(struct mfs_rmlq *queue);

/* Queues a flow. -ENOSPC: flows_max flows are known; -EINVAL: too many bytes, or no such destination. */
int mfs_rmlq_submit(struct mfs_rmlq *queue, const struct mfs_flow *flow, uint64_t now_ns,
		    mfs_flow_handle *handle);

/* Find the first flow in order whose destination is open, after promotions due by now_ns. pick also takes
 * it out of the waiting set: it is in flight until complete or cancel. -EAGAIN: nothing waits that may go. */
int mfs_rmlq_peek(struct mfs_rmlq *queue, uint64_t now_ns, struct mfs_pick *pick);
int mfs_rmlq_pick(struct mfs_rmlq *queue, uint64_t now_ns, struct mfs_pick *pick);
/* Picks this flow out of order: it has gone already, whatever waits before it and wherever it goes.
 * -ENOENT: it does not wait. */
int mfs_rmlq_take(struct mfs_rmlq *queue, mfs_flow_handle handle, uint64_t now_ns, struct mfs_pick *pick);

/* Flows to a closed destination are not picked; all other calls work on them as usual. All destinations
 * are open at first. Does nothing if the destination is in that state already or does not exist. */
void mfs_rmlq_destination_close(struct mfs_rmlq *queue, uint16_t destination);
void mfs_rmlq_destination_open(struct mfs_rmlq *queue, uint16_t destination);

/* Tells where a flow stands now. -ENOENT: the flow is gone. */
int mfs_rmlq_place(struct mfs_rmlq *queue, mfs_flow_handle handle, struct mfs_pick *pick);

/* Like mfs_rmlq_place, with the reasons. mfs_rmlq_facts copies the facts about the port. Both apply the
 * promotions due by now_ns. -ENOENT: the flow is gone. */
int mfs_rmlq_snapshot(struct mfs_rmlq *queue, mfs_flow_handle handle, uint64_t now_ns,
		      struct mfs_rmlq_snapshot *snapshot);
void mfs_rmlq_facts(struct mfs_rmlq *queue, uint64_t now_ns, struct mfs_rmlq_facts *facts);

/* `bytes` more of the flow have been completed (UINT64_MAX: all). Returns 1 when the flow is done and
 * forgotten, 0 when bytes are left. A flow that still waits may be completed as well, in part or as a
 * whole. -ENOENT: the flow is gone. */
int mfs_rmlq_complete(struct mfs_rmlq *queue, mfs_flow_handle handle, uint64_t bytes);

/* Forgets the flow, waiting or in flight. -ENOENT. */
int mfs_rmlq_cancel(struct mfs_rmlq *queue, mfs_flow_handle handle);

/* Announces or changes a batch, and evaluates its requests again (promotion at layer boundaries). -EINVAL:
 * key 0; -ENOSPC: flows_max batches are announced. */
int mfs_rmlq_batch(struct mfs_rmlq *queue, uint64_t batch, const struct mfs_batch_context *context,
		   uint64_t now_ns);
/* The batch has ended: flows of it that still wait are served like those of an unknown batch. -ENOENT: it
 * was not announced. */
int mfs_rmlq_batch_end(struct mfs_rmlq *queue, uint64_t batch);

/* Announces or changes a request. A request that is announced or pruned is known until request_end, any
 * other until its last last-stage flow is gone. -EINVAL: key 0; -ENOSPC: flows_max requests are announced. */
int mfs_rmlq_request(struct mfs_rmlq *queue, uint64_t request, const struct mfs_request_context *context,
		     uint64_t now_ns);
int mfs_rmlq_request_end(struct mfs_rmlq *queue,
			 uint64_t request); /* -ENOENT: neither announced nor pruned */

/* Pruned: the request's last-stage flows go to the scavenger until it is unpruned. So do its reuse flows
 * in variant paper; in variant mfs only those without a batch, since otherwise the other requests of the
 * batch would stall. Errors as for mfs_rmlq_request. */
int mfs_rmlq_prune(struct mfs_rmlq *queue, uint64_t request);
int mfs_rmlq_unprune(struct mfs_rmlq *queue, uint64_t request); /* -ENOENT: not pruned */

/* rho: share of the NIC's rate taken by traffic that goes before the last stage, 0..1; the policy clips it
 * at rho_max. A request uses the new value from its next evaluation, which is at most half way to its next
 * level. Only a policy with levels (mfs_policy_has_levels) uses it. -EINVAL: not a number. */
int mfs_rmlq_set_load(struct mfs_rmlq *queue, double rho);
int mfs_rmlq_set_rate(struct mfs_rmlq *queue, uint64_t rate_bytes_per_s); /* -EINVAL: 0 */

/* Applies the promotions due by now_ns. Returns when to call it again, or MFS_TIME_NEVER if only an event
 * can change anything. */
uint64_t mfs_rmlq_advance(struct mfs_rmlq *queue, uint64_t now_ns);

/* Sets an observer; NULL removes it. It is called for each request that moves to a better level or becomes
 * critical while a flow of it waits, with the cookie of that flow and the new level. It is called from
 * inside of the other functions, so it must call none of them. */
void mfs_rmlq_watch(struct mfs_rmlq *queue,
		    void (*promoted)(void *context, uint64_t cookie, uint32_t level, bool critical),
		    void *context);

/* number of flows, including those to closed destinations */
uint32_t mfs_rmlq_waiting(const struct mfs_rmlq *queue);
/* number of those that go to this destination */
uint32_t mfs_rmlq_waiting_at(const struct mfs_rmlq *queue, uint16_t destination);
void mfs_rmlq_stats(struct mfs_rmlq *queue,
		    struct mfs_rmlq_stats *stats); /* walks everything: not for the data path */
/* mfs_rmlq_stats in pieces. The first writes everything but what waits, which it sets to 0. The second adds the
 * flows of n slots of the table, from `first` on, to what waits, and returns where to go on; 0: that was all. */
void mfs_rmlq_stats_begin(const struct mfs_rmlq *queue, struct mfs_rmlq_stats *stats);
uint32_t mfs_rmlq_stats_add(struct mfs_rmlq *queue, uint32_t first, uint32_t n, struct mfs_rmlq_stats *stats);

#endif
