/*
 * Objects of the soft RoCE provider.
 *
 * Locking: one mutex per context guards all queue pairs, connections and keys of that context, so an event of
 * the network is handled from the first byte to the completion without another lock. Completion queues are
 * rings that the context's lock holder fills and that any poller drains under the queue's own lock. No call
 * blocks with a lock held: sockets are non-blocking and each turn moves a bounded number of bytes.
 *
 * Layers, from above to below. Each has a header of its own, includes only those below it, and calls none above
 * it (tests/unit/test_native_layers.py):
 *
 *   provider.c       registers with libibverbs
 *   context.c        a device is opened and closed
 *   srq.c            shared receive queues
 *   qp.c             queue pairs: creation, destruction
 *   builder.c        ibv_wr_*
 *   post.c           ibv_post_send, ibv_post_recv
 *   qp_state.c       ibv_modify_qp
 *   cq_ex.c          ibv_start_poll and its like
 *   poll.c           ibv_poll_cq
 *   progress.c       which thread moves the bytes
 *   handshake.c      connections that are accepted, and their events
 *   receive.c        bytes into frames and payload
 *   responder.c      the answering half of a queue pair
 *   datagram.c       UD queue pairs
 *   requester.c      the sending half of a queue pair
 *   failure.c        requests are flushed
 *   connection.c     TCP connections
 *   port.c           TCP ports, and the queue pair numbers on them
 *   receive_queue.c  receives
 *   cq.c             completion queues
 *   pacer.c          turns on a link of limited rate
 *   timer.c          what is to be done later
 *   channel.c        completion channels, asynchronous events
 *   ah.c             address handles
 *   mr.c             protection domains, memory regions
 *   registry.c       open devices, fork
 *   objects.h        structures
 *   wire.h           frames
 *   library.c        the private functions of libibverbs
 *   provider_abi.h   their types
 *   rate.c           the device's rate limit
 *   counters.c       what the device has carried
 *   descriptors.c    which descriptors are the provider's
 */
#ifndef MFS_SOFT_ROCE_OBJECTS_H
#define MFS_SOFT_ROCE_OBJECTS_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "counters.h"
#include "provider_abi.h"
#include "rate.h"
#include "wire.h"

enum {
	MFS_MAX_SGE = 16,
	MFS_MAX_INLINE = 1024,
	MFS_MAX_QP_WR = 16384,
	MFS_MAX_SRQ_WR = 16384,
	MFS_MAX_CQE = 1 << 20,
	MFS_MAX_MR = 1 << 20,
	MFS_MAX_READS = 16,     /* outstanding RDMA READs and atomics of a queue pair, power of two */
	MFS_QPS_PER_PORT = 256, /* a QPN is a TCP port and an index of eight bits */
	MFS_MAX_PORTS = 256,
	MFS_MAX_MESSAGE = 1 << 30,
	MFS_MAX_STRANGERS = 256, /* connections of no queue pair; a process often has 1,024 descriptors */
	MFS_RX_BUFFER_SIZE = 65536,
	MFS_MAX_AH = 1 << 20,
	MFS_MTU = 4096, /* the longest message of a UD queue pair */
};

#define mfs_container_of(pointer, type, member) ((type *)((char *)(pointer) - offsetof(type, member)))
#define mfs_min(a, b) ((a) < (b) ? (a) : (b))

struct mfs_context;
struct mfs_qp;

struct mfs_device {
	struct verbs_device verbs;
};

struct mfs_pd {
	struct ibv_pd pd;
	atomic_int users;
};

struct mfs_mr {
	struct verbs_mr verbs;
	uint64_t iova;
	uint32_t key;
};

/* Address handle. */
struct mfs_ah {
	struct ibv_ah ah;
	struct in_addr address;
	uint8_t traffic_class;
};

/* Completion channel: libibverbs owns the reading end, this is the writing end. */
struct mfs_channel {
	LIST_ENTRY(mfs_channel) link;
	int read_fd;
	int write_fd;
};

struct mfs_cq {
	struct verbs_cq verbs;
	struct ibv_wc *ring;
	uint32_t size; /* power of two */
	bool overflown;
	struct mfs_channel *channel;
	pthread_mutex_t poll_lock;
	_Atomic uint32_t head; /* next to poll; written under poll_lock */
	_Atomic uint32_t tail; /* next to fill; written under the context's lock */
	_Atomic uint32_t armed;
	uint32_t channel_events_written; /* under the context's lock */
	_Atomic uint32_t channel_events_read;
	uint32_t async_events_raised;
	_Atomic uint32_t async_events_read;
	_Atomic int users;
	struct ibv_wc current; /* of the extended polling interface */
};

struct mfs_recv_wqe {
	uint64_t wr_id;
	uint32_t num_sge;
};

/* A queue of receives: of one queue pair, or shared by many. */
struct mfs_recv_queue {
	struct mfs_recv_wqe *wqes;
	struct ibv_sge *sges; /* max_sge for each entry */
	uint32_t size;        /* power of two */
	uint32_t limit;       /* entries the user may fill */
	uint32_t max_sge;
	uint32_t head, tail;
};

struct mfs_srq {
	struct verbs_srq verbs;
	struct mfs_recv_queue queue;
	uint32_t watermark; /* event when fewer receives are left; 0: none */
	bool stalled;       /* some queue pair waits for a receive */
	_Atomic int users;
	uint32_t async_events_raised;
	_Atomic uint32_t async_events_read;
};

enum mfs_wqe_flag {
	MFS_WQE_SIGNALED = 1 << 0,
	MFS_WQE_FENCE = 1 << 1,
	MFS_WQE_INLINE = 1 << 2,
};

/* Where a datagram goes: what its address handle said when it was posted. That may be gone when it leaves. */
struct mfs_destination {
	const struct ibv_pd *pd; /* of the address handle; NULL: none was given */
	struct in_addr address;
	uint32_t qp_num;
	uint32_t qkey;
	uint8_t traffic_class;
};

struct mfs_send_wqe {
	uint64_t wr_id;
	struct mfs_frame frame;
	struct mfs_destination to; /* of UD queue pairs */
	uint64_t operands[2];
	uint32_t num_sge;
	uint32_t length; /* local bytes: sent, or to be written by the response */
	uint8_t wc_opcode;
	uint8_t flags;
};

/* Requests: head <= sent <= tail; [head, sent) wait for the peer, [sent, tail) have not been sent whole. */
struct mfs_send_queue {
	struct mfs_send_wqe *wqes;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint32_t size;
	uint32_t limit;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t head, sent, tail;
	uint32_t sent_bytes; /* of the request `sent`, frame included */
	uint32_t reads_in_flight;
	uint64_t unsent_bytes; /* from the request `sent` on, frames included */
};

enum mfs_source_kind {
	MFS_SOURCE_PORT,
	MFS_SOURCE_DATAGRAMS,
	MFS_SOURCE_CONNECTION,
	MFS_SOURCE_TIMER,
	MFS_SOURCE_WAKE,
};

/* Start of everything that is registered with a context's epoll set. */
struct mfs_source {
	enum mfs_source_kind kind;
	int fd;
};

/* What waits for its turn on a link of limited rate. */
struct mfs_pacer {
	bool waiting;    /* in the context's list, until `due_ns` */
	bool backlogged; /* has had something to send since `due_ns` */
	uint64_t due_ns; /* when its last or next turn begins */
	uint32_t credit_bytes;
	void (*resume)(struct mfs_pacer *pacer);
	TAILQ_ENTRY(mfs_pacer) link;
};

/* A listening TCP port: 256 queue pair numbers. It has a UDP socket of the same number once one of them is that
 * of a UD queue pair. */
struct mfs_port {
	struct mfs_source source;
	struct mfs_source datagrams; /* fd -1: none */
	bool datagrams_full;         /* some queue pair waits for room in the UDP socket */
	bool starved;                /* there was no descriptor for the last connection */
	uint16_t number;
	uint16_t used;
	uint16_t next;
	struct mfs_qp *qps[MFS_QPS_PER_PORT];
};

struct mfs_response {
	struct mfs_frame frame;
	uint64_t address;
	uint32_t key;
};

enum mfs_connection_state {
	MFS_CONNECTING,
	MFS_GREETING, /* accepted, has not said hello */
	MFS_WAITING,  /* has said hello to a queue pair that is not ready to receive */
	MFS_OPEN,
	MFS_DRAINING,
	MFS_CLOSED,
};

struct mfs_connection {
	struct mfs_source source;
	struct mfs_context *context;
	struct mfs_qp *qp;
	TAILQ_ENTRY(mfs_connection) link; /* in strangers or closed list */
	enum mfs_connection_state state;
	bool requester; /* we opened it: requests go out, responses come in */
	bool accepted;  /* by the peer's queue pair; what was sent before it counts as unsent if it is not */
	uint32_t first; /* number in the send queue of the connection's first request */
	bool stalled;   /* receiver not ready: nothing is read */
	bool want_write;
	uint32_t events; /* registered with epoll */

	/* reading */
	struct mfs_frame frame;
	uint32_t frame_bytes;
	uint8_t next_frame[sizeof(struct mfs_frame)];
	bool in_payload;
	uint32_t payload_left;
	struct iovec target[MFS_MAX_SGE];
	uint32_t target_index, target_count;
	uint64_t operands[2];
	uint32_t key_epoch; /* the keys behind `target` were valid at this epoch */
	uint8_t *stash;     /* bytes read but not handled, of a stalled connection */
	uint32_t stash_position, stash_size;

	/* responses, written by the responder */
	struct mfs_response responses[MFS_MAX_READS];
	uint32_t responses_head, responses_tail;
	struct mfs_frame ack;
	bool ack_started, ack_wanted, rnr_wanted;
	uint8_t nak; /* syndrome to send, then nothing more */
	uint32_t requests_done;
	uint32_t sent_bytes; /* of the response being sent */

	struct mfs_pacer pacer;
};

/* What a half of a queue pair makes of a frame or payload. */
enum mfs_verdict {
	MFS_GO_ON,
	MFS_STALL, /* receiver not ready: handle this frame again when there is a receive */
	MFS_STOP,  /* the connection has ended or takes no more */
	MFS_LOST,
};

enum mfs_qp_timer { MFS_NO_TIMER, MFS_RNR_TIMER, MFS_REOPEN_TIMER };

struct mfs_qp {
	struct verbs_qp verbs;
	enum ibv_qp_state
		state; /* that of libibverbs' part is for users: the library stores there without a lock */
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct mfs_port *port;  /* that of its number */
	struct mfs_pacer pacer; /* of a UD queue pair; connections have their own */
	bool notify_drained;
	struct mfs_send_queue sq;
	struct mfs_recv_queue rq;
	struct mfs_recv_queue *receives; /* own or shared */
	struct mfs_recv_wqe receiving;   /* taken by the message that is arriving */
	struct ibv_sge receiving_sges[MFS_MAX_SGE];
	bool receiving_taken;
	struct mfs_connection *requester;
	struct mfs_connection *responder;
	struct mfs_connection *waiting; /* becomes the responder when the queue pair is ready */
	bool requester_lost;            /* to be opened again for the next request */
	uint64_t reopen_until_ns;       /* then retries are used up; 0: none was needed yet */
	bool deferred;                  /* in the context's list of queue pairs with requests to send */
	TAILQ_ENTRY(mfs_qp) deferred_link;
	enum mfs_qp_timer
		timer; /* the queue pair is in the context's list of timed ones unless it has none */
	uint64_t timer_due_ns;
	TAILQ_ENTRY(mfs_qp) timed_link;
	TAILQ_ENTRY(mfs_qp) link;
	uint32_t async_events_raised;
	_Atomic uint32_t async_events_read;
	/* Held while the slots behind the tail are filled: for one ibv_post_send, or from wr_start to
	 * wr_complete. Taken before the context's lock. */
	pthread_mutex_t post_lock;
	uint32_t built, build_room; /* ibv_wr_*: requests since wr_start, and how many there can be */
	int build_error;
};

TAILQ_HEAD(mfs_connection_list, mfs_connection);
TAILQ_HEAD(mfs_qp_list, mfs_qp);
TAILQ_HEAD(mfs_pacer_list, mfs_pacer);

struct mfs_context {
	struct verbs_context verbs;
	LIST_ENTRY(mfs_context) registry_link;
	uint32_t forks; /* of this process before it was opened */
	struct in_addr address;
	struct mfs_rate rate;
	struct mfs_counters counters;

	pthread_mutex_t lock; /* for calls of the program, by mfs_context_lock */
	int cancelable;       /* state that its holder's thread gets back */
	_Atomic uint32_t lock_waiters;
	int epoll_fd;
	int async_write_fd;
	int moving_read_fd, moving_write_fd; /* a pipe, through which unread events are taken out of others */
	struct mfs_source timer, wake;
	uint64_t timer_due_ns;  /* 0: not armed */
	uint64_t accept_due_ns; /* when starved ports are tried again; 0: there is none */
	pthread_t thread;
	_Atomic bool stopping;
	_Atomic uint64_t last_poll_ns;
	_Atomic uint64_t idle_since_ns; /* first poll since which nothing has come; 0: something has */
	_Atomic uint32_t waiting_pollers;

	struct mfs_port *ports[MFS_MAX_PORTS];
	uint32_t port_count;
	struct mfs_mr **mrs;
	uint32_t mr_slots, mr_next, mr_count;
	uint32_t key_epoch; /* grows when a key becomes invalid */
	LIST_HEAD(, mfs_channel) channels;
	struct mfs_qp_list qps;
	struct mfs_qp_list deferred;
	struct mfs_qp_list timed;
	struct mfs_connection_list strangers; /* oldest first: without a hello yet, or draining */
	uint32_t stranger_count;
	struct mfs_pacer_list paced;       /* by due time */
	struct mfs_connection_list closed; /* freed when no event can name them any more */
	uint8_t rx_buffer[MFS_RX_BUFFER_SIZE];
};

static inline struct mfs_context *mfs_context_of(struct ibv_context *context)
{
	return mfs_container_of(context, struct mfs_context, verbs.context);
}

static inline struct mfs_qp *mfs_qp_of(struct ibv_qp *qp)
{
	return (struct mfs_qp *)qp;
}

static inline struct mfs_cq *mfs_cq_of(struct ibv_cq *cq)
{
	return (struct mfs_cq *)cq;
}

static inline bool mfs_qp_is_datagram(const struct mfs_qp *qp)
{
	return qp->verbs.qp.qp_type == IBV_QPT_UD;
}

static inline void mfs_qp_enter(struct mfs_qp *qp, enum ibv_qp_state state)
{
	qp->state = qp->verbs.qp.state = state;
}

/* What a request takes on the connection; of a READ only the frame goes out. A datagram's head is as long. */
static inline uint32_t mfs_wqe_wire_bytes(const struct mfs_send_wqe *wqe)
{
	uint32_t payload = wqe->frame.opcode >= MFS_COMPARE_SWAP ? MFS_ATOMIC_OPERANDS_SIZE
			   : wqe->frame.opcode == MFS_READ       ? 0
								 : wqe->length;

	return (uint32_t)sizeof(wqe->frame) + payload;
}

static inline uint32_t mfs_power_of_two(uint32_t at_least)
{
	uint32_t size = 1;

	while (size < at_least)
		size *= 2;
	return size;
}

/* A thread that is cancelled in a system call would keep the lock for ever. Answers whether the lock was free. */
static inline bool mfs_context_trylock(struct mfs_context *context)
{
	int cancelable;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelable);
	if (pthread_mutex_trylock(&context->lock)) {
		pthread_setcancelstate(cancelable, NULL);
		return false;
	}
	context->cancelable = cancelable;
	return true;
}

/* Calls of the program go before progress, which would otherwise hold the lock almost without pause under
 * load. */
static inline void mfs_context_lock(struct mfs_context *context)
{
	int cancelable;

	if (mfs_context_trylock(context))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelable);
	atomic_fetch_add_explicit(&context->lock_waiters, 1, memory_order_relaxed);
	pthread_mutex_lock(&context->lock);
	atomic_fetch_sub_explicit(&context->lock_waiters, 1, memory_order_relaxed);
	context->cancelable = cancelable;
}

static inline void mfs_context_unlock(struct mfs_context *context)
{
	int cancelable = context->cancelable;

	pthread_mutex_unlock(&context->lock);
	pthread_setcancelstate(cancelable, NULL);
}

#endif
