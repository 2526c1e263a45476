/* The arbiter: the daemon's one native thread. It drains the clients' submit rings, keeps one reverse
 * multi-level queue and one in-flight window for each direction of each NIC, and grants the first flow in
 * order while the window has room.
 *
 * Control functions are called by the daemon's Python thread. They hand a command to the arbiter thread
 * and wait for its answer, so the data path needs no lock. They return 0 or -errno. */
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
	uint64_t heartbeat_ns;     /* interval between heartbeats, default 10 ms */
	uint64_t stale_after_ns;   /* written to clients, default 40 ms */
	uint64_t max_hold_ns;      /* written to clients */
	uint64_t window_ns;        /* in-flight window as time at the NIC's rate */
	uint64_t window_bytes_min; /* but at least this much */
	/* a gap between collectives that is waited through, up to a share of the free time of the link */
	uint64_t quiet_ns;
	uint64_t gate_max_ns; /* collectives close a direction to held flows for no longer than this */
	/* longest spin before the thread sleeps; adapted up to this limit; none where cores are few */
	uint64_t spin_ns;
	/* a slot that was claimed and not published for this long is skipped and counted */
	uint64_t torn_slot_ns;
	uint64_t load_time_constant_ns;    /* of the moving average that measures rho */
	uint64_t rate_default_bytes_per_s; /* for a NIC whose rate is not known */
	uint32_t tasks_max;                /* tasks queued for all clients together */
	/* CPUs that its threads may use, one bit each; no bit: those that the process may use */
	uint64_t cpus[MFS_CPUS_MAX / 64];
	enum mfs_mode mode;
};

struct mfs_nic_stats {
	char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	uint64_t window_bytes;                    /* of each direction */
	uint64_t in_flight_bytes[MFS_DIRECTIONS]; /* granted and not completed */
	uint64_t unscheduled_in_flight_bytes;     /* of stages that never wait */
	uint64_t held_bytes[MFS_CLASSES_MAX];     /* queued, by class */
	uint64_t held_tasks[MFS_CLASSES_MAX];
	uint64_t in_flight_class_bytes[MFS_CLASSES_MAX];
	uint64_t granted_bytes[MFS_CLASSES_MAX]; /* since start */
	uint64_t grants[MFS_CLASSES_MAX];
	uint64_t promotions;
	uint64_t wait_ns; /* total time from submit to grant, over all grants */
	/* rho: share of the rate taken by traffic that goes before the last stage, 0..1; below 0: not measured */
	double load[MFS_DIRECTIONS];
	uint64_t carried_bytes[MFS_DIRECTIONS][MFS_CLASSES_MAX]; /* completed by tasks, since start */
	uint64_t unscheduled_carried_bytes; /* completed by stages that never wait: both directions */
	uint64_t passed_bytes; /* completed without a permit in stages that ask for permits: outgoing only */
	double used[MFS_DIRECTIONS]; /* moving average of the share of the rate that was really used */
};

/* What programs with the shim have posted to a NIC since the daemon started. */
struct mfs_nic_counted {
	uint64_t posted_bytes[MFS_DIRECTIONS];
	uint64_t unscheduled_bytes; /* part of these, in each direction, of stages that never wait */
	uint64_t outstanding_bytes; /* posted and not completed, in both directions */
	uint64_t class_bytes[MFS_DIRECTIONS][MFS_CLASSES_MAX]; /* completed by tasks */
};

struct mfs_client_stats {
	uint32_t client_id;
	uint32_t state;        /* enum mfs_segment_state */
	int32_t detach_reason; /* -errno when state is MFS_SEGMENT_DETACHED */
	/* taken: the part of the grants that went on credit */
	uint64_t submits, grants, taken, completes, cancels;
	uint64_t torn_slots, bad_messages;
	uint64_t held_bytes, in_flight_bytes;
	uint64_t posted_bytes[MFS_STAGES_MAX], completed_bytes[MFS_STAGES_MAX];
	uint64_t collective_bytes[MFS_NICS_MAX]; /* completed bytes of stage 2, by NIC */
	uint32_t queue_pairs[MFS_ROLES_MAX];
	uint64_t report_held_bytes, report_permits, bypassed_overflow, bypassed_hold, bypassed_stale, hold_ns;
};

/* What the client reports of an NCCL communicator: struct mfs_communicator. */
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
	uint64_t waiting_tasks; /* all tasks that wait for a permit now */
	uint32_t clients, nics;
};

int mfs_arbiter_create(const struct mfs_arbiter_config *config, struct mfs_arbiter **arbiter);
int mfs_arbiter_start(struct mfs_arbiter *arbiter);
/* stops the thread; clients see MFS_SEGMENT_DETACHED */
void mfs_arbiter_destroy(struct mfs_arbiter *arbiter);

/* Creates, initialises and seals the segment of a new client. *memfd and *doorbell are for SCM_RIGHTS; the
 * caller closes them after sending. Returns the client id. -EUSERS: MFS_CLIENTS_MAX reached; -ENOSPC: no
 * memory for a segment. */
int mfs_arbiter_client_add(struct mfs_arbiter *arbiter, int *memfd, int *doorbell);
/* Forgets the client: its queued tasks are dropped, and its bytes in flight leave the window. */
int mfs_arbiter_client_remove(struct mfs_arbiter *arbiter, uint32_t client_id);

/* Returns the index of the NIC and adds it if it is new. A rate of 0 keeps the known rate. -ENOSPC:
 * MFS_NICS_MAX reached. */
int mfs_arbiter_nic(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s);

int mfs_arbiter_rules(struct mfs_arbiter *arbiter, const struct mfs_rule *rules, int n); /* for all clients */
int mfs_arbiter_mode(struct mfs_arbiter *arbiter, enum mfs_mode mode);
/* DSCP of each class on the wire, for all clients; MFS_DSCP_KEEP: none. */
int mfs_arbiter_wire(struct mfs_arbiter *arbiter, const uint8_t dscp[MFS_CLASSES_MAX]);

/* -ENOENT: no such NIC. Waits for the arbiter, then reads all clients' counters on the caller's thread. */
int mfs_arbiter_counted(struct mfs_arbiter *arbiter, uint32_t nic, struct mfs_nic_counted *counted);
/* Sets the rate of other traffic on the port, by direction. It counts as load until valid_until_ns and as
 * none after that. -ENOENT: no such NIC. */
int mfs_arbiter_bypass(struct mfs_arbiter *arbiter, uint32_t nic, const uint64_t bytes_per_s[MFS_DIRECTIONS],
		       uint64_t valid_until_ns);

/* ---- contexts and order ------------------------------------------------------------------------------------------ */

/* A batch that arrived, changed or ended, or one of whose requests did. */
struct mfs_change {
	uint32_t client_id;
	uint32_t slot;
};

/* A descriptor that becomes readable when contexts have changed since the last call of
 * mfs_arbiter_changed. The caller must read it empty before that call. The arbiter owns it. Layer
 * boundaries alone make it readable at most every 100 ms. */
int mfs_arbiter_notice_fd(const struct mfs_arbiter *arbiter);

struct mfs_batch_snapshot {
	uint64_t batch_id;
	uint64_t deadline_ns; /* as announced; 0: none */
	uint64_t compute_left_ns;
	uint32_t layers, layer_current;
	uint32_t rank;              /* MFS_RANK_NONE */
	uint32_t requests, demands; /* entries written to the arrays */
};

struct mfs_request_snapshot {
	uint64_t request_id, program_id;
	uint64_t deadline_ns, budget_ns; /* 0: none; 0: unknown */
	uint32_t value, flags;
	uint32_t rank, tokens_left; /* of a request that still queues */
	uint32_t pruned;
	uint32_t demands; /* number of its demands, which follow each other in the array */
};

struct mfs_demand_snapshot {
	uint64_t bytes, bytes_left; /* as announced; and what of it is not completed */
	uint8_t peer[16];
	uint16_t layer;
	uint8_t stage, nic, direction;
};

/* Copies one batch with its requests and their demands. The arrays must have room for MFS_REQUESTS_MAX and
 * MFS_DEMANDS_MAX entries. -ENOENT: no such client, or no batch in the slot. */
int mfs_arbiter_batch_snapshot(struct mfs_arbiter *arbiter, uint32_t client_id, uint32_t slot,
			       struct mfs_batch_snapshot *batch, struct mfs_request_snapshot *requests,
			       struct mfs_demand_snapshot *demands);

/* Takes one change and copies the batch as it is now, into arrays as above. A batch that changed several
 * times is one change. If the batch is gone, its batch_id is 0. Returns how many changes there were before
 * the call; 0: none, and nothing was written. Batches of clients that were removed are not reported. */
int mfs_arbiter_changed(struct mfs_arbiter *arbiter, struct mfs_change *change,
			struct mfs_batch_snapshot *batch, struct mfs_request_snapshot *requests,
			struct mfs_demand_snapshot *demands);

/* The request's last-stage flows go to the scavenger until it is unpruned (pruned 0). -ENOENT: the client
 * has announced no such request. */
int mfs_arbiter_request_prune(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t request_id,
			      int pruned);
/* Sets the rank of a batch in the order of the cluster; smaller goes first. */
int mfs_arbiter_batch_rank(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t batch_id, uint32_t rank);

/* ---- the outlook page: outlook.h --------------------------------------------------------------------------------- */

/* A port elsewhere, as known from the coordinator and from announced flows. */
struct mfs_far_port {
	uint8_t peer[16];          /* GID */
	uint32_t hash;             /* mfs_peer_hash of `peer` */
	uint32_t direction;        /* enum mfs_direction of the flows, as seen from this node */
	uint64_t rate_bytes_per_s; /* 0: unknown */
	uint64_t owed_ns;          /* or MFS_OUTLOOK_UNKNOWN */
};

/* Returns a descriptor of the page for a client; the caller closes it. -ENOENT: this kernel cannot seal one. */
int mfs_arbiter_outlook_fd(const struct mfs_arbiter *arbiter);
/* Replaces the far ports, up to MFS_OUTLOOK_FARS_MAX, and the pruned requests, up to MFS_OUTLOOK_PRUNED_MAX.
 * Sorts both arrays. -EINVAL: too many entries, or a direction that does not exist. */
int mfs_arbiter_outlook(struct mfs_arbiter *arbiter, struct mfs_far_port *fars, uint32_t fars_count,
			uint64_t *pruned, uint32_t pruned_count, uint64_t far_valid_until_ns,
			uint64_t pruned_valid_until_ns);

/* Takes one client of whose waiting requests (MFS_REQUEST_WAITING) some have changed, and copies all
 * waiting requests that it has now. The arrays must have room for MFS_REQUESTS_MAX and MFS_DEMANDS_MAX
 * entries. Returns how many such clients there were before the call; 0: none, and nothing was written. */
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
	uint8_t queued; /* 0: the task found the queue full, and `why` is empty */
	struct mfs_rmlq_snapshot why;
};

/* Copies up to n tasks of one client that wait or are in flight, from slot `first` on. A call reads at
 * most 1,024 slots. *next is where to go on; MFS_TASKS_MAX: that was all. Returns how many were written.
 * -ENOENT: no such client. */
int mfs_arbiter_tasks(struct mfs_arbiter *arbiter, uint32_t client_id, uint32_t first,
		      struct mfs_task_snapshot *tasks, int n, uint32_t *next);
/* -ENOENT: no such NIC or direction. */
int mfs_arbiter_facts(struct mfs_arbiter *arbiter, uint32_t nic, uint32_t direction,
		      struct mfs_rmlq_facts *facts);

int mfs_arbiter_stats(struct mfs_arbiter *arbiter, struct mfs_arbiter_stats *stats);
int mfs_arbiter_nic_stats(struct mfs_arbiter *arbiter, uint32_t nic,
			  struct mfs_nic_stats *stats); /* -ENOENT */
int mfs_arbiter_client_stats(struct mfs_arbiter *arbiter, uint32_t client_id, struct mfs_client_stats *stats);
/* Returns how many communicators there are, at most MFS_COMMUNICATORS_MAX. */
int mfs_arbiter_communicators(struct mfs_arbiter *arbiter, uint32_t client_id,
			      struct mfs_communicator_snapshot *snapshots);

#endif
