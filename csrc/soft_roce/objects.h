/*
 * Objects of the soft RoCE provider.
 *
 * Locking: one mutex per context protects all of its queue pairs, connections and keys. An event of the
 * network is therefore handled from the first byte to the completion without another lock. Completion
 * queues are rings: the holder of the context's lock fills them, and any poller drains them under the
 * queue's own lock. No call blocks while it holds a lock: sockets are non-blocking, and each turn moves a
 * bounded number of bytes.
 *
 * Layers, from above to below. Each has a header of its own, includes only those below it, and calls none
 * above it (tests/unit/test_native_layers.py):
 *
 *   provider.c       registers with libibverbs
 *   context.c        opening and closing a device
 *   srq.c            shared receive queues
 *   qp.c             queue pairs: creation, destruction
 *   builder.c        ibv_wr_*
 *   post.c           ibv_post_send, ibv_post_recv
 *   qp_state.c       ibv_modify_qp
 *   cq_ex.c          ibv_start_poll and its like
 *   poll.c           ibv_poll_cq
 *   progress.c       which thread moves the bytes
 *   handshake.c      accepting connections, and events on connections
 *   receive.c        turns bytes into frames and payload
 *   responder.c      the answering half of a queue pair
 *   datagram.c       UD queue pairs
 *   requester.c      the sending half of a queue pair
 *   failure.c        flushing requests and receives
 *   connection.c     TCP connections
 *   port.c           TCP ports, and the queue pair numbers on them
 *   receive_queue.c  receives
 *   cq.c             completion queues
 *   pacer.c          turns on a link of limited rate
 *   timer.c          work for the next turn or for a later time
 *   channel.c        completion channels, asynchronous events
 *   ah.c             address handles
 *   mr.c             protection domains, memory regions
 *   registry.c       open devices, fork
 *   objects.h        structures
 *   wire.h           frames
 *   library.c        the private functions of libibverbs
 *   provider_abi.h   the types of these functions
 *   rate.c           the device's rate limit
 *   counters.c       bytes that the device has carried
 *   descriptors.c    the descriptors that belong to the provider
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
	/* connections without a queue pair; the usual limit of descriptors is 1,024 */
	MFS_MAX_STRANGERS = 256,
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

/* Completion channel: libibverbs owns the reading end, the provider the writing end. */
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
	_Atomic uint32_t head;           /* next to poll; written under poll_lock */
	_Atomic uint32_t tail;           /* next to fill; written under the context's lock */
	_Atomic uint32_t armed;          /* 1: for any completion, 2: for solicited ones and errors; 0: no */
	uint32_t channel_events_written; /* under the context's lock */
	_Atomic uint32_t channel_events_read;
	uint32_t async_events_raised;
	_Atomic uint32_t async_events_read;
	_Atomic int users;
	struct ibv_wc current; /* read by the extended polling interface */
};

struct mfs_recv_wqe {
	uint64_t wr_id;
	uint32_t num_sge;
};

/* A queue of receives, of one queue pair or shared by many. */
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
	uint32_t watermark; /* an event is raised when fewer receives are left; 0: none */
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

/* Where a datagram goes. Copied from the address handle when the request is posted, since the handle may
 * be gone when the datagram is sent. */
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
	struct mfs_destination to; /* only for UD queue pairs */
	uint64_t operands[2];
	uint32_t num_sge;
	uint32_t length; /* local bytes: to be sent, or written by the response */
	uint8_t wc_opcode;
	uint8_t flags;
};

/* Numbers of requests, head <= sent <= tail: [head, sent) wait for the peer, [sent, tail) have not been
 * sent completely. */
struct mfs_send_queue {
	struct mfs_send_wqe *wqes;
	struct ibv_sge *sges;
	uint8_t *inline_data;
	uint32_t size;
	uint32_t limit;
	uint32_t max_sge;
	uint32_t max_inline;
	uint32_t head, sent, tail;
	uint32_t sent_bytes; /* bytes of request `sent` that are sent, frame included */
	uint32_t reads_in_flight;
	uint64_t unsent_bytes; /* all bytes of the requests from `sent` on, frames included */
};

enum mfs_source_kind {
	MFS_SOURCE_PORT,
	MFS_SOURCE_DATAGRAMS,
	MFS_SOURCE_CONNECTION,
	MFS_SOURCE_TIMER,
	MFS_SOURCE_WAKE,
};

/* Part of everything that is registered with a context's epoll set; epoll's events point to it. */
struct mfs_source {
	enum mfs_source_kind kind;
	int fd;
};

/* A sender on a link of limited rate, which sends in turns. */
struct mfs_pacer {
	bool waiting;          /* in the context's list, until `due_ns` */
	bool backlogged;       /* has had something to send since `due_ns` */
	uint64_t due_ns;       /* when the last or next turn begins */
	uint32_t credit_bytes; /* left of the present turn */
	void (*resume)(struct mfs_pacer *pacer);
	TAILQ_ENTRY(mfs_pacer) link;
};

/* A listening TCP port, which provides 256 queue pair numbers. It gets a UDP socket with the same port
 * number with the first UD queue pair. */
struct mfs_port {
	struct mfs_source source;
	struct mfs_source datagrams; /* fd is -1 while there is no UDP socket */
	bool datagrams_full;         /* some queue pair waits for room in the UDP socket */
	bool starved;                /* no descriptor or memory for the last connection */
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
	MFS_GREETING, /* accepted, but no hello received yet */
	MFS_WAITING,  /* hello received, but the queue pair is not ready to receive */
	MFS_OPEN,
	MFS_DRAINING,
	MFS_CLOSED,
};

struct mfs_connection {
	struct mfs_source source;
	struct mfs_context *context;
	struct mfs_qp *qp;
	TAILQ_ENTRY(mfs_connection) link; /* in the list of strangers or of closed connections */
	enum mfs_connection_state state;
	bool requester; /* opened by this side: requests go out, responses come in */
	/* The peer's queue pair has accepted the connection. Until then, what was sent counts as unsent if
	 * the connection ends. */
	bool accepted;
	/* number in the send queue of the first request on this connection */
	uint32_t first;
	bool stalled; /* nothing is read, for example for want of a receive */
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
	uint32_t key_epoch; /* the context's epoch when the keys behind `target` were checked */
	uint8_t *stash;     /* bytes that a stalled connection has read but not handled */
	uint32_t stash_position, stash_size;

	/* responses, written by the responder */
	struct mfs_response responses[MFS_MAX_READS];
	uint32_t responses_head, responses_tail;
	struct mfs_frame ack;
	bool ack_started, ack_wanted, rnr_wanted;
	uint8_t nak; /* refusal to send, after which nothing more is sent; 0: none */
	uint32_t requests_done;
	uint32_t sent_bytes; /* of the response being sent */

	struct mfs_pacer pacer;
};

/* How a half of a queue pair wants to go on after a frame or payload. */
enum mfs_verdict {
	MFS_GO_ON,
	MFS_STALL, /* receiver not ready: handle this frame again when there is a receive */
	MFS_STOP,  /* the connection has ended or takes nothing more */
	MFS_LOST,  /* the connection has failed */
};

enum mfs_qp_timer { MFS_NO_TIMER, MFS_RNR_TIMER, MFS_REOPEN_TIMER };

struct mfs_qp {
	struct verbs_qp verbs;
	/* The provider's own copy: libibverbs stores to the user's copy without a lock. */
	enum ibv_qp_state state;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct mfs_port *port;  /* the port in the queue pair's number */
	struct mfs_pacer pacer; /* for UD; RC connections have their own */
	bool notify_drained;
	struct mfs_send_queue sq;
	struct mfs_recv_queue rq;
	struct mfs_recv_queue *receives; /* its own `rq`, or that of the SRQ */
	struct mfs_recv_wqe receiving;   /* the receive taken by the arriving message */
	struct ibv_sge receiving_sges[MFS_MAX_SGE];
	bool receiving_taken;
	struct mfs_connection *requester;
	struct mfs_connection *responder;
	struct mfs_connection *waiting; /* becomes the responder when the queue pair is ready */
	bool requester_lost;            /* `requester` must be opened again for the next request */
	uint64_t reopen_until_ns;       /* when the retries for that are used up; 0: none was needed yet */
	bool deferred;                  /* in the context's list of queue pairs with requests to send */
	TAILQ_ENTRY(mfs_qp) deferred_link;
	/* Unless this is MFS_NO_TIMER, the queue pair is in the context's list `timed`. */
	enum mfs_qp_timer timer;
	uint64_t timer_due_ns;
	TAILQ_ENTRY(mfs_qp) timed_link;
	TAILQ_ENTRY(mfs_qp) link;
	uint32_t async_events_raised;
	_Atomic uint32_t async_events_read;
	/* Held while the slots behind the tail are filled: during one ibv_post_send, or from wr_start to
	 * wr_complete or wr_abort. Taken before the context's lock. */
	pthread_mutex_t post_lock;
	uint32_t built, build_room; /* ibv_wr_*: requests since wr_start, and their limit */
	int build_error;
};

TAILQ_HEAD(mfs_connection_list, mfs_connection);
TAILQ_HEAD(mfs_qp_list, mfs_qp);
TAILQ_HEAD(mfs_pacer_list, mfs_pacer);

struct mfs_context {
	struct verbs_context verbs;
	LIST_ENTRY(mfs_context) registry_link;
	uint32_t forks; /* value of mfs_forks when it was opened */
	struct in_addr address;
	struct mfs_rate rate;
	struct mfs_counters counters;

	pthread_mutex_t lock; /* calls of the program take it with mfs_context_lock */
	int cancelable;       /* cancel state to restore on unlock */
	_Atomic uint32_t lock_waiters;
	int epoll_fd;
	int async_write_fd;
	int moving_read_fd, moving_write_fd; /* a pipe used to empty others (take_all in channel.c) */
	struct mfs_source timer, wake;
	uint64_t timer_due_ns;  /* 0: not armed */
	uint64_t accept_due_ns; /* when starved ports are tried again; 0: no such time */
	pthread_t thread;
	_Atomic bool stopping;
	_Atomic uint64_t last_poll_ns;
	_Atomic uint64_t idle_since_ns; /* since when polls find nothing; 0: the last one found something */
	_Atomic uint32_t waiting_pollers;

	struct mfs_port *ports[MFS_MAX_PORTS];
	uint32_t port_count;
	struct mfs_mr **mrs;
	uint32_t mr_slots, mr_next, mr_count;
	uint32_t key_epoch; /* incremented when a key becomes invalid or changes */
	LIST_HEAD(, mfs_channel) channels;
	struct mfs_qp_list qps;
	struct mfs_qp_list deferred;
	struct mfs_qp_list timed;
	struct mfs_connection_list strangers; /* oldest first: without a hello yet, or draining */
	uint32_t stranger_count;
	struct mfs_pacer_list paced;       /* in the order of due_ns */
	struct mfs_connection_list closed; /* freed when no fetched event can point to them */
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

/* Returns the bytes of a request on the connection. Of a READ, only the frame is sent. The head of a
 * datagram is as long as a frame. */
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

/* Takes the lock if it is free; returns false otherwise. The holder cannot be cancelled: a thread
 * cancelled in a system call would keep the lock for ever. */
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

/* Takes the lock for a call of the program. The call goes before threads that make progress, which see
 * lock_waiters: under load they would otherwise hold the lock almost without a pause. */
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
