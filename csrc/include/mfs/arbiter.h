/* The arbiter: the daemon's one native thread. It drains the clients' submit rings, keeps one reverse multi-level queue
 * and one in-flight window per NIC, and grants the first flow in order while the window has room.
 *
 * Control functions are called by the daemon's Python thread; they hand a command to the arbiter thread and wait for
 * its answer, so that the data path needs no lock. They return 0 or -errno.
 */
#ifndef MFS_ARBITER_H
#define MFS_ARBITER_H

#include <mfs/abi.h>
#include <mfs/rmlq.h>

#define MFS_CLIENTS_MAX 256

struct mfs_arbiter;

struct mfs_arbiter_config {
	struct mfs_policy policy; /* rmlq.h */
	uint64_t epoch;
	uint64_t heartbeat_ns;	  /* how often heartbeats are written, default 10 ms */
	uint64_t stale_after_ns;  /* told to clients, default 40 ms */
	uint64_t max_hold_ns;	  /* told to clients */
	uint64_t window_ns;	  /* in-flight window as time at the NIC's rate */
	uint64_t window_bytes_min; /* but at least this much */
	uint64_t quiet_ns;	  /* unscheduled traffic must have been idle this long before held flows are granted */
	uint64_t spin_ns;	  /* longest spin before the thread sleeps; adapted below it */
	uint64_t torn_slot_ns;	  /* a claimed slot not published for this long is skipped and counted */
	uint64_t rate_default_bytes_per_s; /* for a NIC whose rate is not known */
	uint32_t tasks_max;	  /* queued over all clients */
	enum mfs_mode mode;
};

struct mfs_nic_stats {
	char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	uint64_t window_bytes;
	uint64_t in_flight_bytes;		   /* granted and not completed */
	uint64_t unscheduled_in_flight_bytes;	   /* stages that never wait */
	uint64_t held_bytes[MFS_CLASSES_MAX];	   /* queued, by class */
	uint64_t held_tasks[MFS_CLASSES_MAX];
	uint64_t in_flight_class_bytes[MFS_CLASSES_MAX];
	uint64_t granted_bytes[MFS_CLASSES_MAX];   /* since start */
	uint64_t grants[MFS_CLASSES_MAX];
	uint64_t promotions;
	uint64_t wait_ns;			   /* summed over grants: submit to grant */
	double load;				   /* rho: share of the rate taken by what goes before, 0..1 */
};

struct mfs_client_stats {
	uint32_t client_id;
	uint32_t state; /* enum mfs_segment_state */
	int32_t detach_reason; /* -errno when state is MFS_SEGMENT_DETACHED */
	uint64_t submits, grants, completes, cancels;
	uint64_t torn_slots, bad_messages;
	uint64_t held_bytes, in_flight_bytes;
	uint64_t posted_bytes[MFS_STAGES_MAX], completed_bytes[MFS_STAGES_MAX];
	uint32_t queue_pairs[MFS_ROLES_MAX];
	uint64_t report_held_bytes, report_permits, bypassed_overflow, bypassed_hold, bypassed_stale, hold_ns;
};

struct mfs_arbiter_stats {
	uint64_t loops, wakeups, messages, grants;
	uint64_t cpu_ns;
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
/* The order of a batch across the cluster, smaller first; and whether it was pruned. */
int mfs_arbiter_batch_rank(struct mfs_arbiter *arbiter, uint32_t client_id, uint64_t batch_id, uint32_t rank, int pruned);

int mfs_arbiter_stats(struct mfs_arbiter *arbiter, struct mfs_arbiter_stats *stats);
int mfs_arbiter_nic_stats(struct mfs_arbiter *arbiter, uint32_t nic, struct mfs_nic_stats *stats); /* -ENOENT */
int mfs_arbiter_client_stats(struct mfs_arbiter *arbiter, uint32_t client_id, struct mfs_client_stats *stats);

#endif
