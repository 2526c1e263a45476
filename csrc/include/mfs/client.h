/* The client side: how a process attaches to its node's daemon and asks for permits to send.
 *
 * There are three primitives (submit, permit, completion) and what they need around them. All functions
 * return 0 or a count on success and -errno on failure. None blocks unless its comment gives a bound, and
 * none allocates memory after attach. All may be called from any thread. None but mfs_client_forget may be
 * called in a child after fork().
 *
 * A caller has one way to handle a lost daemon: mfs_client_alive returns false, submit returns -ENOTCONN,
 * and the caller posts without permits. */
#ifndef MFS_CLIENT_H
#define MFS_CLIENT_H

#include <mfs/abi.h>
#include <mfs/outlook.h>
#include <stdbool.h>

struct mfs_client;
/* Version of the layout of struct mfs_client; raised with every change of it. A process may hold several
 * copies of this code, such as the preloaded shim's and an engine's own. No copy may use a client made by
 * a copy of another layout. */
#define MFS_CLIENT_LAYOUT 1

struct mfs_client_options {
	const char *socket_path; /* NULL: $MFS_SOCKET, else /run/mfs/mfsd.sock */
	const char *process;     /* name given to the daemon; NULL: the program's own */
	enum mfs_mode mode;      /* the highest mode that this client allows */
	unsigned timeout_ms;     /* bound on the whole handshake; 0: 200 ms */
};

struct mfs_task {
	uint64_t bytes;
	uint64_t request_id;
	uint64_t deadline_ns;
	uint32_t batch; /* MFS_NONE_U32: none */
	uint16_t layer;
	uint8_t stage;
	uint8_t nic;
	uint8_t role;
	bool class_marked; /* goes out on the lane of its class: the wire keeps it apart from collectives */
	/* its bytes come to this node (RDMA READ): it waits for the incoming direction only */
	bool incoming;
	bool at_once; /* the caller handles submit returning 1: the task runs on credit and gets no permit */
	bool on_credit; /* with at_once: if there is no credit, submit queues nothing and returns -EAGAIN */
	uint32_t peer;  /* mfs_peer_hash of the remote port; 0: unknown */
	uint32_t queue; /* number of its queue pair, up to MFS_TASK_QUEUE_MAX; 0: none */
	/* The task's bytes plus those that this process will submit after it for the same request, stage,
	 * NIC and direction. The value of the latest task that has one counts. 0: not known; then what was
	 * submitted so far is taken for everything */
	uint64_t bytes_left;
};

/* Hashes the GID of a port. The result is the same in every process and on every host. It is 0 only for an
 * all-zero GID. */
uint32_t mfs_peer_hash(const uint8_t gid[16]);

/* Connects, checks versions and maps the segment, within timeout_ms. A daemon of a lower minor version is
 * accepted, too, and is sent only what it knows (mfs_client_minor). *why (may be NULL) points to a static
 * line for display.
 * -ENOENT, -ECONNREFUSED: no daemon; -EPROTO: version or size mismatch; -EACCES: refused; -EMFILE;
 * -ETIMEDOUT; -EPERM: secure-execution (setuid) process. */
int mfs_client_attach(const struct mfs_client_options *options, struct mfs_client **client, const char **why);

/* Returns the lower of the client's and the daemon's minor version. */
uint32_t mfs_client_minor(const struct mfs_client *client);

/* Gives the segment back. The caller guarantees that no other thread is inside a call. */
void mfs_client_detach(struct mfs_client *client);

/* For a child after fork: unmaps and closes without telling the daemon anything. Async-signal-safe. */
void mfs_client_forget(struct mfs_client *client);

/* Announces a NIC, within the attach timeout, and returns its index. A known NIC returns the index it has. */
int mfs_client_nic(struct mfs_client *client, const char *name, uint64_t guid, uint64_t rate_bytes_per_s);

/* The shared segment, for counters, gates, rules and batch contexts. */
struct mfs_segment *mfs_client_segment(struct mfs_client *client);

/* False once the daemon's heartbeat is older than stale_after_ns, or the daemon has detached us. Costs two loads. */
bool mfs_client_alive(const struct mfs_client *client, uint64_t now_ns);

/* True when the daemon's socket is closed: that daemon is gone for good, and a new attach is needed. One
 * system call. */
bool mfs_client_hung_up(struct mfs_client *client);

/* The cookie of a task that mfs_client_permits does not return: ask for it by its id with mfs_client_permit. */
#define MFS_COOKIE_NONE ((void *)UINTPTR_MAX)

/* Queues the task for a permit. *task_id identifies it from now on, and `cookie` comes back with its
 * permit.
 * Returns 0, or 1 for a task with at_once that may be posted now, on credit (client/credit.c). No permit
 * will arrive for that one; mfs_client_permit returns its class.
 * -EINVAL: more than MFS_TASK_BYTES_MAX; -ENOTCONN: the daemon is gone; -EAGAIN: no slot or the ring is
 * full, so post without a permit, behind what is held; or on_credit, and there is none. */
int mfs_client_submit(struct mfs_client *client, const struct mfs_task *task, void *cookie,
		      uint64_t *task_id);

struct mfs_permit {
	uint64_t task_id;
	void *cookie;
	uint32_t wire_class;
};

/* Takes up to n permits that have arrived and returns how many, 0 for none. Permits of cancelled tasks are
 * dropped silently. Lock-free. -EBUSY: another thread is taking permits right now and will serve them. */
int mfs_client_permits(struct mfs_client *client, struct mfs_permit *permits, int n);

/* True when mfs_client_permits would find a permit or has an owed message to send. Three loads. */
bool mfs_client_permits_pending(const struct mfs_client *client);

/* Sleeps on a futex until permits arrive or timeout_ns passes. Returns 0 or -ETIMEDOUT. */
int mfs_client_wait(struct mfs_client *client, uint64_t timeout_ns);

/* For a task with MFS_COOKIE_NONE: returns its wire class from its permit until its end. -EAGAIN: it still
 * waits; -ENOENT: it has ended. Lock-free. The call takes arrived permits of such tasks off the ring and
 * leaves the others to mfs_client_permits. It may thus take the permit of a task that the caller has
 * polled before, and so may the shim in a hook of its own; mfs_client_wait does not report that permit
 * again. A thread that polls several tasks must therefore poll all of them again when the header's
 * grant_word has moved since it began the round. */
int mfs_client_permit(struct mfs_client *client, uint64_t task_id);

/* Like mfs_client_permit, but sleeps until the permit arrives. -ETIMEDOUT; -ENOTCONN: the daemon is gone
 * or has detached us, so send without a permit and cancel the task as bypassed. */
int mfs_client_permit_wait(struct mfs_client *client, uint64_t task_id, uint64_t timeout_ns);

/* Submits a task and waits for its permit, for a sender that has nothing else to do. Returns the wire
 * class. Polls for some microseconds before it sleeps. -EALREADY: this stage need not ask; -ENODEV: no
 * such NIC; otherwise the errors of submit and permit_wait. *task_id is 0 if nothing was submitted;
 * otherwise the caller must complete or cancel the task. */
int mfs_client_ask(struct mfs_client *client, const struct mfs_task *task, uint64_t timeout_ns,
		   uint64_t *task_id);

/* Reports that the NIC has finished a permitted task. Never fails: if the ring is full, the message is sent later. */
void mfs_client_complete(struct mfs_client *client, uint64_t task_id);

/* The task needs no permit any more. `bypassed`: its bytes went out without one. A permit that is already
 * on its way counts as used. Never fails. */
void mfs_client_cancel(struct mfs_client *client, uint64_t task_id, bool bypassed);

/* Count bytes, by stage, that are given to the NIC or have completed. The doorbell is rung if held flows
 * wait for the NIC to become idle. */
void mfs_client_count_posted(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes);
void mfs_client_count_completed(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes);

/* Counts a task that goes without a permit, by reason. The shim counts its own tasks itself. */
enum mfs_open {
	MFS_OPEN_OVERFLOW = 0, /* ring or slots full */
	MFS_OPEN_HOLD = 1,     /* held for as long as max_hold allows */
	MFS_OPEN_STALE = 2,    /* the daemon is gone */
};
void mfs_client_count_open(struct mfs_client *client, enum mfs_open why);

/* ---- contexts: what the daemon orders by ----------------------------------------------------------------------- */

/* What a request will move: bytes of one stage and layer between a NIC of this node and a port elsewhere. */
struct mfs_demand_info {
	uint64_t bytes;
	uint8_t peer[16]; /* GID of the remote port, IPv4 as ::ffff:a.b.c.d; all zero: unknown */
	uint16_t layer;   /* L_target */
	uint8_t stage;    /* enum mfs_stage */
	uint8_t nic;
	uint8_t direction; /* enum mfs_direction */
};

struct mfs_request_info {
	uint64_t request_id;  /* unique in the cluster; not 0 */
	uint64_t program_id;  /* 0: none */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
	uint64_t budget_ns;   /* arrival to deadline; 0: unknown */
	uint32_t value;       /* 0: not given */
	uint32_t flags;       /* enum mfs_request_flags */
	uint32_t rank;        /* with MFS_REQUEST_WAITING: place in the engine's order, smaller goes first */
	uint32_t tokens_left; /* with MFS_REQUEST_WAITING: tokens to compute until its first output token */
	const struct mfs_demand_info *demands;
	uint32_t demands_count; /* up to MFS_REQUEST_DEMANDS_MAX; merge layers to stay within it */
};

struct mfs_batch_info {
	uint64_t batch_id; /* unique in the cluster, the same on all nodes of the unit; not 0 */
	uint32_t layers;
	/* the batch's robust effective deadline, if the engine knows better than its requests' deadlines */
	uint64_t deadline_ns;
	uint64_t compute_ns; /* estimate for all its layers */
	const struct mfs_request_info *requests;
	uint32_t requests_count;
	uint32_t *request_slots; /* out: one for each request; may be NULL */
};

/* Announces a batch together with its requests and returns the batch's slot. On an error nothing was
 * begun. -EINVAL: an id that is not allowed, or too many demands of one request; -ENOSPC: no slot for the
 * batch, a request or a demand. */
int mfs_client_batch_begin_with(struct mfs_client *client, const struct mfs_batch_info *info);
/* Announces a batch without requests and returns its slot. */
int mfs_client_batch_begin(struct mfs_client *client, uint64_t batch_id, uint32_t layers,
			   uint64_t deadline_ns, uint64_t compute_ns);
/* The batch begins this layer (L_curr). One atomic store and, if tasks wait for permits, a message. */
int mfs_client_batch_layer(struct mfs_client *client, uint32_t batch, uint32_t layer_current);
/* The batch and its requests have nothing left to compute or to send. -ENOENT: it has ended already. */
int mfs_client_batch_end(struct mfs_client *client, uint32_t batch);

/* Announces a request that comes later than its batch, or that has none (MFS_NONE_U32), and returns its
 * slot. Errors as for mfs_client_batch_begin_with. */
int mfs_client_request_begin(struct mfs_client *client, const struct mfs_request_info *info, uint32_t batch);
/* The request has nothing left to send, or was aborted. -ENOENT: it has ended already. */
int mfs_client_request_end(struct mfs_client *client, uint32_t request);
/* What the daemon has decided about the request: enum mfs_request_judgement. One load. */
uint32_t mfs_client_request_judgement(struct mfs_client *client, uint32_t request);

/* ---- the outlook page: what the network knows ------------------------------------------------------------------------ */

/* All calls return -ENODATA where nothing is known: there is no page, it is older than its time to live,
 * it is of another daemon, or it is written too often to be copied. None sleeps, and none makes a system
 * call apart from reading the clock. `now_ns` is CLOCK_MONOTONIC. */

/* One direction of a NIC of this node, for all its processes together. */
struct mfs_port_outlook {
	uint64_t rate_bytes_per_s;
	uint64_t waiting_bytes[MFS_OUTLOOK_TIERS]; /* by enum mfs_tier */
	uint64_t in_flight_bytes;
	uint64_t achieved_bytes_per_s;    /* recent rate of traffic that asks for permits */
	uint64_t unscheduled_bytes_per_s; /* recent rate of traffic that never waits */
};
int mfs_client_outlook_port(const struct mfs_client *client, unsigned nic, enum mfs_direction direction,
			    uint64_t now_ns, struct mfs_port_outlook *port);

/* A port elsewhere that flows of this node come from (MFS_DIRECTION_IN) or go to (MFS_DIRECTION_OUT). */
struct mfs_far_outlook {
	uint64_t rate_bytes_per_s; /* 0: unknown */
	/* time to serve what it is promised; MFS_OUTLOOK_UNKNOWN: no coordinator reports it */
	uint64_t owed_ns;
	uint64_t achieved_bytes_per_s; /* recent rate of this node's own flows there; 0: none */
};
int mfs_client_outlook_far(const struct mfs_client *client, const uint8_t peer[16],
			   enum mfs_direction direction, uint64_t now_ns, struct mfs_far_outlook *far);

/* 1: the request, of any process of this node, is pruned; 0: it is not. -ENODATA also where the page lists
 * it as pruned but the daemon has not confirmed that for a while. */
int mfs_client_pruned(const struct mfs_client *client, uint64_t request_id, uint64_t now_ns);

struct mfs_fetch {
	uint64_t bytes; /* through this node's NIC */
	/* through the owner's port: more where other NICs fetch parts of the same data */
	uint64_t far_bytes;
	/* Part of far_bytes that a request which still queues has announced. What the far port owes
	 * contains it already; it is subtracted there, since a fetch does not wait for itself. */
	uint64_t announced_bytes;
};
/* Estimates how long a fetch takes if it starts now. `peer` NULL: the owner is not known. If nothing is
 * known of the owner's port, this node's own port alone decides. `deadline_ns` 0: nothing waits for the
 * fetch, and it goes behind everything else. */
int mfs_client_fetch_ns(const struct mfs_client *client, unsigned nic, const struct mfs_fetch *fetch,
			const uint8_t peer[16], uint64_t deadline_ns, uint64_t *ns);
/* The calculation behind mfs_client_fetch_ns. `far` may be NULL. */
uint64_t mfs_fetch_forecast(const struct mfs_fetch *fetch, const struct mfs_port_outlook *own,
			    const struct mfs_far_outlook *far, enum mfs_tier tier);

/* Copies the whole page. In the copy all counts are within their tables, far_valid_until_ns is 0 if it has passed,
 * and the table of pruned requests is empty if its time has passed. -ENOENT: this daemon or kernel has no page. */
int mfs_client_outlook(const struct mfs_client *client, uint64_t now_ns, struct mfs_outlook *copy);

/* Copies the classification rules consistently and returns their number. 0 also if the daemon keeps
 * writing them for too long. */
int mfs_client_rules(struct mfs_client *client, struct mfs_rule *rules, int n, uint32_t *version);

#endif
