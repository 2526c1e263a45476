/* A host of the testbed: one event-driven process that computes by profile and moves real bytes with verbs.
 *
 * It has one thread for everything but waiting for permits. Nothing here knows modes. The files from top to
 * bottom; none calls a file above it:
 *
 *   main.c     options, what the controller asks for and is sent
 *   prefill.c  plays a rank of a prefill unit
 *   decode.c   counts what arrives
 *   gate.c     asks MFS for permits, or gives them at once when nothing is scheduled
 *   verbs.c    the device, its lanes (queue pairs of one peer, stage and class), the messages on them
 *   loop.c     the event loop
 *   report.c   settings, the clock, the line to the controller
 */
#ifndef TESTBED_WORKER_H
#define TESTBED_WORKER_H

#include <infiniband/verbs.h>
#include <mfs/api.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	HOSTS_MAX = 32,
	POOLS_MAX = 8,
	CLASSES_MAX = 8,
	LANE_QPS_MAX = 4,
	SLOTS = 8, /* messages that may be on their way on one queue pair, and receives posted for them */
	REQUESTS_MAX = 256, /* requests of one batch */
	LAYERS_MAX = 128,
	LOAD_LAYER = 1024, /* of loads that are batches of one: above all layers */
	POOL_BLOCKS = 128, /* hot blocks of the pool, of one message each */
};

enum stage { STAGE_CONTROL = 0, STAGE_REUSE = 1, STAGE_COLLECTIVE = 2, STAGE_P2D = 3 };

struct request;
struct announcement;

/* One message. It lives from its submission until its completion. */
struct message {
	/* used by gate.c, up to `next` */
	struct mfs_client *client; /* NULL: not submitted */
	uint64_t task;
	bool waits, without_permit;
	struct message *waiting_before, *waiting_after;

	struct message *next; /* in a lane's queue, or in the free list */
	struct request *request; /* NULL: belongs to a collective */
	uint32_t bytes;
	uint32_t immediate;
	bool last; /* the last message of its transfer */
	uint32_t layer;
	uint32_t peer;
	enum stage stage;
	uint32_t wire_class;
	uint64_t block; /* for a read: the block of the pool */
};

/* One stage of a request, used by gate.c: how long it has stood still for permits. It stands still while
 * messages of it wait and none is under way. */
struct transfer {
	uint32_t waiting, under_way; /* messages; those under way have permits */
	uint64_t since_ns, stood_ns; /* since when it stands still, 0: it does not; for how long it did before */
};

/* The part of a request that this rank computes in a batch. */
struct request {
	struct request *next;
	struct batch *batch; /* NULL once the batch has ended */
	struct announcement *announced; /* used by gate.c */
	uint64_t deadline_ns, budget_ns;
	uint64_t fetch_bytes, push_bytes; /* of one layer */
	uint64_t fetched[LAYERS_MAX]; /* bytes that have arrived */
	unsigned fixed_class[4]; /* class of each stage when nothing is scheduled */
	uint32_t number, decode, owner; /* hosts: decode gets its KV, owner's pool has the KV that it reuses */
	/* It loads its reused KV while it queues. It is in no batch yet, and its deadline is when the load
	 * must be there. */
	bool loads;
	struct mfs_client *queued_client; /* used by gate.c: the client through which it is announced, or NULL */
	uint32_t queued_slot;
	struct transfer transfer[4]; /* by stage */
	/* messages that have not completed; the request is freed when none is left and the batch has ended */
	uint32_t messages;
};

struct batch {
	uint64_t number;
	uint64_t attention_ns, experts_ns;
	uint64_t send_bytes[2], receive_bytes[2]; /* dispatch, combine */
	uint64_t deadline_ns, compute_ns;
	uint32_t layers, layer, requests;
	struct announcement *announced; /* used by gate.c */
	struct request *request[REQUESTS_MAX];
};

struct settings {
	const char *name;
	const char *device;
	unsigned index;
	unsigned pool[POOLS_MAX], pools; /* hosts that own cached blocks */
	unsigned peer_rank; /* the other rank of the unit */
	unsigned dscp[CLASSES_MAX];
	/* class of each stage, for messages of no request, and for all messages if one_lane */
	unsigned fixed_class[4];
	uint32_t message_bytes;
	bool scheduled; /* ask MFS for permits */
	/* messages go in the fixed class of their stage, whatever class is permitted: nothing is kept apart */
	bool one_lane;
	bool loads_alone; /* announce a load whose request queues as a batch of one */
	bool nccl_signals; /* signal the work requests of collectives as NCCL does: see verbs.c */
	int control_fd;
};
extern struct settings settings;

/* ---- report.c */
enum { PACKET_BYTES = 64 << 10 }; /* largest message to the controller or from it */
uint64_t now_ns(void);
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Sends one line to the controller. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- loop.c */
void loop_open(void (*timer_due)(void));
void loop_watch(int fd, void (*ready)(void));
void loop_timer_set(uint64_t due_ns);
void loop_turn(int wait_ms); /* -1: waits until something happens */

/* ---- verbs.c */
struct verbs_hooks {
	/* queue pairs made from now on are lanes of that class; -1: they are no lanes any more */
	void (*lane)(int wire_class);
	void (*posting)(const struct message *message);
	void (*completed)(struct message *message); /* verbs.c frees the message afterwards */
	void (*received)(enum stage stage, uint32_t immediate, uint64_t bytes);
};
void verbs_open(const struct verbs_hooks *hooks);
void verbs_link(unsigned peer, enum stage stage, unsigned wire_class, unsigned queue_pairs, bool sends, bool receives);
void verbs_peer(unsigned peer, char *words); /* connects to a queue pair that the peer has described */
bool verbs_connected(void);
const char *verbs_device_name(void);
uint64_t verbs_device_guid(void);
const union ibv_gid *verbs_gid(unsigned peer); /* all zero while unknown */
void verbs_post(struct message *message, unsigned wire_class); /* posts it as soon as its lane has room */
void verbs_control(unsigned peer); /* posts a clear-to-send write */
uint64_t verbs_controls(void); /* clear-to-send writes posted so far */
struct message *message_new(void);
void message_free(struct message *message);

/* ---- gate.c: submit -> permit(class) -> post on the lane of that class -> complete */
void gate_open(void);
void gate_attach(void); /* waits until the daemon schedules this worker */
void gate_submit(struct message *message); /* calls verbs_post, now or when the permit has come */
void gate_completed(struct message *message);
void gate_batch_begin(struct batch *batch);
void gate_batch_layer(struct batch *batch);
void gate_batch_computed(struct batch *batch); /* the batch may still have KV to send */
void gate_request_end(struct request *request); /* the request has nothing left to send */
/* The request queues and loads `bytes` of KV. */
void gate_load_begin(struct request *request, uint64_t deadline_ns, uint32_t rank, uint64_t bytes);
void gate_load_end(struct request *request);
/* Returns how long a load takes by the outlook page, in ns; -1: unknown. */
int64_t gate_forecast(unsigned owner, uint64_t bytes, uint64_t needed_ns);
bool gate_waits(void); /* true if messages wait for permits: then call gate_poll now and then */
void gate_poll(void);
void gate_posting(const struct message *message);
void gate_lane(int wire_class);
void gate_statistics(void);

/* ---- prefill.c */
void prefill_batch(char *words);
void prefill_load(const char *words); /* the load of a request that queues */
void prefill_forecast(const char *words);
void prefill_timer(void);
void prefill_completed(struct message *message); /* a read or a write of this worker has completed */
void prefill_collective_received(uint32_t phase, uint64_t bytes);

/* ---- decode.c */
void decode_expect(char *words);
void decode_received(uint32_t request, uint64_t bytes);

#endif
