/* The internals of the reverse multi-level queue, shared by its C files. See docs/internals/rmlq.md.
 *
 * Every heap entry is a node: what a request or a batch has waiting for one destination. For a request
 * that is its FIFO of last-stage flows, or one flow that stands alone in the scavenger; for a batch, its
 * early-stage flows. The node's key is the key of its first flow. The record of a request or batch (the
 * owner) is itself the node of one destination. For each further destination the owner has a strand: a
 * record with flows and place only.
 *
 * Layers, from top to bottom:
 *
 *   snapshot.c      why a flow stands where it does
 *   rmlq.c          the calls
 *   policy.c        defaults, limits, and the rules for callers without a queue
 *   last.c          requests
 *   early.c         batches
 *   parked.c        what waits for closed destinations
 *   policy_mfs.c    the rules of variant mfs
 *   policy_paper.c  the rules of variant paper
 *   group.h         a batch's flows of one layer and destination
 *   lone.h          loads without a batch
 *   strand.h        what an owner has for one more destination
 *   state.h         the records
 *   rules.h         the table of a variant's rules
 *   window.c        what may be under way, independent of the queue */
#ifndef MFS_RMLQ_STATE_H
#define MFS_RMLQ_STATE_H

#include <mfs/rmlq.h>

#include <string.h>

#include "../base/heap.h"
#include "../base/pairing.h"
#include "../base/slab.h"
#include "rules.h"

#define MFS_TIERS 4
#define MFS_BATCH_UNNAMED 1u /* the record of batch key 0, for its control and collectives */
#define BATCH_OF_REQUEST 1u  /* part of a batch's key: the key is that of a request without a batch */
/* the same: the key is the index of a reuse flow of which not even the request is known */
#define BATCH_OF_FLOW 2u
#define BATCH_UNNAMED 3u /* in the strands of MFS_BATCH_UNNAMED, which has no key */

enum mfs_flow_state {
	MFS_FLOW_FREE,
	MFS_FLOW_EARLY,  /* waits in its batch: in a group by layer, or urgent (control, collective) */
	MFS_FLOW_LAST,   /* waits in its request */
	MFS_FLOW_ALONE,  /* waits in a record of its own: background, or reuse of a pruned request */
	MFS_FLOW_FLIGHT, /* picked */
};

struct mfs_fifo {
	uint32_t head, tail;
};

struct flow { /* key: that of the request; part: generation, 0 before the first use; chain: destination */
	struct mfs_record record;
	uint64_t cookie;
	uint64_t bytes; /* not completed */
	uint64_t arrival;
	uint32_t next, prev; /* in its FIFO */
	/* EARLY: group, or batch if urgent; LAST, ALONE: request; FLIGHT: request of p2d, else 0. Never a strand */
	uint32_t owner;
	uint16_t layer;
	uint8_t stage; /* enum mfs_stage, unknown ones as background */
	uint8_t state;
	/* arrival of `next`: when this flow leaves, the record of the next one need not be read */
	uint64_t next_arrival : 56;
	uint64_t tier : 2, wire_class : 3,
		/* as granted, for a flow in flight; level: that of the last stage, less one */
		level : 3;
};
_Static_assert(sizeof(struct flow) == 64, "a flow is one cache line");

/* The reuse flows of one batch, layer and destination. A group stands in one of two pairing heaps in the
 * batch's record, or strand, for that destination. Its key is that of the batch, with layer and
 * destination as the second part, so a flow finds its group without reading the batch. */
struct group {
	struct mfs_record record;
	uint64_t head_arrival; /* of the first flow */
	struct pairing_links links;
	struct mfs_fifo fifo;
	uint32_t batch;
	uint32_t strand; /* strand, or the batch itself */
	uint16_t layer;
	bool due;
	uint8_t reserved[9];
};
_Static_assert(sizeof(struct group) == 64, "a group is one cache line");

struct batch { /* part: 0, BATCH_OF_REQUEST or BATCH_OF_FLOW */
	struct mfs_record record;
	/* flows to the destination of this record */
	struct mfs_fifo urgent[2]; /* control, collective */
	uint32_t due;              /* groups whose layer has come, by arrival of their first flows */
	uint32_t ahead;            /* the other groups, by layer */
	/* for all destinations; not used in a strand */
	uint32_t rank;
	uint16_t layer_current;
	bool announced, pruned;
	uint64_t compute_end_ns; /* 0: unknown or none */
	uint32_t members;        /* chain of requests, and of single flows set aside */
	uint32_t strand_of;      /* 0: this is no strand */
	/* rarely used from here on */
	uint64_t deadline_ns;   /* 0: none */
	uint64_t bytes_waiting; /* of all its early flows */
	/* for reuse without a batch */
	uint64_t needed_ns;    /* when its flows must have arrived; 0: not known */
	uint64_t bytes_behind; /* still to be submitted */
	uint64_t bytes_whole;  /* submitted, whether gone or not, and still to be submitted */
	uint64_t second;       /* the part of its keys that follows the RLI */
	uint32_t strands, strand_next, strand_prev; /* chain of the strands that have flows */
	uint16_t destination;                       /* undefined while it has no flows of its own */
	uint8_t reserved[2];
};
_Static_assert(sizeof(struct batch) == 128, "a batch is two cache lines");
_Static_assert(offsetof(struct batch, deadline_ns) == 64, "what a submit and a pick need is one cache line");

enum request_kind { REQUEST_LAST, REQUEST_BACKGROUND, REQUEST_ASIDE, REQUEST_STRAND };

struct request {
	struct mfs_record record;
	struct mfs_fifo fifo; /* waiting flows to its destination */
	uint32_t flows;       /* waiting flows to all destinations, and flows in flight */
	uint32_t batch;       /* 0: none */
	uint64_t deadline_ns; /* MFS_TIME_MAX: none */
	uint64_t bytes_left;  /* of those flows, not completed, and of those ahead */
	uint64_t timer_ns;    /* when it will be evaluated; MFS_TIME_NEVER: no timer */
	uint8_t tier, level, kind;
	bool critical, lost;
	bool announced : 1, pruned : 1, evaluated : 1, split : 1; /* split: it has strands */
	uint16_t destination;                                     /* undefined while its FIFO is empty */
	/* rarely used from here on */
	uint64_t budget_ns;
	uint64_t bytes_ahead;
	uint64_t bytes_tail;
	uint32_t member_next, member_prev;          /* chain of the batch */
	uint32_t aside;                             /* if pruned: chain of its reuse flows that stand alone */
	uint32_t aside_next, aside_prev;            /* links in that chain */
	uint32_t aside_of;                          /* the pruned request */
	uint32_t strands, strand_next, strand_prev; /* chain of the strands that have flows */
	uint8_t reserved[4];
};
_Static_assert(sizeof(struct request) == 128, "a request is two cache lines");
_Static_assert(offsetof(struct request, budget_ns) == 64, "what a submit and a pick need is one cache line");

struct destination {
	uint32_t waiting; /* number of flows */
	bool closed;
	uint32_t parked[MFS_TIERS]; /* root of a pairing heap of nodes; see parked.h */
};

struct parked {
	uint64_t high, low; /* key */
	struct pairing_links links;
	uint32_t hint;
};
_Static_assert(sizeof(struct parked) == 32, "two in a cache line");

/* A load of which nothing waits although its sender will submit more of it. */
struct split_load {
	uint64_t request; /* 0: none */
	uint64_t bytes_whole;
};
#define SPLIT_LOADS 64u

struct mfs_rmlq {
	struct mfs_policy policy;
	const struct policy_rules *rules;
	struct mfs_heap tier[MFS_TIERS]; /* nodes; all tiers share `position` */
	struct mfs_heap timer;           /* requests by the time of their next evaluation */
	uint32_t node_batch;             /* node of batch i: node_batch + i; node of request i: i */
	uint32_t node_parked; /* nodes from here on stand in for what is parked for a destination and tier */
	uint32_t waiting;
	uint32_t apart; /* number of closed destinations and parked nodes */
	struct destination *destination;
	struct parked *park; /* by node */
	uint32_t pruned_requests;
	uint64_t now_ns;
	uint64_t arrivals;
	struct mfs_slab flow, group, batch, request;
	uint64_t rate_bytes_per_s;
	bool incoming;            /* its flows are fetched from elsewhere: see mfs_rmlq_set_incoming */
	double rho;               /* used where last stages have levels, else 0 */
	struct mfs_heap slack;    /* announced batches by deadline - compute end */
	struct mfs_heap deadline; /* announced batches by deadline */
	uint32_t flows_max, requests_announced, batches_announced;
	uint32_t request_strands, batch_strands;
	uint64_t in_flight_bytes, promotions, evaluations;
	uint32_t in_flight_tasks;
	void (*promoted)(void *context, uint64_t cookie, uint32_t level,
			 bool critical); /* NULL: no observer */
	void *promoted_context;
	struct split_load split_load[SPLIT_LOADS]; /* the latest ones */
	uint32_t split_load_next;
	size_t memory_bytes; /* size of the mapping that starts with this structure */
};

static inline struct flow *flow_at(const struct mfs_rmlq *q, uint32_t i)
{
	return (struct flow *)mfs_slab_at(&q->flow, i);
}

static inline uint16_t flow_destination(const struct flow *flow)
{
	return (uint16_t)flow->record.chain;
}

static inline struct group *group_at(const struct mfs_rmlq *q, uint32_t i)
{
	return (struct group *)mfs_slab_at(&q->group, i);
}

static inline struct batch *batch_at(const struct mfs_rmlq *q, uint32_t i)
{
	return (struct batch *)mfs_slab_at(&q->batch, i);
}

static inline struct request *request_at(const struct mfs_rmlq *q, uint32_t i)
{
	return (struct request *)mfs_slab_at(&q->request, i);
}

/* The second half of a strand's key. Those of owners are less than 4. */
static inline uint32_t strand_part(uint32_t owner_part, uint16_t destination)
{
	return (uint32_t)destination << 3 | 4 | owner_part;
}

static inline void next_arrival_set(struct flow *flow, uint64_t arrival)
{
	flow->next_arrival = arrival & ((UINT64_C(1) << 56) - 1);
}

static inline void fifo_append(const struct mfs_rmlq *q, struct mfs_fifo *fifo, uint32_t i, struct flow *flow)
{
	flow->next = 0;
	flow->prev = fifo->tail;
	if (fifo->tail) {
		struct flow *tail = flow_at(q, fifo->tail);

		tail->next = i;
		next_arrival_set(tail, flow->arrival);
	} else {
		fifo->head = i;
	}
	fifo->tail = i;
}

static inline void fifo_remove(const struct mfs_rmlq *q, struct mfs_fifo *fifo, const struct flow *flow)
{
	if (flow->prev) {
		struct flow *prev = flow_at(q, flow->prev);

		prev->next = flow->next;
		prev->next_arrival = flow->next_arrival;
	} else {
		fifo->head = flow->next;
	}
	if (flow->next)
		flow_at(q, flow->next)->prev = flow->prev;
	else
		fifo->tail = flow->prev;
}

/* early.c: batches */
uint32_t early_batch(struct mfs_rmlq *q, uint64_t key);       /* finds or makes the record */
void early_batch_release(struct mfs_rmlq *q, uint32_t batch); /* forgets the batch if nothing refers to it */
void early_member_add(struct mfs_rmlq *q, uint32_t batch, uint32_t request);
void early_member_remove(struct mfs_rmlq *q, uint32_t request);
void early_submit(struct mfs_rmlq *q, uint32_t i, const struct mfs_flow *info);
void early_remove(struct mfs_rmlq *q, uint32_t i);
/* `bytes` of a waiting flow have arrived */
void early_shrink(struct mfs_rmlq *q, uint32_t i, uint64_t bytes);
/* returns the first early flow, setting aside demoted ones on the way; 0: none */
uint32_t early_head(struct mfs_rmlq *q);
/* Copies what the rules need to know of a waiting flow. */
void early_facts(const struct mfs_rmlq *q, const struct flow *flow, struct mfs_early_facts *facts);
bool early_demoted(const struct mfs_rmlq *q, uint64_t request, uint32_t batch);
void early_return(struct mfs_rmlq *q, uint32_t request); /* puts back all flows that were set aside for it */
void early_alone(struct mfs_rmlq *q, uint32_t i, uint64_t deadline_ns); /* queues a background flow */
void early_alone_remove(struct mfs_rmlq *q, uint32_t i);
void early_rate(struct mfs_rmlq *q); /* the port's rate has changed: what was late may be in time */
void early_announce(struct mfs_rmlq *q, uint32_t batch, const struct mfs_batch_context *context);
void early_end(struct mfs_rmlq *q, uint32_t batch);

/* last.c: requests */
uint32_t last_request(struct mfs_rmlq *q, uint64_t key); /* finds or makes the record */
void last_request_release(struct mfs_rmlq *q, uint32_t request);
void last_submit(struct mfs_rmlq *q, uint32_t i, const struct mfs_flow *info);
void last_remove(struct mfs_rmlq *q, uint32_t i);                       /* takes it out of the waiting set */
void last_shrink(struct mfs_rmlq *q, uint32_t request, uint64_t bytes); /* `bytes` have arrived */
void last_forget(struct mfs_rmlq *q, uint32_t i); /* the flow is gone and did not wait any more */
void last_promoted(struct mfs_rmlq *q, const struct request *request); /* counts it, calls the observer */
void last_evaluate(struct mfs_rmlq *q, uint32_t request); /* sets level, critical, lost; arms the timer */
void last_place(struct mfs_rmlq *q, uint32_t request);    /* sets tier and key */
void last_advance(struct mfs_rmlq *q);
int64_t last_unit_slack_ns(const struct mfs_rmlq *q);
uint8_t last_class(const struct mfs_rmlq *q, uint32_t request); /* its wire class in tier LAST */

/* Clears what follows the record's head. The size is a constant here, so this compiles to a few stores. */
#define record_clear(it) memset(&(it)->record + 1, 0, sizeof(*(it)) - sizeof((it)->record))

/* True if a last-stage flow of it waits. */
static inline bool request_waits(const struct request *request)
{
	return request->fifo.head || request->split;
}

/* Takes a record for a new request. Returns 0 when there is none. */
static inline uint32_t request_take(struct mfs_rmlq *q, uint64_t key, enum request_kind kind,
				    enum mfs_tier tier)
{
	uint32_t r = mfs_slab_take(&q->request, key, 0);
	struct request *request = request_at(q, r);

	if (!r)
		return 0;
	record_clear(request);
	request->kind = kind;
	request->tier = tier;
	request->level = q->rules->levels ? (uint8_t)q->policy.levels : 0;
	request->deadline_ns = MFS_TIME_MAX;
	request->timer_ns = MFS_TIME_NEVER;
	return r;
}

#endif
