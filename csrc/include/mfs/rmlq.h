/* The reverse multi-level queue of one NIC (or of one sender in the simulator): which flow goes next.
 *
 * A flow starts as low as its slack allows and is only ever promoted; the scavenger is the one exception. The
 * queue is deterministic and has no clock: `now_ns` is passed in and must never go back, so that the
 * simulator runs this very file under virtual time. All memory is taken at creation; no call allocates
 * afterwards. Not thread-safe: one owner.
 *
 * Order, first to last (tests/specification is executable; tests compare both):
 *  MFS_TIER_CRITICAL   last-stage requests that would miss their deadline: among the early ones of RLI 0, first of
 *                      their size, then arrival (variant paper, other early orders: before all, by deadline)
 *  MFS_TIER_EARLY      control, collective and reuse: by relative layer index (RLI), size (power of two of the KiB) of
 *                      all early bytes the batch has waiting, its rank (variant paper: rank alone), control
 *                      before collective before reuse, then arrival. A batch that was not announced goes after those
 *                      that were
 *  MFS_TIER_LAST       other last-stage requests: by deadline (variant paper: level, deadline), then arrival;
 *                      lost ones by a renewed deadline
 *  MFS_TIER_SCAVENGER  background, unknown stages, pruned requests, in variant paper lost ones: by deadline
 *                      (none: last), then arrival
 *
 * RLI is 0 for control and collectives, max(0, layer - L_curr) for reuse of a batch that was announced, and
 * MFS_RLI_UNKNOWN + layer for reuse of one that was not (or of none, key 0): it goes after every reuse flow
 * of an announced batch. Reuse without a batch, asked for while its request still queues, has the size of all reuse that
 * the request has waiting without one, and of what its sender has behind that; without a request, its own. Where that could not be there by the deadline announced
 * with it even alone on the port, it counts as four times as large.
 *
 * Arrival is the order of submission, or what the caller gives in its place (mfs_flow.turn).
 *
 * A flow has a destination. While one is closed, what goes to it is passed over, and everything else goes on in that
 * order; facts of requests and batches are those of all destinations.
 *
 * Last-stage flows belong to a request; MLU, level, critical and lost are states of the request over the
 * bytes that it still has to ship through this NIC: waiting, in flight and announced. Details:
 * docs/internals/rmlq.md.
 *
 * Cost: submit, pick, promote, complete and cancel are O(log groups), where a group is a request or a batch, once for each
 * destination that it has flows to; closing and opening a destination are O(log groups).
 * A batch update is O(log) for each of the batch's requests. Promotion by time is driven by a heap of times
 * to evaluate again, never by a scan. Only mfs_rmlq_stats walks.
 *
 * Keys of requests and batches are the caller's: two clients must not share one unless they mean the same
 * thing.
 */
#ifndef MFS_RMLQ_H
#define MFS_RMLQ_H

#include <mfs/policy.h>

#define MFS_FLOW_BYTES_MAX (1ULL << 40) /* one flow; keeps every sum far from overflow */
#define MFS_FLOWS_MAX (1u << 22)        /* of one queue */
#define MFS_DESTINATIONS_MAX 8192u      /* of one queue */

/* A handle is a slot of the queue's own table (low 32 bits) and its generation (high 32 bits); 0 is never
 * one, and a handle whose flow is gone is recognised (-ENOENT). */
typedef uint64_t mfs_flow_handle;

/* What is submitted. Zero means: not known. */
struct mfs_flow {
	uint64_t bytes;   /* up to MFS_FLOW_BYTES_MAX; 0 is allowed */
	uint64_t request; /* key; 0: a request of its own */
	uint64_t batch;   /* key; 0: none */
	/* of the request, on the clock of now_ns; 0: none. The latest one holds for the request. Of reuse without a
	 * batch: when it must be there for the request to be in time */
	uint64_t deadline_ns;
	uint64_t cookie;      /* the caller's, comes back in mfs_pick */
	uint16_t layer;       /* L_target */
	uint16_t destination; /* below MFS_DESTINATIONS_MAX; 0, not known, is one like any other */
	uint8_t stage;        /* enum mfs_stage; an unknown one is served as background */
	uint8_t reserved[3];
	/* of a last stage, and of reuse without a batch: its bytes and what its sender will submit behind it for the request. The
	 * latest one that says it holds; 0: not known. Up to twice MFS_FLOW_BYTES_MAX */
	uint64_t bytes_left;
	/* Stands for its arrival where nothing else orders two flows; 0: as it was submitted. Below 2^56, never less than that of
	 * a flow of the same request or batch before it (control without a batch goes as it was submitted all the same), and given with
	 * all flows of a queue or with none. */
	uint64_t turn;
};

/* Where a flow stands, or the flow that was picked. */
struct mfs_pick {
	mfs_flow_handle handle;
	uint64_t cookie;
	uint64_t bytes;     /* not completed yet */
	uint32_t rli;       /* early tier, else 0 */
	uint8_t tier;       /* enum mfs_tier */
	uint8_t level;      /* last stage of variant paper: 1..levels; else 0 */
	uint8_t wire_class; /* 0..classes-1 */
	uint8_t in_flight;  /* 1: picked already */
	uint16_t destination;
	uint8_t reserved[6];
};

/* What the engine and the coordinator know of a batch. A batch that was announced runs, until batch_end. While its
 * compute lasts (compute_left_ns after it was last announced), its requests are promoted when it is announced, not by
 * time. */
struct mfs_batch_context {
	uint32_t layer_current; /* L_curr; one that is lower than before is ignored */
	uint32_t layers;
	uint32_t rank;            /* smaller goes first; MFS_RANK_NONE */
	uint32_t pruned;          /* 1: all last-stage flows of its requests go to the scavenger */
	uint64_t deadline_ns;     /* robust effective deadline; 0: none, its slack is unlimited */
	uint64_t compute_left_ns; /* from now to the end of its last layer; 0: unknown or none */
};

/* What is known of a request beyond its flows. */
struct mfs_request_context {
	uint64_t deadline_ns; /* 0: as its flows say */
	uint64_t budget_ns;   /* deadline less arrival; 0: deadline less the time this queue first saw it */
	uint64_t bytes_ahead; /* last-stage bytes still to be submitted; each submit takes its bytes off */
	uint64_t bytes_tail;  /* the part of its bytes that exists only once compute has ended (last layer) */
};

/* Why a flow stands where it does: the facts that its order key was made of. */
struct mfs_rmlq_snapshot {
	struct mfs_pick place;
	uint64_t arrival; /* order of arrival at this queue */
	uint32_t rank;    /* of its batch; MFS_RANK_NONE */
	uint8_t batch_announced, batch_pruned;
	uint64_t compute_end_ns; /* of its batch; 0: unknown or past */
	/* last stage: of its request. Others: pruned, and of early ones that wait bytes_left, all that their batch, or their request
	 * without one, has waiting and behind */
	uint64_t deadline_ns; /* 0: none */
	uint64_t budget_ns, bytes_left, bytes_ahead, bytes_tail;
	uint64_t bytes_whole; /* of a load that waits here where its class goes by all of it; else 0 */
	uint8_t level, critical, lost, pruned;
};

/* What a queue reckons with. */
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
	uint64_t evaluations;       /* at a request's MLU because its time had come */
	uint32_t requests, batches; /* known now */
};

struct mfs_rmlq;

/* At most flows_max flows (waiting or in flight) are known at once, and besides their own, up to flows_max
 * requests and as many batches that were announced. -EINVAL: a policy, rate or size out of range; -ENOMEM. Memory
 * that is never used is never touched. */
int mfs_rmlq_create(const struct mfs_policy *policy, uint64_t rate_bytes_per_s, uint32_t flows_max,
		    struct mfs_rmlq **queue);
void mfs_rmlq_destroy(struct mfs_rmlq *queue); /* NULL is allowed */
/* Its flows are fetched from other hosts' ports. There the queues of many readers meet, and only classes order them: a load
 * keeps the class of its whole size. Before any flow is submitted. */
void mfs_rmlq_set_incoming(struct mfs_rmlq *queue);

/* Queues a flow. -ENOSPC: flows_max are known; -EINVAL: too many bytes, or no such destination. */
int mfs_rmlq_submit(struct mfs_rmlq *queue, const struct mfs_flow *flow, uint64_t now_ns,
		    mfs_flow_handle *handle);

/* The first flow in order whose destination is open, promotions due by now_ns applied. pick takes it out of the waiting
 * set: it is in flight until complete or cancel. -EAGAIN: nothing waits that may go. */
int mfs_rmlq_peek(struct mfs_rmlq *queue, uint64_t now_ns, struct mfs_pick *pick);
int mfs_rmlq_pick(struct mfs_rmlq *queue, uint64_t now_ns, struct mfs_pick *pick);
/* Picks this flow, which has gone whatever waits before it and wherever it goes. -ENOENT: it does not wait. */
int mfs_rmlq_take(struct mfs_rmlq *queue, mfs_flow_handle handle, uint64_t now_ns, struct mfs_pick *pick);

/* A closed destination's flows are not picked; everything else may happen to them. All destinations are open at first.
 * Nothing happens when it is so already, or there is no such destination. */
void mfs_rmlq_destination_close(struct mfs_rmlq *queue, uint16_t destination);
void mfs_rmlq_destination_open(struct mfs_rmlq *queue, uint16_t destination);

/* Where a flow stands now. -ENOENT. */
int mfs_rmlq_place(struct mfs_rmlq *queue, mfs_flow_handle handle, struct mfs_pick *pick);

/* The same with its reasons, and what the queue reckons with; promotions due by now_ns are applied. -ENOENT. */
int mfs_rmlq_snapshot(struct mfs_rmlq *queue, mfs_flow_handle handle, uint64_t now_ns,
		      struct mfs_rmlq_snapshot *snapshot);
void mfs_rmlq_facts(struct mfs_rmlq *queue, uint64_t now_ns, struct mfs_rmlq_facts *facts);

/* `bytes` more of the flow have arrived (UINT64_MAX: all). 1: the flow is done and forgotten; 0: some are
 * left. A flow that still waits may be completed too, in part or whole. -ENOENT. */
int mfs_rmlq_complete(struct mfs_rmlq *queue, mfs_flow_handle handle, uint64_t bytes);

/* Forgets the flow, waiting or in flight. -ENOENT. */
int mfs_rmlq_cancel(struct mfs_rmlq *queue, mfs_flow_handle handle);

/* Announces or changes a batch; its requests are evaluated again (promotion at layer boundaries). -EINVAL: key 0;
 * -ENOSPC: flows_max batches are announced. */
int mfs_rmlq_batch(struct mfs_rmlq *queue, uint64_t batch, const struct mfs_batch_context *context,
		   uint64_t now_ns);
/* The batch has left: what it still has waiting is served as of an unknown batch. -ENOENT: never announced. */
int mfs_rmlq_batch_end(struct mfs_rmlq *queue, uint64_t batch);

/* Announces or changes a request. -EINVAL: key 0; -ENOSPC: flows_max requests are announced. A request that is announced or
 * pruned is known until request_end, any other until its last last-stage flow is gone. */
int mfs_rmlq_request(struct mfs_rmlq *queue, uint64_t request, const struct mfs_request_context *context,
		     uint64_t now_ns);
int mfs_rmlq_request_end(struct mfs_rmlq *queue,
			 uint64_t request); /* -ENOENT: neither announced nor pruned */

/* Pruned: its last-stage flows go to the scavenger until it is unpruned; its reuse flows too in variant
 * paper, in variant mfs only those without a batch, since the peers of a batch would stall. -EINVAL, -ENOSPC
 * as above. */
int mfs_rmlq_prune(struct mfs_rmlq *queue, uint64_t request);
int mfs_rmlq_unprune(struct mfs_rmlq *queue, uint64_t request); /* -ENOENT: not pruned */

/* rho: share of the NIC's rate taken by traffic that goes before the last stage, 0..1; the policy clips it at rho_max.
 * A request sees it when it is evaluated next, which is at most half way to its next level. Only a policy with levels
 * (mfs_policy_has_levels) asks for it; others ignore it. -EINVAL: not a number. */
int mfs_rmlq_set_load(struct mfs_rmlq *queue, double rho);
int mfs_rmlq_set_rate(struct mfs_rmlq *queue, uint64_t rate_bytes_per_s); /* -EINVAL: 0 */

/* Applies the promotions due by now_ns. Answers when to call again, MFS_TIME_NEVER if only an event can
 * change anything. */
uint64_t mfs_rmlq_advance(struct mfs_rmlq *queue, uint64_t now_ns);

/* Calls an observer for each request that moves to a better level or becomes critical while a flow of it waits: that
 * flow's cookie and the new level. NULL: none. Called inside of the other calls, so it must call none of them. */
void mfs_rmlq_watch(struct mfs_rmlq *queue,
		    void (*promoted)(void *context, uint64_t cookie, uint32_t level, bool critical),
		    void *context);

uint32_t mfs_rmlq_waiting(const struct mfs_rmlq *queue); /* flows, to closed destinations too */
uint32_t mfs_rmlq_waiting_at(const struct mfs_rmlq *queue,
			     uint16_t destination); /* of them, those that go there */
void mfs_rmlq_stats(struct mfs_rmlq *queue,
		    struct mfs_rmlq_stats *stats); /* walks everything: not for the data path */
/* The same in pieces: all but what waits, which is left 0; and n of the table's places from `first` on, added to what waits.
 * Answers where to go on, 0: that was all. */
void mfs_rmlq_stats_begin(const struct mfs_rmlq *queue, struct mfs_rmlq_stats *stats);
uint32_t mfs_rmlq_stats_add(struct mfs_rmlq *queue, uint32_t first, uint32_t n, struct mfs_rmlq_stats *stats);

#endif
