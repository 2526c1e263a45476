/* The arbiter: the daemon's one native thread. It drains the clients' submit rings, keeps one reverse multi-level queue
 * and one in-flight window for each direction of each NIC, and grants the first flow in order while the window has room.
 *
 * Control functions are called by the daemon's Python thread; they hand a command to the arbiter thread and wait for
 * its answer, so that the data path needs no lock. They return 0 or -errno.
 */
#ifndef MFS_ARBITER_H
#define MFS_ARBITER_H

#include <mfs/abi.h>
#include <mfs/outlook.h>
#include <mfs/rmlq.h>

#define MFS_CLIENTS_MAX 1024
#define MFS_CPUS_MAX 1024

struct mfs_arbiter;

struct mfs_arbiter_config {
	struct mfs_policy policy; /* rmlq.h */
	uint64_t epoch;
	uint64_t heartbeat_ns;     /* how often heartbeats are written, default 10 ms */
	uint64_t stale_after_ns;   /* written to clients, default 40 ms */
	uint64_t max_hold_ns;      /* written to clients */
	uint64_t window_ns;        /* in-flight window as time at the NIC's rate */
	uint64_t window_bytes_min; /* but at least this much */
	uint64_t
		quiet_ns; /* a silence between collectives that is waited through, within a share of the free link */
	uint64_t gate_max_ns; /* collectives close a direction to held flows for no longer than this */
	uint64_t
		spin_ns; /* longest spin before the thread sleeps; adapted below it; none where cores are few */
	uint64_t torn_slot_ns; /* a claimed slot not published for this long is skipped and counted */
	uint64_t load_time_constant_ns;    /* of the moving average that measures rho */
	uint64_t rate_default_bytes_per_s; /* for a NIC whose rate is not known */
	uint32_t tasks_max;                /* queued over all clients */
	uint64_t cpus[MFS_CPUS_MAX /
		      64]; /* that its threads may use, one bit each; none: those that the process may use */
	enum mfs_mode mode;
};

struct mfs_nic_stats {
	char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	uint64_t window_bytes;                    /* of either direction */
	uint64_t in_flight_bytes[MFS_DIRECTIONS]; /* granted and not completed */
	uint64_t unscheduled_in_flight_bytes;     /* stages that never wait */
	uint64_t held_bytes[MFS_CLASSES_MAX];     /* queued, by class */
	uint64_t held_tasks[MFS_CLASSES_MAX];
	uint64_t in_flight_class_bytes[MFS_CLASSES_MAX];
	uint64_t granted_bytes[MFS_CLASSES_MAX]; /* since start */
	uint64_t grants[MFS_CLASSES_MAX];
	uint64_t promotions;
	uint64_t wait_ns; /* summed over grants: submit to grant */
	double load
		[MFS_DIRECTIONS]; /* rho: share of the rate taken by what goes before, 0..1; below 0: not measured */
	uint64_t carried_bytes[MFS_DIRECTIONS][MFS_CLASSES_MAX]; /* completed by tasks, since start */
	uint64_t unscheduled_carried_bytes; /* completed by stages that never wait: both directions */
	uint64_t passed_bytes;              /* completed in other stages without a permit: going out */
	double used[MFS_DIRECTIONS]; /* moving average of the share of the rate that was really taken */
};

/* What programs with the shim have given to a NIC since the daemon started. */
struct mfs_nic_counted {
	uint64_t posted_bytes[MFS_DIRECTIONS];
	uint64_t unscheduled_bytes; /* of these in each direction, of stages that never wait */
	uint64_t outstanding_bytes; /* posted and not completed, in both directions */
	uint64_t class_bytes[MFS_DIRECTIONS][MFS_CLASSES_MAX]; /* completed by tasks */
};

struct mfs_client_stats {
	uint32_t client_id;
	uint32_t state;                                      /* enum mfs_segment_state */
	int32_t detach_reason;                               /* -errno when state is MFS_SEGMENT_DETACHED */
	uint64_t submits, grants, taken, completes, cancels; /* taken: of the grants, on credit */
	uint64_t torn_slots, bad_messages;
	uint64_t held_bytes, in_flight_bytes;
	uint64_t posted_bytes[MFS_STAGES_MAX], completed_bytes[MFS_STAGES_MAX];
	uint64_t collective_bytes[MFS_NICS_MAX]; /* completed, of stage 2, by NIC */
	uint32_t queue_pairs[MFS_ROLES_MAX];
	uint64_t report_held_bytes, report_permits, bypassed_overflow, bypassed_hold, bypassed_stale, hold_ns;
};

/* What the client says of an NCCL communicator: struct mfs_communicator. */
struct mfs_communicator_snapshot {
	uint64_t id;
	char name[32];
	uint32_t rank, ranks;
	uint64_t operations, operation_bytes, work_requests, batch_bytes;
	uint64_t bytes[MFS_OPERATIONS_MAX];
	uint32_t batch, layer;
};

struct mfs_arbiter_stats {
	uint64_t loops, wakeups, messages, grants;
	uint64_t cpu_ns;
	uint64_t waiting_tasks; /* all that wait for a permit now */
	uint32_t clients, nics;
};

int mfs_arbiter_create(const struct mfs_arbiter_config *config, struct mfs_arbiter **arbiter);
int mfs_arbiter_start(struct mfs_arbiter *arbiter);
void mfs_arbiter_destroy(struct mfs_arbiter *arbiter); /* stops the thread; clients see state DETACHED */

/* Creates, initialises and seals the segment of a new client. *memfd and *doorbell are for SCM_RIGHTS; the caller closes
 * them after sending. Answers the client id. -EUSERS: MFS_CLIENTS_MAX reached; -ENOSPC: no memory for a segment. */
int mfs_arbiter_client_add(struct mfs_arbiter *arbiter, int *memfd, int *doorbell);
/* Forgets the client: its queued tasks are dropped and its bytes in flight are given back to the window. */
int mfs_arbiter_client_remove(struct mfs_arbiter *arbiter, uint32_t client_id);

/* Answers the index of the NIC, adding it if new. A rate of 0 keeps what is known. -ENOSPC: MFS_NICS_MAX reached. */
int mfs_arbiter_nic(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s);

int mfs_arbiter_rules(struct mfs_arbiter *arbiter, const struct mfs_rule *rules, int n); /* for all clients */
int mfs_arbiter_mode(struct mfs_arbiter *arbiter, enum mfs_mode mode);
/* DSCP of each class on the wire, for all clients; MFS_DSCP_KEEP: none. */
int mfs_arbiter_wire(struct mfs_arbiter *arbiter, const uint8_t dscp[MFS_CLASSES_MAX]);

/* -ENOENT: no such NIC. Waits for the arbiter, and reads all clients' counters on the caller's thread. */
int mfs_arbiter_counted(struct mfs_arbiter *arbiter, uint32_t nic, struct mfs_nic_counted *counted);
/* What else the port carries, by direction: it is taken for load until then, and after that for none. -ENOENT. */
int mfs_arbiter_bypass(struct mfs_arbiter *arbiter, uint32_t nic, const uint64_t bytes_per_s[MFS_DIRECTIONS],
		       uint64_t valid_until_ns);

/* ---- contexts and order ------------------------------------------------------------------------------------------ */

/* A batch that arrived, changed or ended, or whose requests did. */
struct mfs_change {
	uint32_t client_id;
	uint32_t slot;
};

/* Readable once contexts have changed since mfs_arbiter_changed was called; the caller reads it dry first. Owned by the
 * arbiter. Layer boundaries alone make it readable every 100 ms at most. */
int mfs_arbiter_notice_fd(const struct mfs_arbiter *arbiter);

struct mfs_batch_snapshot {
	uint64_t batch_id;
	uint64_t deadline_ns; /* as announced; 0: none */
	uint64_t compute_left_ns;
	uint32_t layers, layer_current;
	uint32_t rank;              /* MFS_RANK_NONE */
	uint32_t requests, demands; /* written to the arrays */
};

struct mfs_request_snapshot {
	uint64_t request_id, program_id;
	uint64_t deadline_ns, budget_ns; /* 0: none, unknown */
	uint32_t value, flags;
	uint32_t rank, tokens_left; /* of one that still queues */
	uint32_t pruned;
	uint32_t demands; /* the next so many of the array */
};

struct mfs_demand_snapshot {
	uint64_t bytes, bytes_left; /* announced; less what was completed */
	uint8_t peer[16];
	uint16_t layer;
	uint8_t stage, nic, direction;
};

/* One batch with its requests and their demands; arrays of MFS_REQUESTS_MAX and MFS_DEMANDS_MAX hold all there can be.
 * -ENOENT: no such client, or no batch in the slot. */
int mfs_arbiter_batch_snapshot(struct mfs_arbiter *arbiter, uint32_t client_id, uint32_t slot,
			       struct mfs_batch_snapshot *batch, struct mfs_request_snapshot *requests,
			       struct mfs_demand_snapshot *demands);

/* Takes a change, once however often the batch changed, with the batch as it is now (its batch_id is 0 when it is gone) in
 * arrays as above. Answers how many changes there were; 0: none, and nothing was written. The batches of clients that were
 * removed are not among them. */
int mfs_arbiter_changed(struct mfs_arbiter *arbiter, struct mfs_change *change,
			struct mfs_batch_snapshot *batch, struct mfs_request_snapshot *requests,
			struct mfs_demand_snapshot *demands);

/* Its last-stage flows go to the scavenger, until it is unpruned. -ENOENT: the client has announced no such request. */
int mfs_arbiter_request_prune(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t request_id,
			      int pruned);
/* The order of a batch across the cluster, smaller first. */
int mfs_arbiter_batch_rank(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t batch_id, uint32_t rank);

/* ---- the outlook page: outlook.h --------------------------------------------------------------------------------- */

/* A port elsewhere, as the coordinator and the flows that were announced tell of it. */
struct mfs_far_port {
	uint8_t peer[16];          /* GID */
	uint32_t hash;             /* mfs_peer_hash of that */
	uint32_t direction;        /* enum mfs_direction of the flows, as seen from this node */
	uint64_t rate_bytes_per_s; /* 0: unknown */
	uint64_t owed_ns;          /* MFS_OUTLOOK_UNKNOWN */
};

/* A descriptor of the page for a client; the caller closes it. -ENOENT: this kernel cannot seal one. */
int mfs_arbiter_outlook_fd(const struct mfs_arbiter *arbiter);
/* Replaces far ports, up to MFS_OUTLOOK_FARS_MAX, and pruned requests, up to MFS_OUTLOOK_PRUNED_MAX. Sorts both arrays.
 * -EINVAL: more, or no direction. */
int mfs_arbiter_outlook(struct mfs_arbiter *arbiter, struct mfs_far_port *fars, uint32_t fars_count,
			uint64_t *pruned, uint32_t pruned_count, uint64_t far_valid_until_ns,
			uint64_t pruned_valid_until_ns);

/* Takes a client whose requests that still queue (MFS_REQUEST_WAITING) have changed, with all that it has now: arrays of
 * MFS_REQUESTS_MAX and MFS_DEMANDS_MAX hold them. Answers how many such clients there were; 0: none, and nothing was written. */
int mfs_arbiter_waiting(struct mfs_arbiter *arbiter, uint32_t *client_id,
			struct mfs_request_snapshot *requests, uint32_t *requests_count,
			struct mfs_demand_snapshot *demands);

/* ---- what there is to see ---------------------------------------------------------------------------------------- */

struct mfs_task_snapshot {
	uint64_t task; /* slot and generation */
	uint64_t bytes;
	uint64_t submit_ns;
	uint64_t request_id, batch_id; /* 0: none */
	uint64_t deadline_ns;          /* as submitted with the task; 0: none */
	uint32_t in_flight;
	uint16_t layer;
	uint8_t stage, nic, direction;
	uint8_t wire_class;
	uint8_t queued; /* 0: it found the queue full; `why` is empty */
	struct mfs_rmlq_snapshot why;
};

/* Tasks of one client that wait or are in flight, from slot `first` on, up to n of them; a call reads no more than 1,024
 * slots. *next: where to go on; MFS_TASKS_MAX: that was all. Answers how many were written. -ENOENT. */
int mfs_arbiter_tasks(struct mfs_arbiter *arbiter, uint32_t client_id, uint32_t first,
		      struct mfs_task_snapshot *tasks, int n, uint32_t *next);
/* -ENOENT: no such NIC or direction. */
int mfs_arbiter_facts(struct mfs_arbiter *arbiter, uint32_t nic, uint32_t direction,
		      struct mfs_rmlq_facts *facts);

int mfs_arbiter_stats(struct mfs_arbiter *arbiter, struct mfs_arbiter_stats *stats);
int mfs_arbiter_nic_stats(struct mfs_arbiter *arbiter, uint32_t nic,
			  struct mfs_nic_stats *stats); /* -ENOENT */
int mfs_arbiter_client_stats(struct mfs_arbiter *arbiter, uint32_t client_id, struct mfs_client_stats *stats);
/* Answers how many there are, at most MFS_COMMUNICATORS_MAX. */
int mfs_arbiter_communicators(struct mfs_arbiter *arbiter, uint32_t client_id,
			      struct mfs_communicator_snapshot *snapshots);

#endif
