/*
 * Objects of the soft RoCE provider and what its files offer each other.
 *
 * Locking: one mutex per context guards all queue pairs, connections and keys of that context, so an event of
 * the network is handled from the first byte to the completion without another lock. Completion queues are
 * rings that the context's lock holder fills and that any poller drains under the queue's own lock. No call
 * blocks with a lock held: sockets are non-blocking and each turn moves a bounded number of bytes.
 */
#ifndef MFS_SOFT_ROCE_H
#define MFS_SOFT_ROCE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/uio.h>

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
	MFS_MAX_READS = 16,	/* outstanding RDMA READs and atomics of a queue pair, power of two */
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
	uint32_t size;	      /* power of two */
	uint32_t limit;	      /* entries the user may fill */
	uint32_t max_sge;
	uint32_t head, tail;
};

struct mfs_srq {
	struct verbs_srq verbs;
	struct mfs_recv_queue queue;
	uint32_t watermark; /* event when fewer receives are left; 0: none */
	bool stalled;	    /* some queue pair waits for a receive */
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
	bool waiting;	 /* in the context's list, until `due_ns` */
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
	bool datagrams_full;	     /* some queue pair waits for room in the UDP socket */
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
	bool accepted;	/* by the peer's queue pair; what was sent before it counts as unsent if it is not */
	uint32_t first; /* number in the send queue of the connection's first request */
	bool stalled;	/* receiver not ready: nothing is read */
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
	uint8_t *stash;	    /* bytes read but not handled, of a stalled connection */
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

enum mfs_qp_timer { MFS_NO_TIMER, MFS_RNR_TIMER, MFS_REOPEN_TIMER };

struct mfs_qp {
	struct verbs_qp verbs;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct mfs_port *port;	/* that of its number */
	struct mfs_pacer pacer; /* of a UD queue pair; connections have their own */
	bool notify_drained;
	struct mfs_send_queue sq;
	struct mfs_recv_queue rq;
	struct mfs_recv_queue *receives; /* own or shared */
	struct mfs_recv_wqe receiving;	 /* taken by the message that is arriving */
	struct ibv_sge receiving_sges[MFS_MAX_SGE];
	bool receiving_taken;
	struct mfs_connection *requester;
	struct mfs_connection *responder;
	struct mfs_connection *waiting;	  /* becomes the responder when the queue pair is ready */
	bool requester_lost;	  /* to be opened again for the next request */
	uint64_t reopen_until_ns; /* then retries are used up; 0: none was needed yet */
	bool deferred;		  /* in the context's list of queue pairs with requests to send */
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

	pthread_mutex_t lock; /* for calls of the program, by mfs_context_lock */
	_Atomic uint32_t lock_waiters;
	int epoll_fd;
	int async_write_fd;
	struct mfs_source timer, wake;
	uint64_t timer_due_ns; /* 0: not armed */
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
	struct mfs_pacer_list paced;	   /* by due time */
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

/* What a request takes on the connection; of a READ only the frame goes out. A datagram's head is as long. */
static inline uint32_t mfs_wqe_wire_bytes(const struct mfs_send_wqe *wqe)
{
	uint32_t payload = wqe->frame.opcode >= MFS_COMPARE_SWAP ? MFS_ATOMIC_OPERANDS_SIZE
			   : wqe->frame.opcode == MFS_READ	 ? 0
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

extern uint32_t mfs_forks;

/* By fork: it belongs to the parent, every call fails. */
static inline bool mfs_context_inherited(const struct mfs_context *context)
{
	return context->forks != mfs_forks;
}

/* Calls of the program go before progress, which would otherwise hold the lock almost without pause under
 * load. */
static inline void mfs_context_lock(struct mfs_context *context)
{
	if (!pthread_mutex_trylock(&context->lock))
		return;
	atomic_fetch_add_explicit(&context->lock_waiters, 1, memory_order_relaxed);
	pthread_mutex_lock(&context->lock);
	atomic_fetch_sub_explicit(&context->lock_waiters, 1, memory_order_relaxed);
}

static inline void mfs_context_unlock(struct mfs_context *context)
{
	pthread_mutex_unlock(&context->lock);
}

uint64_t mfs_now_ns(void);

/* context.c */
void mfs_context_init(struct mfs_context *context);
int mfs_context_start(struct mfs_context *context);
void mfs_context_stop(struct mfs_context *context);
struct verbs_context *mfs_context_open(struct ibv_device *device, int cmd_fd, void *private_data);
struct mfs_context *mfs_context_by_command_fd(int fd);

/* descriptors.c */
int mfs_descriptor_own(int fd);
void mfs_descriptor_close(int fd);
void mfs_descriptors_close_all(void);

/* channel.c */
int mfs_channel_install(void *libibverbs);
struct mfs_channel *mfs_channel_find(struct mfs_context *context, int read_fd);
void mfs_channel_close_all(struct mfs_context *context);
void mfs_channel_notify(struct mfs_channel *channel, struct mfs_cq *cq);
void mfs_channel_forget(struct mfs_channel *channel, struct mfs_cq *cq);
void mfs_async_raise(struct mfs_context *context, enum ibv_event_type type, void *element);
void mfs_async_forget(struct mfs_context *context, const void *element);
void mfs_async_event(struct ibv_context *context, struct ibv_async_event *event);

/* mr.c */
struct ibv_pd *mfs_alloc_pd(struct ibv_context *context);
int mfs_dealloc_pd(struct ibv_pd *pd);
void mfs_pd_use(struct ibv_pd *pd, int change);
struct ibv_mr *mfs_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
int mfs_rereg_mr(struct verbs_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);
int mfs_dereg_mr(struct verbs_mr *mr);
void *mfs_mr_resolve(struct mfs_context *context, struct ibv_pd *pd, uint32_t key, uint64_t address,
		     uint64_t length, int access);
int mfs_mr_resolve_sges(struct mfs_context *context, struct ibv_pd *pd, const struct ibv_sge *sges,
			uint32_t count, uint64_t length, int access, struct iovec *out);

/* cq.c, cq_ex.c */
struct ibv_cq *mfs_create_cq(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel,
			     int vector);
struct ibv_cq_ex *mfs_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
int mfs_destroy_cq(struct ibv_cq *cq);
int mfs_resize_cq(struct ibv_cq *cq, int cqe);
int mfs_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int mfs_req_notify_cq(struct ibv_cq *cq, int solicited_only);
void mfs_cq_event(struct ibv_cq *cq);
void mfs_cq_push(struct mfs_cq *cq, const struct ibv_wc *wc, bool solicited);
void mfs_cq_remove(struct mfs_cq *cq, uint32_t qp_num);

/* srq.c */
int mfs_recv_queue_init(struct mfs_recv_queue *queue, uint32_t max_wr, uint32_t max_sge);
void mfs_recv_queue_free(struct mfs_recv_queue *queue);
int mfs_recv_queue_post(struct mfs_recv_queue *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
bool mfs_recv_queue_take(struct mfs_recv_queue *queue, struct mfs_recv_wqe *wqe, struct ibv_sge *sges);
struct ibv_srq *mfs_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
struct ibv_srq *mfs_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
int mfs_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int attr_mask);
int mfs_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int mfs_destroy_srq(struct ibv_srq *srq);
int mfs_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
void mfs_srq_taken(struct mfs_context *context, struct mfs_srq *srq);

/* qp.c, qp_state.c */
struct ibv_qp *mfs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *mfs_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
int mfs_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init);
int mfs_destroy_qp(struct ibv_qp *qp);
int mfs_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
struct mfs_qp *mfs_qp_find(struct mfs_context *context, uint32_t qp_num);
void mfs_qp_fail(struct mfs_qp *qp, enum ibv_wc_status status);
void mfs_qp_fail_send(struct mfs_qp *qp, enum ibv_wc_status status);
void mfs_qp_flush(struct mfs_qp *qp);
void mfs_qp_flush_sends(struct mfs_qp *qp);
void mfs_qp_check_drained(struct mfs_qp *qp);
void mfs_qp_raise(struct mfs_qp *qp, enum ibv_event_type type);
uint64_t mfs_rnr_timer_ns(uint8_t code);

/* ah.c, datagram.c: UD queue pairs */
struct ibv_ah *mfs_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int mfs_destroy_ah(struct ibv_ah *ah);
void mfs_ah_address(struct mfs_destination *to, const struct ibv_ah *ah, uint32_t qp_num, uint32_t qkey);
int mfs_datagrams_open(struct mfs_context *context, struct mfs_port *port);
void mfs_datagrams_event(struct mfs_context *context, struct mfs_port *port, uint32_t events);
void mfs_datagrams_send(struct mfs_qp *qp);
void mfs_datagrams_resume(struct mfs_pacer *pacer);

/* pacer.c */
uint32_t mfs_pacer_credit(struct mfs_context *context, struct mfs_pacer *pacer, uint32_t turn_bytes);
void mfs_pacer_spend(struct mfs_pacer *pacer, uint32_t bytes);
void mfs_pacer_stop(struct mfs_context *context, struct mfs_pacer *pacer);
void mfs_pacers_run(struct mfs_context *context, uint64_t now_ns);

/* post.c, builder.c */
int mfs_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
int mfs_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
bool mfs_post_allowed(const struct mfs_qp *qp);
void mfs_post_publish(struct mfs_send_queue *sq);
void mfs_post_start(struct mfs_qp *qp);
void mfs_builder_setup(struct mfs_qp *qp, uint64_t operations);

/* connection.c */
int mfs_port_open(struct mfs_context *context, struct mfs_port **port);
void mfs_port_accept(struct mfs_context *context, struct mfs_port *port);
void mfs_connection_open(struct mfs_qp *qp);
void mfs_connection_close(struct mfs_connection *connection);
void mfs_connection_close_qp(struct mfs_qp *qp);
void mfs_connection_lost(struct mfs_connection *connection);
void mfs_connection_send(struct mfs_connection *connection);
void mfs_connection_drain(struct mfs_connection *connection);
void mfs_connection_greet(struct mfs_connection *connection);
void mfs_connection_close_strangers(struct mfs_context *context);
void mfs_connection_event(struct mfs_connection *connection, uint32_t events);
void mfs_connection_update(struct mfs_connection *connection);
void mfs_connection_set_class(struct mfs_connection *connection, uint8_t traffic_class);
void mfs_connection_free_closed(struct mfs_context *context);
uint32_t mfs_connection_pace(struct mfs_connection *connection, uint32_t wanted_bytes);

/* receive.c: turns bytes into frames and payload */
enum mfs_verdict {
	MFS_GO_ON,
	MFS_STALL, /* receiver not ready: handle this frame again when there is a receive */
	MFS_STOP,  /* the connection has ended or takes no more */
	MFS_LOST,
};
void mfs_receive(struct mfs_connection *connection);
void mfs_receive_resume(struct mfs_connection *connection);

/* requester.c */
void mfs_requester_send(struct mfs_qp *qp);
int mfs_requester_memory(struct mfs_qp *qp, uint32_t index, struct iovec *pieces);
enum mfs_verdict mfs_requester_frame(struct mfs_connection *connection);
enum mfs_verdict mfs_requester_payload_done(struct mfs_connection *connection);
int mfs_requester_revalidate(struct mfs_connection *connection);
void mfs_requester_lost(struct mfs_connection *connection);
void mfs_requester_done_by_peer(struct mfs_qp *qp, uint32_t done);
void mfs_requester_timer(struct mfs_qp *qp);

/* responder.c */
void mfs_responder_send(struct mfs_connection *connection);
enum mfs_verdict mfs_responder_frame(struct mfs_connection *connection);
enum mfs_verdict mfs_responder_payload_done(struct mfs_connection *connection);
int mfs_responder_revalidate(struct mfs_connection *connection);
void mfs_responder_batch_done(struct mfs_connection *connection);

/* progress.c */
int mfs_progress_start(struct mfs_context *context);
void mfs_progress_stop(struct mfs_context *context);
void mfs_progress_help(struct mfs_context *context);
void mfs_progress_defer(struct mfs_qp *qp);
void mfs_progress_timer(struct mfs_context *context, uint64_t due_ns);
void mfs_progress_start_timer(struct mfs_qp *qp, enum mfs_qp_timer timer, uint64_t due_ns);
void mfs_progress_stop_timer(struct mfs_qp *qp);

#endif
