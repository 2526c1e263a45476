/* The layout of the memory that one client process shares with the daemon of its node.
 *
 * The daemon creates one sealed memfd for every client process and hands it over on a unix socket. Both
 * sides map all of it. The client can write anywhere in it. The daemon therefore copies what it reads,
 * checks the copy, and keeps its own state elsewhere: nothing that a client writes here can harm the
 * daemon or another client.
 *
 * Versions: a client refuses a segment whose major number differs from its own. A new field takes reserved
 * bytes or the segment's end and raises the minor number; a changed meaning or place raises the major
 * number. A client maps as much of a longer segment as it knows. With a daemon of a lower minor version it
 * uses only what that daemon knows: it sets no message field that was added later, and in place of the
 * tables behind the end of that segment it maps private memory that the daemon never reads.
 *
 * Memory order of the shared words, stated once for the whole project:
 *  - rings: see ring.h.
 *  - heartbeat_ns, gate, mode, state: written by the daemon with release; read by the client with acquire
 *    on slow paths and relaxed on the posting path. Each is meaningful alone: no other data is published
 *    through it. A heartbeat may lie in the future (since minor 3): the daemon has nothing to do and will
 *    write the next one by then. A client that rings the doorbell replaces such a heartbeat by the present
 *    time. It has read arbiter_asleep before (stored with release, loaded with acquire), so it sees the
 *    heartbeat that belongs to it.
 *  - usage counters: any thread of the client adds to them, relaxed. A usage shard is written by one
 *    thread alone, without a locked instruction. The daemon reads them relaxed (usage.h). `posted` is
 *    added before the work request reaches the NIC and `completed` after its completion was seen, so
 *    posted - completed is too low for one reading at most; the daemon clamps a negative difference to
 *    zero.
 *  - contexts (batches, requests, demands): a slot is claimed by compare-and-swap with acquire, filled
 *    relaxed, and published by a release store of its id. The daemon reads the id with acquire and the
 *    rest relaxed. A reader that meets a change halfway sees a mixture once: every change is followed by a
 *    message that makes it read again, and it checks every field of its copy. `version` distinguishes two
 *    uses of a slot with the same id.
 *  - judgement: written by the daemon relaxed, read relaxed; meaningful alone.
 *  - credit: written by the daemon relaxed, read relaxed. A client that reads an old value sends at most
 *    that credit once more, and its message reports that.
 *  - doorbell protocol (arbiter_asleep, grant_waiters): the sleeper stores its flag with seq_cst and reads
 *    the queue once more before it sleeps. The waker stores to the queue, issues a seq_cst fence and then
 *    reads the flag. At least one of them sees the other's store (Dekker), so no wake-up is lost. */
#ifndef MFS_ABI_H
#define MFS_ABI_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* "FMSABI1\0" in memory order, so a wrong byte order is noticed at once */
#define MFS_ABI_MAGIC 0x0031494241534d46ULL
#define MFS_ABI_MAJOR 1
#define MFS_ABI_MINOR 8

#define MFS_CACHE_LINE 64
#define MFS_NICS_MAX 64       /* NICs of one node */
#define MFS_NICS_FIRST 16     /* NICs known before minor 6; the others: struct mfs_nic_tables */
#define MFS_NICS_MINOR 6      /* with a lower minor version on either side only the first NICs are known */
#define MFS_STAGES_MAX 8      /* stages that are counted separately; the set is open, see enum mfs_stage */
#define MFS_CLASSES_MAX 8     /* priorities on the wire, 0 highest */
#define MFS_ROLES_MAX 8       /* queue-pair roles, see enum mfs_role */
#define MFS_TASKS_MAX 4096    /* tasks of one process held or in flight at once */
#define MFS_SUBMIT_RINGS 8    /* submit rings of one process: one a thread, the last for all others */
#define MFS_SUBMIT_SLOTS 2048 /* messages on one ring that the arbiter has not read yet */
#define MFS_USAGE_SHARDS 4    /* threads of one process that count what they post in a shard of their own */
#define MFS_GRANT_SLOTS 8192  /* room for a grant of every task and as many of cancelled tasks */
#define MFS_QUARANTINE_MAX 8  /* torn slots that one ring survives */
#define MFS_BATCHES_MAX 64    /* batches of one process under way at once */
#define MFS_REQUESTS_MAX 1024 /* requests of one process announced at once */
#define MFS_DEMANDS_MAX 4096  /* demands of all those requests */
#define MFS_REQUEST_DEMANDS_MAX 256 /* demands of one request */
#define MFS_RULES_MAX 64            /* classification rules */
#define MFS_COMMUNICATORS_MAX 32    /* NCCL communicators of one process */
#define MFS_NONE_U32 UINT32_MAX
#define MFS_CLASS_ASK 0xff

/* What a flow is for. The set is open: a value that the daemon does not know is served as
 * MFS_STAGE_BACKGROUND. */
enum mfs_stage {
	MFS_STAGE_CONTROL = 0,    /* clear-to-send, flush, handshakes: never waits */
	MFS_STAGE_REUSE = 1,      /* stage 1: reusable KV blocks into a prefill unit */
	MFS_STAGE_COLLECTIVE = 2, /* stage 2: blocks the next layer; never waits */
	MFS_STAGE_P2D = 3,        /* stage 3: prefill to decode */
	MFS_STAGE_BACKGROUND = 4, /* no deadline: served when nothing else waits */
};

/* The order of flows in a host's queue, whatever classes the fabric has. */
enum mfs_tier { MFS_TIER_CRITICAL = 0, MFS_TIER_EARLY = 1, MFS_TIER_LAST = 2, MFS_TIER_SCAVENGER = 3 };

/* Stages that never wait, one bit each. The arbiter sees them only through the usage counters. */
#define MFS_STAGES_UNSCHEDULED (1u << MFS_STAGE_CONTROL | 1u << MFS_STAGE_COLLECTIVE)

enum mfs_role {
	MFS_ROLE_UNKNOWN = 0, /* its traffic passes through */
	MFS_ROLE_NCCL_DATA = 1,
	MFS_ROLE_NCCL_CTS = 2,
	MFS_ROLE_NCCL_FLUSH = 3,
	MFS_ROLE_KV = 4,
	MFS_ROLE_BULK = 5,
};

enum mfs_mode {
	MFS_MODE_OFF = 0,     /* the shim is a no-op */
	MFS_MODE_OBSERVE = 1, /* count and time, never hold */
	MFS_MODE_ENFORCE = 2,
};

enum mfs_segment_state {
	MFS_SEGMENT_ACTIVE = 1,
	/* the daemon has detached this client (bad data, shutdown): pass through */
	MFS_SEGMENT_DETACHED = 2,
};

/* ---- submit rings: client -> arbiter --------------------------------------------------------------------------- */

enum mfs_message_kind {
	MFS_MESSAGE_SUBMIT = 1,
	MFS_MESSAGE_COMPLETE = 2, /* the NIC has finished a granted task */
	/* the task will not be posted, or was posted without a permit (max_hold, fail-open) */
	MFS_MESSAGE_CANCEL = 3,
	MFS_MESSAGE_BATCH = 4, /* a batch context changed (begin, layer boundary, end): read slot `batch` */
	/* a request began, changed or ended: read slot `task` of the request table */
	MFS_MESSAGE_REQUEST = 5,
};

enum mfs_message_flags {
	MFS_TASK_BYPASSED = 1 << 0,     /* with CANCEL: the bytes did go out, so count them as served */
	MFS_TASK_CLASS_MARKED = 1 << 1, /* with SUBMIT: goes out on the lane of the permitted class */
	MFS_TASK_INCOMING = 1 << 2,     /* with SUBMIT: its bytes come to this node, as with an RDMA READ */
	MFS_TASK_TAKEN = 1 << 3,        /* with SUBMIT: goes on credit, in `wire_class`; it wants no permit */
};

/* Each thread of the process sends through a ring of its own while there are free ones. The last ring is
 * for all other threads. Two messages about one task may therefore be read in another order than they were
 * sent: a completion ahead of its submit, or a slot's next submit ahead of the completion before it.
 * Generations tell them apart. */
#define MFS_SUBMIT_SHARED (MFS_SUBMIT_RINGS - 1)

/* `peer` and `queue` say where a task goes. Both only group tasks: those for one port, and those of one queue
 * pair, in the order in which they were submitted. 0: not known, or the client is older than minor 4. */
#define MFS_TASK_BYTES_BITS 40
#define MFS_TASK_BYTES_MAX ((1ULL << MFS_TASK_BYTES_BITS) - 1)
#define MFS_TASK_QUEUE_MAX ((1u << (64 - MFS_TASK_BYTES_BITS)) - 1)

/* The bytes that a sender will submit behind a task, encoded in one byte. Rounded down by up to an eighth.
 * Since minor 8. */
#define MFS_BEHIND_UNKNOWN 0
#define MFS_BEHIND_NOTHING 1 /* nothing, or less than 64 KiB */
#define MFS_BEHIND_SHIFT 13  /* the finest step is 8 KiB */

static inline uint8_t mfs_behind_code(uint64_t bytes)
{
	unsigned exponent;

	bytes = (bytes < MFS_TASK_BYTES_MAX ? bytes : MFS_TASK_BYTES_MAX) >> MFS_BEHIND_SHIFT;
	if (bytes < 8)
		return MFS_BEHIND_NOTHING;
	exponent = 60 - (unsigned)__builtin_clzll(bytes); /* four bits are kept, the first of which is set */
	return (uint8_t)(MFS_BEHIND_NOTHING + 1 + exponent * 8 + (bytes >> exponent) % 8);
}

/* Decodes mfs_behind_code. Unknown counts as 0. Never above MFS_TASK_BYTES_MAX, whatever the byte is. */
static inline uint64_t mfs_behind_bytes(uint8_t code)
{
	const unsigned step = code - (MFS_BEHIND_NOTHING + 1u);
	uint64_t bytes;

	if (code <= MFS_BEHIND_NOTHING)
		return 0;
	bytes = (uint64_t)(8 + step % 8) << (step / 8 + MFS_BEHIND_SHIFT);
	return bytes < MFS_TASK_BYTES_MAX ? bytes : MFS_TASK_BYTES_MAX;
}

/* One message. `task` names a task of this client: slot in the low 32 bits, generation in the high 32
 * bits. The generation rises with every reuse of a slot, so an old grant or completion is recognised. */
struct mfs_message {
	uint64_t task;
	uint64_t bytes : MFS_TASK_BYTES_BITS;
	uint64_t queue : 64 - MFS_TASK_BYTES_BITS; /* number of the queue pair; since minor 4 */
	uint64_t request_id;                       /* 0: unknown */
	uint64_t deadline_ns;                      /* CLOCK_MONOTONIC of this host; 0: none */
	uint64_t submit_ns;                        /* CLOCK_MONOTONIC: when a message about a task was sent */
	uint32_t batch;                            /* slot in the batch table; MFS_NONE_U32: none */
	uint16_t layer;                            /* L_target */
	uint8_t kind;                              /* enum mfs_message_kind */
	uint8_t stage;                             /* enum mfs_stage */
	uint8_t nic;                               /* index given by the daemon */
	uint8_t flags;                             /* enum mfs_message_flags */
	uint8_t role;                              /* enum mfs_role */
	uint8_t wire_class; /* with MFS_TASK_TAKEN: the class; any other SUBMIT: mfs_behind_code */
	uint32_t peer;      /* mfs_peer_hash of the remote port's GID; since minor 4 */
};
_Static_assert(sizeof(struct mfs_message) == 56, "a message and its sequence fill one cache line");
_Static_assert(offsetof(struct mfs_message, request_id) == 16, "bytes and queue share a word");
_Static_assert(offsetof(struct mfs_message, peer) == 52, "the last word");

/* ---- grant ring: arbiter -> client ----------------------------------------------------------------------------- */

struct mfs_grant {
	_Atomic uint64_t task;
	/* low half: class on the wire, 0..MFS_CLASSES_MAX-1; high half: low half of the epoch */
	_Atomic uint64_t class_epoch;
};
_Static_assert(sizeof(struct mfs_grant) == 16, "four grants a cache line");

/* ---- rings: the algorithm and its memory order are in ring.h --------------------------------------------------- */

struct mfs_mpsc_slot {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t sequence; /* ticket + 1 when published */
	struct mfs_message message;
};
_Static_assert(sizeof(struct mfs_mpsc_slot) == 64, "one message, one cache line");

struct mfs_mpsc {
	/* written by producers */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t tail; /* next ticket */
	_Atomic uint64_t head_seen; /* an earlier value of head, so that producers rarely read head itself */
	_Atomic uint32_t quarantined; /* entries in use below; written by the consumer, rarely */
	uint8_t reserved0[44];
	/* written by the consumer */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t head;
	uint8_t reserved1[56];
	/* slots that are in quarantine, as slot number + 1; written by the consumer */
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t quarantine[MFS_QUARANTINE_MAX];
	uint8_t reserved2[32];
};
_Static_assert(sizeof(struct mfs_mpsc) == 192, "producers, consumer and quarantine: a line each");

struct mfs_spmc {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t tail; /* written by the producer */
	uint8_t reserved0[56];
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t head; /* claimed by consumers */
	uint8_t reserved1[56];
};
_Static_assert(sizeof(struct mfs_spmc) == 128, "either side has a line");

/* What a client must do after a message. A client of minor 1 rings for both values that are not 0. */
enum mfs_asleep {
	MFS_AWAKE = 0,  /* nothing: the arbiter runs */
	MFS_ASLEEP = 1, /* ring the doorbell */
	/* nothing waits: ring if the message wants an answer; others are read with a heartbeat */
	MFS_AT_REST = 2,
};

/* ---- header ---------------------------------------------------------------------------------------------------- */

struct mfs_segment_header {
	/* constant after creation */
	uint64_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t header_bytes;
	uint64_t segment_bytes;
	uint64_t epoch; /* differs for every start of the daemon */
	uint32_t daemon_pid;
	uint32_t client_id;
	/* a heartbeat older than this means that the daemon is gone: post what is held */
	uint64_t stale_after_ns;
	/* how long a transfer may stand still for permits in total; then its tasks go without */
	uint64_t max_hold_ns;
	/* K, 2..MFS_CLASSES_MAX: wire classes are 0..K-1, and K-1 is the scavenger's */
	uint32_t classes;
	/* classes of flows that are neither critical nor due soon nor pruned; since minor 2 */
	uint8_t class_reuse;       /* stage 1 with RLI 0; each further RLI is one class lower ... */
	uint8_t class_reuse_least; /* ... but not below this class */
	uint8_t class_last;        /* stage 3; MFS_CLASS_ASK: it depends on more than the client knows */
	uint8_t reserved0[1];
	/* written by the daemon */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t heartbeat_ns; /* may lie in the future */
	_Atomic uint32_t state;                                 /* enum mfs_segment_state */
	/* enum mfs_mode: the daemon may turn enforcing off; a client never exceeds its own mode */
	_Atomic uint32_t mode;
	/* DSCP of each wire class; MFS_DSCP_KEEP: this fabric marks none */
	_Atomic uint8_t dscp[MFS_CLASSES_MAX];
	/* classes that the wire keeps apart from collectives, one bit each; since minor 2 */
	_Atomic uint8_t apart;
	uint8_t reserved1[7];
	/* a stage 3 flow that is due within this time may have a better class than class_last; 0: none, or
	 * an older daemon */
	_Atomic uint64_t soon_ns;
	uint8_t reserved3[24];
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t arbiter_asleep; /* enum mfs_asleep */
	uint8_t reserved2[60];
	/* futex: grows by one with every batch of grants */
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t grant_word;
	_Atomic uint32_t grant_waiters; /* client threads asleep on grant_word */
	uint8_t reserved4[56];
};
_Static_assert(sizeof(struct mfs_segment_header) == 256, "header: four cache lines");
_Static_assert(offsetof(struct mfs_segment_header, heartbeat_ns) == 64, "constant part: one cache line");
_Static_assert(offsetof(struct mfs_segment_header, grant_word) == 192, "grant futex has a line of its own");

/* ---- gates: what must wait, per NIC ---------------------------------------------------------------------------- */

/* The low bits say which stages must ask for a permit (1 << enum mfs_stage). With MFS_GATE_IDLE_BELL the
 * client must ring the doorbell when its unscheduled bytes in flight on this NIC drop to zero, because
 * held flows wait for that. */
#define MFS_GATE_IDLE_BELL (1u << 31)

/* Credit is a permit in advance, given while nothing waits for a direction of the NIC: the client may have
 * this many bytes in flight without asking. 0: none. `credit_class_marked` is for tasks in a class that
 * the wire keeps apart from collectives. */
struct mfs_gate {
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t word;
	uint8_t reserved0[4];
	_Atomic uint64_t credit[2]; /* by enum mfs_direction; since minor 2 */
	_Atomic uint64_t credit_class_marked[2];
	uint8_t reserved[24];
};
_Static_assert(sizeof(struct mfs_gate) == 64, "a gate has a line of its own");

/* ---- usage: what the client did, per NIC ----------------------------------------------------------------------- */

/* Bytes given to the NIC, by stage, permitted or not. */
struct mfs_usage_half {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t bytes[MFS_STAGES_MAX];
	uint64_t reserved[MFS_STAGES_MAX];
};
struct mfs_usage {
	struct mfs_usage_half posted;    /* counted by posting threads */
	struct mfs_usage_half completed; /* counted by polling threads */
};
_Static_assert(sizeof(struct mfs_usage) == 256, "posted and completed are two lines each");

/* Bytes posted by one thread, by stage. What the client has posted is the sum of all shards and of mfs_usage_half. */
struct mfs_usage_shard {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t bytes[MFS_STAGES_MAX];
};
_Static_assert(sizeof(struct mfs_usage_shard) == 64, "each thread has a line of its own");

/* ---- client state for display (status), written by the client, nothing depends on it -------------------------- */

struct mfs_client_report {
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t queue_pairs[MFS_ROLES_MAX]; /* open now, by role */
	_Atomic uint64_t held_bytes;
	_Atomic uint64_t held_work_requests;
	_Atomic uint64_t permits;           /* grants that were acted on */
	_Atomic uint64_t bypassed_overflow; /* ring or slots full: posted behind what was held before */
	_Atomic uint64_t bypassed_hold;     /* max_hold expired */
	_Atomic uint64_t bypassed_stale;    /* daemon gone or detached: posted without a permit */
	_Atomic uint64_t hold_ns;           /* total time that requests were held */
	uint8_t reserved[40];
};
_Static_assert(sizeof(struct mfs_client_report) == 128, "report: two cache lines");

/* ---- batch contexts: written by adapters, one atomic store a layer --------------------------------------------- */

struct mfs_batch {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t batch_id; /* 0: free */
	_Atomic uint32_t layer_current;                     /* L_curr */
	_Atomic uint32_t layers;
	/* the batch's robust effective deadline as the engine knows it; 0: none */
	_Atomic uint64_t deadline_ns;
	/* for all its layers, estimated by the engine; the rest is taken in proportion to the layers left */
	_Atomic uint64_t compute_ns;
	_Atomic uint32_t version; /* grows with every use of the slot */
	/* requests announced with the batch, readable once batch_id is set; 0: none, or not announced */
	_Atomic uint32_t requests;
	uint8_t reserved[88];
};
_Static_assert(sizeof(struct mfs_batch) == 128, "batch context: two cache lines");

/* ---- requests and what they will move: written by adapters when a request begins ------------------------------- */

#define MFS_CONTEXT_CLAIMED UINT64_MAX /* value of batch_id or request_id while a slot is being filled */

enum mfs_request_flags {
	MFS_REQUEST_RELEGATED = 1 << 0,   /* the engine itself has put it behind the others */
	MFS_REQUEST_SPECULATIVE = 1 << 1, /* its result may never be used */
	MFS_REQUEST_SWAP = 1 << 2,        /* moves KV out and back in; no user waits for it */
	/* It still queues at its engine, has no batch, and its demands are what it will fetch before it
	 * runs; since minor 5 */
	MFS_REQUEST_WAITING = 1 << 3,
};

enum mfs_request_judgement {
	/* it cannot be in time, or would make others late: served as scavenger */
	MFS_REQUEST_PRUNED = 1 << 0,
};

struct mfs_request {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t request_id; /* 0: free */
	_Atomic uint64_t program_id;  /* the program or conversation that it belongs to; 0: none */
	_Atomic uint64_t deadline_ns; /* CLOCK_MONOTONIC of this host; 0: none */
	_Atomic uint64_t budget_ns;   /* time from arrival to deadline; 0: unknown */
	_Atomic uint32_t batch;       /* slot in the batch table; MFS_NONE_U32: none (yet) */
	_Atomic uint32_t demand;      /* first of its demands: slot + 1; 0: none */
	_Atomic uint32_t value;       /* its worth relative to other requests; 0: not given */
	_Atomic uint32_t flags;       /* enum mfs_request_flags */
	_Atomic uint32_t version;     /* grows with every use of the slot */
	_Atomic uint32_t judgement;   /* enum mfs_request_judgement; written by the daemon */
	/* for a request with MFS_REQUEST_WAITING; since minor 5 */
	_Atomic uint32_t rank;        /* its place in the engine's order: smaller goes first */
	_Atomic uint32_t tokens_left; /* to compute until its first token */
};
_Static_assert(sizeof(struct mfs_request) == 64, "request: one cache line");

enum mfs_direction { MFS_DIRECTION_OUT = 0, MFS_DIRECTION_IN = 1 };
#define MFS_DIRECTIONS 2

/* Bytes of one stage and layer between one NIC of this node and one port elsewhere. */
struct mfs_demand {
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t request; /* slot + 1; 0: free */
	_Atomic uint32_t next; /* next demand of the same request: slot + 1; 0: this is the last */
	_Atomic uint64_t bytes;
	/* GID of the remote port in its byte order, IPv4 as ::ffff:a.b.c.d; 0: unknown */
	_Atomic uint64_t peer[2];
	_Atomic uint16_t layer;    /* L_target */
	_Atomic uint8_t stage;     /* enum mfs_stage */
	_Atomic uint8_t nic;       /* index given by the daemon */
	_Atomic uint8_t direction; /* enum mfs_direction, as seen from this node */
	uint8_t reserved[27];
};
_Static_assert(sizeof(struct mfs_demand) == 64, "demand: one cache line");

/* ---- rules: how a client tells its queue pairs apart; written by the daemon ------------------------------------ */

enum mfs_rule_action { MFS_RULE_PASS = 0, MFS_RULE_HOLD = 1 };
#define MFS_DSCP_KEEP 0xff

/* The first rule that matches wins. An empty string, role 0 or prefix 0 matches everything. */
struct mfs_rule {
	/* part of the file name of the object that called ibv_create_qp, e.g. "libnccl" */
	_Alignas(8) char library[32];
	char process[32]; /* part of the program's name (comm or argv[0]'s base name) */
	uint8_t peer[16]; /* GID prefix of the remote end; IPv4 as ::ffff:a.b.c.d */
	uint8_t peer_prefix_bits;
	/* enum mfs_role that must have been found from the queue pair's capabilities; 0: any */
	uint8_t role;
	uint8_t action;        /* enum mfs_rule_action */
	uint8_t stage;         /* enum mfs_stage given to flows of the queue pair */
	uint8_t dscp;          /* 0..63, or MFS_DSCP_KEEP */
	uint8_t set_role;      /* enum mfs_role to set; 0: keep the role that was found */
	char communicator[32]; /* part of the name of NCCL's communicator */
	uint8_t reserved[10];
};
_Static_assert(sizeof(struct mfs_rule) == 128, "rule: two cache lines");

/* Sequence lock, written by the daemon: a reader's copy is valid between two equal, even readings of `version`. */
struct mfs_rules {
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t version;
	_Atomic uint32_t count;
	uint8_t reserved[56];
	struct mfs_rule rule[MFS_RULES_MAX];
};

/* ---- NCCL communicators: written by the client for display, nothing depends on it ------------------------------ */

enum mfs_operation {
	MFS_OPERATION_OTHER = 0,
	MFS_OPERATION_ALL_REDUCE = 1,
	MFS_OPERATION_ALL_GATHER = 2,
	MFS_OPERATION_REDUCE_SCATTER = 3,
	MFS_OPERATION_BROADCAST = 4,
	MFS_OPERATION_REDUCE = 5,
	MFS_OPERATION_ALL_TO_ALL = 6,
	MFS_OPERATION_SEND = 7,
};
#define MFS_OPERATIONS_MAX 8

/* What NCCL's profiler interface reports to the shim. Updated a few times a second. */
struct mfs_communicator {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t id; /* 0: free */
	char name[32]; /* name given by the program that made it, may be empty */
	_Atomic uint32_t rank, ranks;
	_Atomic uint64_t operations;                /* operations begun */
	_Atomic uint64_t operation_bytes;           /* bytes that the operations were called with */
	_Atomic uint64_t bytes[MFS_OPERATIONS_MAX]; /* sent by this rank, by operation */
	_Atomic uint64_t work_requests;
	_Atomic uint64_t batch_bytes; /* part of the bytes sent that belongs to a batch */
	_Atomic uint32_t batch;       /* slot of the latest batch; MFS_NONE_U32: none */
	_Atomic uint32_t layer;
	uint8_t reserved[40];
};
_Static_assert(sizeof(struct mfs_communicator) == 192, "communicator: three cache lines");

/* ---- NIC table: written by the daemon before the client gets its index ----------------------------------- */

struct mfs_nic {
	_Alignas(MFS_CACHE_LINE) char name[32];
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	uint8_t reserved[16];
};
_Static_assert(sizeof(struct mfs_nic) == 64, "NIC: one cache line");

/* All tables of one NIC whose index is MFS_NICS_FIRST or higher; see nic_tables.h. */
struct mfs_nic_tables {
	struct mfs_gate gate;
	struct mfs_nic nic;
	struct mfs_usage usage;
	struct mfs_usage_shard posted_shard[MFS_USAGE_SHARDS];
};
_Static_assert(sizeof(struct mfs_nic_tables) == 640, "tables of a NIC: ten cache lines");

/* ---- the whole segment ----------------------------------------------------------------------------------------- */

struct mfs_segment {
	struct mfs_segment_header header;
	struct mfs_gate gate[MFS_NICS_FIRST];
	struct mfs_nic nic[MFS_NICS_FIRST];
	struct mfs_client_report report;
	struct mfs_usage usage[MFS_NICS_FIRST];
	struct mfs_batch batch[MFS_BATCHES_MAX];
	struct mfs_rules rules;
	struct mfs_mpsc submit[MFS_SUBMIT_RINGS];
	struct mfs_mpsc_slot submit_slot[MFS_SUBMIT_RINGS][MFS_SUBMIT_SLOTS];
	struct mfs_spmc grant;
	struct mfs_grant grant_slot[MFS_GRANT_SLOTS];
	/* since minor 1 */
	struct mfs_request request[MFS_REQUESTS_MAX];
	struct mfs_demand demand[MFS_DEMANDS_MAX];
	struct mfs_communicator communicator[MFS_COMMUNICATORS_MAX];
	/* since minor 4 */
	struct mfs_usage_shard posted_shard[MFS_NICS_FIRST][MFS_USAGE_SHARDS];
	/* since minor 6 */
	struct mfs_nic_tables nic_tables[MFS_NICS_MAX - MFS_NICS_FIRST];
};
_Static_assert(sizeof(struct mfs_segment) % MFS_CACHE_LINE == 0, "whole cache lines");
_Static_assert(offsetof(struct mfs_segment, submit) % MFS_CACHE_LINE == 0, "rings start on a line");
_Static_assert(MFS_NICS_MAX <= 64, "the arbiter keeps one bit a NIC in a word");

/* ---- the unix socket: SOCK_SEQPACKET, one message a packet ----------------------------------------------------- */

enum mfs_hello_kind {
	/* answer: struct mfs_welcome with descriptors: segment memfd, doorbell eventfd and, for a client
	 * of minor 5 or later, the memfd of the outlook page (outlook.h) if there is one */
	MFS_HELLO_ATTACH = 1,
	MFS_HELLO_NIC = 2, /* announces a NIC that the client opened; answer: struct mfs_nic_reply */
};

struct mfs_hello {
	uint64_t magic;
	uint16_t major;
	uint16_t minor;
	uint32_t kind; /* enum mfs_hello_kind */
	uint32_t pid;  /* as the client sees it; the daemon trusts only SO_PEERCRED */
	uint32_t mode; /* enum mfs_mode wanted */
	char process[32];
	char nic_name[32];
	uint64_t nic_guid;
	uint64_t nic_rate_bytes_per_s; /* from the port's speed and width; 0: unknown */
	uint8_t reserved[24];
};
_Static_assert(sizeof(struct mfs_hello) == 128, "hello");

struct mfs_welcome {
	uint64_t magic;
	uint16_t major;
	uint16_t minor;
	int32_t error; /* 0, or -errno: -EPROTO version, -EACCES credentials, -ENOSPC no memory, -EUSERS too many clients */
	uint64_t segment_bytes;
	uint32_t client_id;
	uint8_t reserved[36];
	char reason[64]; /* for display, when error != 0 */
};
_Static_assert(sizeof(struct mfs_welcome) == 128, "welcome");

struct mfs_nic_reply {
	uint64_t magic;
	int32_t error; /* 0 or -errno */
	uint32_t nic;  /* index into the segment's tables */
	uint8_t reserved[16];
};
_Static_assert(sizeof(struct mfs_nic_reply) == 32, "nic reply");

#endif
