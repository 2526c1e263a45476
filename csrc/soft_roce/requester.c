/* The sending half of a queue pair: sends requests, handles the peer's responses. */
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "requester.h"

#include "../base/clock.h"
#include "connection.h"
#include "cq.h"
#include "failure.h"
#include "mr.h"
#include "pacer.h"
#include "timer.h"

enum {
	BATCH_PIECES = 128,
	BATCH_BYTES = 128 * 1024, /* what one call hands to TCP */
	TURN_BYTES = 512 * 1024,  /* then others get the context's lock; the socket is mostly full before */
	RNR_RETRY_FOREVER = 7,
	REOPEN_AFTER_NS = 2 * 1000 * 1000,
};

static void reopen_later(struct mfs_qp *qp);

struct batch {
	struct iovec pieces[BATCH_PIECES];
	uint32_t count;
	uint32_t bytes;
	uint32_t limit;
	uint32_t reads; /* begun in this batch */
};

static struct mfs_context *context_of(const struct mfs_qp *qp)
{
	return mfs_context_of(qp->verbs.qp.context);
}

static struct mfs_send_wqe *wqe_at(const struct mfs_send_queue *sq, uint32_t index)
{
	return &sq->wqes[index & (sq->size - 1)];
}

static bool is_read(const struct mfs_send_wqe *wqe)
{
	return wqe->frame.opcode >= MFS_READ;
}

/* Fences and the bound on outstanding reads hold a request back until responses have come. */
static bool must_wait(const struct mfs_qp *qp, const struct mfs_send_wqe *wqe, uint32_t reads)
{
	reads += qp->sq.reads_in_flight;
	if ((wqe->flags & MFS_WQE_FENCE) && reads)
		return true;
	return is_read(wqe) && reads >= qp->attr.max_rd_atomic && qp->attr.max_rd_atomic;
}

/* Adds what is left of a piece after `skip` bytes. Returns false when the batch is full. */
static bool add_piece(struct batch *batch, void *base, size_t size, uint32_t *skip)
{
	struct iovec *piece = &batch->pieces[batch->count];

	if (*skip >= size) {
		*skip -= (uint32_t)size;
		return true;
	}
	if (batch->count == BATCH_PIECES || batch->bytes == batch->limit)
		return false;
	piece->iov_base = (uint8_t *)base + *skip;
	piece->iov_len = mfs_min(size - *skip, (size_t)(batch->limit - batch->bytes));
	batch->bytes += (uint32_t)piece->iov_len;
	batch->count++;
	*skip = 0;
	return batch->bytes < batch->limit;
}

/* The local memory of a request: what is sent, or what its response will be written to. */
int mfs_requester_memory(struct mfs_qp *qp, uint32_t index, struct iovec *pieces)
{
	struct mfs_send_queue *sq = &qp->sq;
	struct mfs_send_wqe *wqe = wqe_at(sq, index);
	uint32_t slot = index & (sq->size - 1);

	if (wqe->flags & MFS_WQE_INLINE) {
		pieces[0].iov_base = sq->inline_data + (size_t)slot * sq->max_inline;
		pieces[0].iov_len = wqe->length;
		return wqe->length ? 1 : 0;
	}
	return mfs_mr_resolve_sges(context_of(qp), qp->verbs.qp.pd, &sq->sges[(size_t)slot * sq->max_sge],
				   wqe->num_sge, wqe->length, is_read(wqe) ? IBV_ACCESS_LOCAL_WRITE : 0,
				   pieces);
}

static enum ibv_wc_status check_request(const struct mfs_qp *qp, const struct mfs_send_wqe *wqe)
{
	if (is_read(wqe) && !qp->attr.max_rd_atomic)
		return IBV_WC_LOC_QP_OP_ERR;
	if (wqe->frame.opcode >= MFS_COMPARE_SWAP && wqe->length != sizeof(uint64_t))
		return IBV_WC_LOC_LEN_ERR;
	return IBV_WC_SUCCESS;
}

/* Collects what can be sent now. Returns the error of the first request that cannot be sent at all, if
 * nothing is before it. */
static enum ibv_wc_status collect(struct mfs_qp *qp, struct batch *batch)
{
	struct mfs_send_queue *sq = &qp->sq;
	uint32_t index, skip = sq->sent_bytes;
	bool room = true;

	for (index = sq->sent; index != sq->tail && room; index++) {
		struct mfs_send_wqe *wqe = wqe_at(sq, index);
		struct iovec memory[MFS_MAX_SGE];
		enum ibv_wc_status status;
		int pieces = 0, i;

		if (!skip) {
			if (qp->state == IBV_QPS_SQD || must_wait(qp, wqe, batch->reads))
				break;
			status = check_request(qp, wqe);
			if (status)
				return batch->count ? IBV_WC_SUCCESS : status;
			wqe->frame.done = qp->responder ? htole32(qp->responder->requests_done) : 0;
		}
		pieces = mfs_requester_memory(qp, index, memory);
		if (pieces < 0)
			return batch->count ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
		if (!skip && is_read(wqe))
			batch->reads++;
		room = add_piece(batch, &wqe->frame, sizeof(wqe->frame), &skip);
		if (wqe->frame.opcode >= MFS_COMPARE_SWAP)
			room = room && add_piece(batch, wqe->operands, sizeof(wqe->operands), &skip);
		else if (!is_read(wqe))
			for (i = 0; i < pieces && room; i++)
				room = add_piece(batch, memory[i].iov_base, memory[i].iov_len, &skip);
	}
	return IBV_WC_SUCCESS;
}

/* Books bytes that TCP has taken. */
static void sent(struct mfs_qp *qp, uint32_t bytes)
{
	struct mfs_send_queue *sq = &qp->sq;

	while (bytes) {
		struct mfs_send_wqe *wqe = wqe_at(sq, sq->sent);
		uint32_t part = mfs_min(bytes, mfs_wqe_wire_bytes(wqe) - sq->sent_bytes);

		if (!sq->sent_bytes && is_read(wqe))
			sq->reads_in_flight++;
		sq->sent_bytes += part;
		bytes -= part;
		if (sq->sent_bytes == mfs_wqe_wire_bytes(wqe)) {
			sq->unsent_bytes -= sq->sent_bytes;
			sq->sent_bytes = 0;
			sq->sent++;
		}
	}
}

void mfs_requester_resume(struct mfs_pacer *pacer)
{
	mfs_requester_send(mfs_container_of(pacer, struct mfs_connection, pacer)->qp);
}

void mfs_requester_open(struct mfs_qp *qp)
{
	mfs_connection_open(qp, mfs_requester_resume);
}

/* Sends what can be sent, up to a turn's worth; with the context's lock held. */
void mfs_requester_send(struct mfs_qp *qp)
{
	struct mfs_connection *connection = qp->requester;
	struct mfs_send_queue *sq = &qp->sq;
	struct batch batch;
	struct msghdr message = {.msg_iov = batch.pieces};
	enum ibv_wc_status status;
	uint32_t total = 0;
	bool full = false;
	ssize_t size;

	if (qp->requester_lost && sq->tail != sq->head && qp->timer != MFS_REOPEN_TIMER) {
		mfs_requester_open(qp);
		if (qp->requester_lost)
			reopen_later(qp);
		return;
	}
	if (!connection || connection->state != MFS_OPEN)
		return;
	while (sq->sent != sq->tail && !full && total < TURN_BYTES) {
		batch.count = batch.bytes = batch.reads = 0;
		batch.limit =
			mfs_connection_pace(connection, (uint32_t)mfs_min(sq->unsent_bytes - sq->sent_bytes,
									  (uint64_t)BATCH_BYTES));
		if (!batch.limit)
			break;
		status = collect(qp, &batch);
		if (status) {
			/* requests before this one are done first */
			if (sq->head == sq->sent) {
				mfs_qp_fail(qp, status);
				return;
			}
			break;
		}
		if (!batch.bytes)
			break;
		message.msg_iovlen = batch.count;
		size = sendmsg(connection->source.fd, &message, MSG_NOSIGNAL);
		if (size < 0) {
			full = errno == EAGAIN || errno == EINTR;
			if (full)
				break;
			if (errno == EFAULT)
				mfs_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
			else
				mfs_requester_lost(connection);
			return;
		}
		sent(qp, (uint32_t)size);
		mfs_connection_count(connection, MFS_SENT, (uint32_t)size);
		mfs_pacer_spend(&connection->pacer, (uint32_t)size);
		total += (uint32_t)size;
		full = (uint32_t)size < batch.bytes;
	}
	/* more after this turn: the socket says when it has room, at once if it has now */
	connection->want_write = full || total >= TURN_BYTES;
	connection->pacer.backlogged = connection->pacer.backlogged && sq->sent != sq->tail;
	mfs_connection_update(connection);
}

static void complete(struct mfs_qp *qp)
{
	struct mfs_send_queue *sq = &qp->sq;
	struct mfs_send_wqe *wqe = wqe_at(sq, sq->head++);
	struct ibv_wc wc = {
		.wr_id = wqe->wr_id,
		.opcode = wqe->wc_opcode,
		.byte_len = wqe->length,
		.qp_num = qp->verbs.qp.qp_num,
	};

	if (is_read(wqe))
		sq->reads_in_flight--;
	if (wqe->flags & MFS_WQE_SIGNALED)
		mfs_cq_push(mfs_cq_of(qp->init.send_cq), &wc, false);
}

/* Completes the requests before that number. False when the peer acknowledges what it cannot have. */
static bool complete_before(struct mfs_qp *qp, uint32_t number)
{
	struct mfs_send_queue *sq = &qp->sq;

	if ((int32_t)(number - sq->head) <= 0)
		return true; /* a request of the peer has said so earlier */
	if (number - sq->head > sq->sent - sq->head)
		return false;
	while (sq->head != number) {
		if (is_read(wqe_at(sq, sq->head)))
			return false; /* a read is done by its response only */
		complete(qp);
	}
	return true;
}

/* What the peer's requests say about ours. Reads still wait for their responses. */
void mfs_requester_done_by_peer(struct mfs_qp *qp, uint32_t done)
{
	struct mfs_send_queue *sq = &qp->sq;

	if (!qp->requester || !qp->requester->accepted)
		return;
	done += qp->requester->first;
	if (done - sq->head > sq->sent - sq->head)
		return;
	while (sq->head != done && !is_read(wqe_at(sq, sq->head)))
		complete(qp);
}

static void stop_rnr_timer(struct mfs_qp *qp)
{
	if (qp->timer == MFS_RNR_TIMER)
		mfs_timer_stop(qp);
}

static uint64_t rnr_timer_ns(uint8_t code)
{
	/* in units of 10 microseconds, by the code of the InfiniBand specification */
	static const uint32_t timers[32] = {
		65536, 1,    2,    3,    4,    6,     8,     12,    16,    24,    32,
		48,    64,   96,   128,  192,  256,   384,   512,   768,   1024,  1536,
		2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
	};

	return timers[code & 31] * 10000ULL;
}

/* The peer has no receive for the oldest request. It waits for one; we give up when a NIC had used up its
 * retries. */
static void receiver_not_ready(struct mfs_qp *qp, uint8_t timer_code)
{
	if (qp->attr.rnr_retry != RNR_RETRY_FOREVER)
		mfs_timer_start(qp, MFS_RNR_TIMER,
				mfs_clock_ns() + qp->attr.rnr_retry * rnr_timer_ns(timer_code));
}

/* Tries later to reach the peer, which may not be ready yet, as long as a NIC would: retry_cnt times after
 * timeout. */
static void reopen_later(struct mfs_qp *qp)
{
	uint64_t now = mfs_clock_ns(), timeout_ns = qp->attr.timeout ? 4096ULL << qp->attr.timeout : 0;

	if (!qp->reopen_until_ns)
		qp->reopen_until_ns = timeout_ns ? now + timeout_ns * (qp->attr.retry_cnt + 1U) : UINT64_MAX;
	if (now >= qp->reopen_until_ns)
		mfs_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
	else
		mfs_timer_start(qp, MFS_REOPEN_TIMER, mfs_min(now + REOPEN_AFTER_NS, qp->reopen_until_ns));
}

void mfs_requester_timer(struct mfs_qp *qp)
{
	enum mfs_qp_timer timer = qp->timer;

	mfs_timer_stop(qp);
	if (timer == MFS_RNR_TIMER)
		mfs_qp_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
	else
		mfs_requester_send(qp);
}

/* The connection has ended. Once the peer had accepted it, outstanding requests fail like those of a NIC
 * whose retries are used up; before, nothing of it has been executed, and it is tried again. */
void mfs_requester_lost(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	struct mfs_send_queue *sq = &qp->sq;
	bool accepted = connection->accepted;

	mfs_connection_close(connection);
	qp->requester = NULL;
	qp->requester_lost = true;
	if (sq->head == sq->tail)
		return;
	if (accepted) {
		mfs_qp_fail(qp, IBV_WC_RETRY_EXC_ERR);
		return;
	}
	while (sq->sent != sq->head)
		sq->unsent_bytes += mfs_wqe_wire_bytes(wqe_at(sq, --sq->sent));
	sq->sent_bytes = sq->reads_in_flight = 0;
	reopen_later(qp);
}

static enum mfs_verdict protocol_error(struct mfs_connection *connection)
{
	mfs_qp_fail(connection->qp, IBV_WC_BAD_RESP_ERR);
	return MFS_STOP;
}

static enum ibv_wc_status status_of(uint8_t syndrome)
{
	switch (syndrome) {
	case MFS_SYNDROME_INVALID_REQUEST:
		return IBV_WC_REM_INV_REQ_ERR;
	case MFS_SYNDROME_REMOTE_ACCESS:
		return IBV_WC_REM_ACCESS_ERR;
	default:
		return IBV_WC_REM_OP_ERR;
	}
}

static enum mfs_verdict acknowledged(struct mfs_connection *connection)
{
	const struct mfs_frame *frame = &connection->frame;
	struct mfs_qp *qp = connection->qp;
	uint32_t done = connection->first + le32toh(frame->value);

	connection->accepted = true;
	qp->reopen_until_ns = 0;
	if (frame->syndrome != MFS_SYNDROME_NONE && frame->syndrome != MFS_SYNDROME_RECEIVER_NOT_READY) {
		complete_before(qp, done);
		mfs_qp_fail(qp, status_of(frame->syndrome));
		return MFS_STOP;
	}
	if (!complete_before(qp, done))
		return protocol_error(connection);
	stop_rnr_timer(qp); /* the peer says when it finds no receive, and again when it has found one */
	if (frame->syndrome == MFS_SYNDROME_RECEIVER_NOT_READY)
		receiver_not_ready(qp, (uint8_t)le32toh(frame->key));
	return MFS_GO_ON;
}

/* Where the oldest request's response goes. */
static int response_target(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	int pieces = mfs_requester_memory(qp, qp->sq.head, connection->target);

	if (pieces < 0)
		return pieces;
	connection->target_count = (uint32_t)pieces;
	return 0;
}

static enum mfs_verdict read_response(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	struct mfs_send_wqe *wqe = wqe_at(&qp->sq, qp->sq.head);
	uint32_t length = le32toh(connection->frame.length);

	if (qp->sq.head == qp->sq.sent || wqe->frame.opcode != MFS_READ || wqe->length != length)
		return protocol_error(connection);
	if (response_target(connection)) {
		mfs_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
		return MFS_STOP;
	}
	connection->payload_left = length;
	return MFS_GO_ON;
}

static enum mfs_verdict atomic_response(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	uint64_t before = le64toh(connection->frame.address);
	const uint8_t *from = (const uint8_t *)&before;
	uint32_t i;

	if (qp->sq.head == qp->sq.sent || wqe_at(&qp->sq, qp->sq.head)->frame.opcode < MFS_COMPARE_SWAP)
		return protocol_error(connection);
	if (response_target(connection)) {
		mfs_qp_fail(qp, IBV_WC_LOC_PROT_ERR);
		return MFS_STOP;
	}
	for (i = 0; i < connection->target_count; i++) {
		memcpy(connection->target[i].iov_base, from, connection->target[i].iov_len);
		from += connection->target[i].iov_len;
	}
	return MFS_GO_ON;
}

enum mfs_verdict mfs_requester_frame(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	uint8_t opcode = connection->frame.opcode;

	if (opcode == MFS_ACK)
		return acknowledged(connection);
	if (opcode != MFS_READ_RESPONSE && opcode != MFS_ATOMIC_RESPONSE)
		return protocol_error(connection);
	/* the response to a read acknowledges what was before it */
	if (!complete_before(qp, connection->first + le32toh(connection->frame.value)))
		return protocol_error(connection);
	stop_rnr_timer(qp);
	return opcode == MFS_READ_RESPONSE ? read_response(connection) : atomic_response(connection);
}

enum mfs_verdict mfs_requester_payload_done(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;

	if (connection->frame.opcode != MFS_ACK)
		complete(qp);
	mfs_qp_check_drained(qp);
	/* an acknowledgement may release deferred, fenced or surplus requests, or one that waits with its
	 * error */
	if (qp->sq.sent != qp->sq.tail && !qp->deferred)
		mfs_defer(qp);
	return MFS_GO_ON;
}

/* Finds the target of the payload that is arriving anew, from its start. */
enum mfs_verdict mfs_requester_revalidate(struct mfs_connection *connection)
{
	if (!response_target(connection))
		return MFS_GO_ON;
	mfs_qp_fail(connection->qp, IBV_WC_LOC_PROT_ERR);
	return MFS_STOP;
}
