/* The client side: how a process attaches to its node's daemon and asks for permits to send.
 *
 * Three primitives (submit, permit, completion) and what they need around them. All functions return 0 or a count on
 * success and -errno on failure; none blocks unless its comment gives a bound; none allocates after attach. Every one
 * may be called from any thread. None may be called in a child after fork(): see mfs_client_forget.
 *
 * When the daemon is gone nothing here fails in a way that a caller must handle twice: mfs_client_alive turns false,
 * submit answers -ENOTCONN, and the caller posts natively.
 */
#ifndef MFS_CLIENT_H
#define MFS_CLIENT_H

#include <mfs/abi.h>
#include <mfs/outlook.h>
#include <stdbool.h>

struct mfs_client;
/* Of what mfs_client_attach gives; another number with any change of it. A process may hold several copies of this code, as
 * the preloaded shim's and an engine's own: none may use a client that one of another layout has made. */
#define MFS_CLIENT_LAYOUT 1

struct mfs_client_options {
	const char *socket_path; /* NULL: $MFS_SOCKET, else /run/mfs/mfsd.sock */
	const char *process;     /* name given to the daemon; NULL: the program's own */
	enum mfs_mode mode;      /* the most that this client allows */
	unsigned timeout_ms;     /* bound on the whole handshake; 0: 200 */
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
	bool class_marked; /* it will go out on the lane of the permitted class: the wire keeps it apart from collectives */
	bool incoming; /* its bytes come to this node (RDMA READ): it waits for that direction of the link only */
	bool at_once;   /* its submitter reads that submit answers 1: no permit will come */
	bool on_credit; /* and where it has none, nothing is to be asked: -EAGAIN */
	uint32_t peer;  /* mfs_peer_hash of the port it goes to; 0: unknown */
	uint32_t queue; /* number of the queue pair it goes on, up to MFS_TASK_QUEUE_MAX; 0: none */
	/* Its bytes, and those that this process will ask for behind it for the same request, stage, NIC and direction; the latest
	 * task that says it holds. 0: not known, and what has been asked for so far is taken for all that there is */
	uint64_t bytes_left;
};

/* A number for the port of this GID: the same in every process and on every host, and never 0 but for a GID of zeros. */
uint32_t mfs_peer_hash(const uint8_t gid[16]);

/* Connects, checks versions and maps the segment, within timeout_ms. A daemon of a lower minor version is taken, too, and
 * sent only what it knows: mfs_client_minor.
 * -ENOENT/-ECONNREFUSED no daemon; -EPROTO version or size mismatch; -EACCES refused; -EMFILE; -ETIMEDOUT; -EPERM in a
 * secure-execution (setuid) process. *why (may be NULL) points to a static line for display. */
int mfs_client_attach(const struct mfs_client_options *options, struct mfs_client **client, const char **why);

/* The lower of the client's and the daemon's minor version. */
uint32_t mfs_client_minor(const struct mfs_client *client);

/* Gives the segment back. The caller guarantees that no other thread is inside a call. */
void mfs_client_detach(struct mfs_client *client);

/* In a child after fork: unmaps and closes without telling the daemon anything. Async-signal-safe. */
void mfs_client_forget(struct mfs_client *client);

/* Names a NIC; bounded by the attach timeout; answers its index (also for a NIC already named). */
int mfs_client_nic(struct mfs_client *client, const char *name, uint64_t guid, uint64_t rate_bytes_per_s);

/* The shared segment, for counters, gates, rules and batch contexts. */
struct mfs_segment *mfs_client_segment(struct mfs_client *client);

/* False once the daemon's heartbeat is older than stale_after_ns or it detached us. Costs two loads. */
bool mfs_client_alive(const struct mfs_client *client, uint64_t now_ns);

/* True when the daemon's socket is closed: the daemon is dead for good and a new attach is needed. One system call. */
bool mfs_client_hung_up(struct mfs_client *client);

/* The cookie of a task whose permit is not handed out: it is asked about by its id, see mfs_client_permit. */
#define MFS_COOKIE_NONE ((void *)UINTPTR_MAX)

/* Queues the task for a permit. *task_id identifies it from now on; the caller may bind `cookie` to it. 1, for a task that
 * says at_once: it has its permit, on credit (client/credit.c), and mfs_client_permit answers its class; none will come.
 * -EINVAL more than MFS_TASK_BYTES_MAX; -ENOTCONN daemon gone; -EAGAIN no slot or ring full: post natively behind what is held. */
int mfs_client_submit(struct mfs_client *client, const struct mfs_task *task, void *cookie,
		      uint64_t *task_id);

struct mfs_permit {
	uint64_t task_id;
	void *cookie;
	uint32_t wire_class;
};

/* Takes up to n permits that have arrived; 0 when there are none; -EBUSY when another thread is taking them right now
 * (it will serve them). Permits of cancelled tasks are swallowed. Lock-free. */
int mfs_client_permits(struct mfs_client *client, struct mfs_permit *permits, int n);

/* True when a call of mfs_client_permits would find something or has something to send. Three loads. */
bool mfs_client_permits_pending(const struct mfs_client *client);

/* Sleeps until permits arrive or timeout_ns passes (futex). 0, or -ETIMEDOUT. */
int mfs_client_wait(struct mfs_client *client, uint64_t timeout_ns);

/* For a task with MFS_COOKIE_NONE: its class on the wire once it is permitted, until it ends; -EAGAIN: it waits; -ENOENT:
 * it has ended. Takes arrived permits of such tasks, and leaves the others to mfs_client_permits. Lock-free. A thread that
 * polls several tasks polls all of them again when the header's grant_word has moved since a round began: this call, or
 * the shim in a hook of its own, may have taken the permit of a task that was asked about before, and mfs_client_wait
 * does not report it again. */
int mfs_client_permit(struct mfs_client *client, uint64_t task_id);

/* The same, and sleeps until then. -ETIMEDOUT; -ENOTCONN: the daemon is gone or gave us up: send without a permit and
 * cancel the task as bypassed. */
int mfs_client_permit_wait(struct mfs_client *client, uint64_t task_id, uint64_t timeout_ns);

/* Submits and waits in one, for a task whose sender has nothing else to do: answers its class on the wire. Looks a few
 * microseconds before it sleeps. -EALREADY: its stage need not ask; -ENODEV: no such NIC; else the errors of submit and
 * permit_wait. *task_id is 0 where nothing was submitted; otherwise the task is to be completed or cancelled. */
int mfs_client_ask(struct mfs_client *client, const struct mfs_task *task, uint64_t timeout_ns,
		   uint64_t *task_id);

/* The NIC has finished a permitted task. Never fails: what finds the ring full is sent later. */
void mfs_client_complete(struct mfs_client *client, uint64_t task_id);

/* The task needs no permit any more. `bypassed`: its bytes went out without one. A permit that is already under way
 * counts as used. Never fails. */
void mfs_client_cancel(struct mfs_client *client, uint64_t task_id, bool bypassed);

/* Counts bytes that go to the NIC or have come back, by stage; rings the doorbell if held flows wait for idleness. */
void mfs_client_count_posted(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes);
void mfs_client_count_completed(struct mfs_client *client, unsigned nic, unsigned stage, uint64_t bytes);

/* Counts a task that goes without a permit. Of the three the shim counts its own. */
enum mfs_open {
	MFS_OPEN_OVERFLOW = 0, /* ring or slots full */
	MFS_OPEN_HOLD = 1,     /* waited for as long as it may */
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
	uint32_t tokens_left; /* with MFS_REQUEST_WAITING: to compute until its first token */
	const struct mfs_demand_info *demands;
	uint32_t demands_count; /* up to MFS_REQUEST_DEMANDS_MAX: merge layers beyond it */
};

struct mfs_batch_info {
	uint64_t batch_id; /* unique in the cluster, the same on all nodes of the unit; not 0 */
	uint32_t layers;
	uint64_t
		deadline_ns; /* the batch's robust effective deadline, if the engine knows it better than its requests' */
	uint64_t compute_ns; /* of all its layers, estimated */
	const struct mfs_request_info *requests;
	uint32_t requests_count;
	uint32_t *request_slots; /* written, one for each request; may be NULL */
};

/* Tells the daemon of a batch and its requests at once; answers its slot. -EINVAL: an id that is not allowed, or too many
 * demands of one request; -ENOSPC: no slot for the batch, a request or a demand, and then nothing was begun. */
int mfs_client_batch_begin_with(struct mfs_client *client, const struct mfs_batch_info *info);
/* A batch without requests. */
int mfs_client_batch_begin(struct mfs_client *client, uint64_t batch_id, uint32_t layers,
			   uint64_t deadline_ns, uint64_t compute_ns);
/* The batch begins this layer (L_curr). One atomic store and, if flows are held, a message. */
int mfs_client_batch_layer(struct mfs_client *client, uint32_t batch, uint32_t layer_current);
/* The batch and its requests have nothing left to compute and to send. -ENOENT: it has ended already. */
int mfs_client_batch_end(struct mfs_client *client, uint32_t batch);

/* A request that comes later than its batch, or has none (MFS_NONE_U32); answers its slot. Errors as above. */
int mfs_client_request_begin(struct mfs_client *client, const struct mfs_request_info *info, uint32_t batch);
/* It has nothing left to send, or was aborted. -ENOENT: it has ended already. */
int mfs_client_request_end(struct mfs_client *client, uint32_t request);
/* What the daemon thinks of it: enum mfs_request_judgement. One load. */
uint32_t mfs_client_request_judgement(struct mfs_client *client, uint32_t request);

/* ---- the outlook page: what the network knows ------------------------------------------------------------------------ */

/* Every call answers -ENODATA where nothing is known: no page, one that is older than its time to live, of another daemon,
 * or that is written too often to be copied. None sleeps or makes a system call but for the clock. `now_ns` is CLOCK_MONOTONIC. */

/* One direction of a NIC of this node, used by all its processes. */
struct mfs_port_outlook {
	uint64_t rate_bytes_per_s;
	uint64_t waiting_bytes[MFS_OUTLOOK_TIERS]; /* by enum mfs_tier */
	uint64_t in_flight_bytes;
	uint64_t achieved_bytes_per_s;    /* of late, of what asks for permits */
	uint64_t unscheduled_bytes_per_s; /* of late, of what never waits */
};
int mfs_client_outlook_port(const struct mfs_client *client, unsigned nic, enum mfs_direction direction,
			    uint64_t now_ns, struct mfs_port_outlook *port);

/* A port elsewhere that flows of this node come from (MFS_DIRECTION_IN) or go to. */
struct mfs_far_outlook {
	uint64_t rate_bytes_per_s;     /* 0: unknown */
	uint64_t owed_ns;              /* MFS_OUTLOOK_UNKNOWN: no coordinator says it */
	uint64_t achieved_bytes_per_s; /* of this node's own flows there; 0: none */
};
int mfs_client_outlook_far(const struct mfs_client *client, const uint8_t peer[16],
			   enum mfs_direction direction, uint64_t now_ns, struct mfs_far_outlook *far);

/* 1: the request, of any process of this node, is pruned; 0: it is not. -ENODATA, too, where the daemon has not said for a
 * while that it still is. */
int mfs_client_pruned(const struct mfs_client *client, uint64_t request_id, uint64_t now_ns);

struct mfs_fetch {
	uint64_t bytes;     /* through the own NIC */
	uint64_t far_bytes; /* through the owner's port: more, where other NICs fetch parts of the same */
	/* of far_bytes, what a request that still queues has announced: what is owed there contains it, and a fetch does
	 * not go before itself */
	uint64_t announced_bytes;
};
/* How long a fetch would take from now on. `peer` NULL: the owner is not known; of one of which nothing is known the own port
 * alone answers. `deadline_ns` 0: nothing waits for it, and it goes behind all that does. */
int mfs_client_fetch_ns(const struct mfs_client *client, unsigned nic, const struct mfs_fetch *fetch,
			const uint8_t peer[16], uint64_t deadline_ns, uint64_t *ns);
/* The arithmetic of it. `far` may be NULL. */
uint64_t mfs_fetch_forecast(const struct mfs_fetch *fetch, const struct mfs_port_outlook *own,
			    const struct mfs_far_outlook *far, enum mfs_tier tier);

/* A copy of the whole page; counts are within their tables, far_valid_until_ns is 0 where it has passed, and no request is
 * pruned where that is not known. -ENOENT: this daemon or kernel has no page. */
int mfs_client_outlook(const struct mfs_client *client, uint64_t now_ns, struct mfs_outlook *copy);

/* A consistent copy of the classification rules; answers their number, 0 if the daemon is busy writing for too long. */
int mfs_client_rules(struct mfs_client *client, struct mfs_rule *rules, int n, uint32_t *version);

#endif
