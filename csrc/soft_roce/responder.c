/* The answering half of a queue pair: places the peer's data, answers its reads, acknowledges. */
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "responder.h"

#include "connection.h"
#include "cq.h"
#include "failure.h"
#include "mr.h"
#include "pacer.h"
#include "receive_queue.h"
#include "requester.h"

enum { TURN_BYTES = 512 * 1024, CALL_BYTES = 128 * 1024 };

static bool needs_receive(const struct mfs_frame *frame)
{
	return frame->opcode == MFS_SEND || (frame->flags & MFS_FRAME_IMMEDIATE);
}

static void push_receive(struct mfs_qp *qp, const struct mfs_frame *frame, enum ibv_wc_status status)
{
	struct ibv_wc wc = {
		.wr_id = qp->receiving.wr_id,
		.status = status,
		.opcode = frame->opcode == MFS_SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
		.byte_len = le32toh(frame->length),
		.qp_num = qp->verbs.qp.qp_num,
		.src_qp = qp->attr.dest_qp_num,
	};

	if (frame->flags & MFS_FRAME_IMMEDIATE) {
		wc.wc_flags = IBV_WC_WITH_IMM;
		wc.imm_data = frame->value;
	}
	qp->receiving_taken = false;
	mfs_cq_push(mfs_cq_of(qp->init.recv_cq), &wc, frame->flags & MFS_FRAME_SOLICITED);
}

/* Refuses a request: the peer gets the reason, this queue pair goes to the error state. A receive that the
 * request had taken completes with `local`, if that is an error of its own. */
static enum mfs_verdict refuse(struct mfs_connection *connection, enum mfs_syndrome syndrome,
			       enum ibv_wc_status local)
{
	struct mfs_qp *qp = connection->qp;

	connection->nak = (uint8_t)syndrome;
	connection->ack_wanted = true;
	connection->stalled = true; /* nothing more is taken */
	if (qp->receiving_taken && local != IBV_WC_SUCCESS)
		push_receive(qp, &connection->frame, local);
	if (syndrome == MFS_SYNDROME_REMOTE_ACCESS)
		mfs_qp_raise(qp, IBV_EVENT_QP_ACCESS_ERR);
	else if (syndrome == MFS_SYNDROME_INVALID_REQUEST && local == IBV_WC_SUCCESS)
		mfs_qp_raise(qp, IBV_EVENT_QP_REQ_ERR);
	mfs_qp_fail(qp, IBV_WC_WR_FLUSH_ERR);
	mfs_responder_send(connection);
	return MFS_STOP;
}

static bool take_receive(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	struct mfs_srq *srq = (struct mfs_srq *)qp->init.srq;

	if (qp->receiving_taken)
		return true; /* left by a message whose sender went away */
	qp->receiving_taken = mfs_recv_queue_take(qp->receives, &qp->receiving, qp->receiving_sges);
	if (srq) {
		srq->stalled = srq->stalled || !qp->receiving_taken;
		mfs_srq_check(connection->context, srq);
	}
	return qp->receiving_taken;
}

static enum mfs_verdict receiver_not_ready(struct mfs_connection *connection)
{
	if (!connection->stalled)
		connection->rnr_wanted = connection->ack_wanted = true;
	return MFS_STALL;
}

/* The memory of the receive that was taken. */
static enum mfs_verdict target_receive(struct mfs_connection *connection)
{
	struct mfs_qp *qp = connection->qp;
	uint32_t length = le32toh(connection->frame.length);
	int pieces;

	pieces = mfs_mr_resolve_sges(connection->context, qp->verbs.qp.pd, qp->receiving_sges,
				     qp->receiving.num_sge, length, IBV_ACCESS_LOCAL_WRITE,
				     connection->target);
	if (pieces == -EMSGSIZE)
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_LOC_LEN_ERR);
	if (pieces < 0)
		return refuse(connection, MFS_SYNDROME_REMOTE_OPERATION, IBV_WC_LOC_PROT_ERR);
	connection->target_count = (uint32_t)pieces;
	connection->payload_left = length;
	return MFS_GO_ON;
}

static enum mfs_verdict begin_send(struct mfs_connection *connection)
{
	return take_receive(connection) ? target_receive(connection) : receiver_not_ready(connection);
}

/* The memory that a request of the peer names; the queue pair and the key must both allow the access. */
static void *remote_memory(struct mfs_connection *connection, uint32_t length, int access)
{
	struct mfs_qp *qp = connection->qp;

	if (!(qp->attr.qp_access_flags & (unsigned int)access))
		return NULL;
	return mfs_mr_resolve(connection->context, qp->verbs.qp.pd, le32toh(connection->frame.key),
			      le64toh(connection->frame.address), length, access);
}

static enum mfs_verdict target_write(struct mfs_connection *connection)
{
	uint32_t length = le32toh(connection->frame.length);

	connection->target[0].iov_len = length;
	connection->target_count = length ? 1 : 0;
	/* writes of no bytes are not checked */
	if (length) {
		connection->target[0].iov_base = remote_memory(connection, length, IBV_ACCESS_REMOTE_WRITE);
		if (!connection->target[0].iov_base)
			return refuse(connection, MFS_SYNDROME_REMOTE_ACCESS, IBV_WC_SUCCESS);
	}
	return MFS_GO_ON;
}

static enum mfs_verdict begin_write(struct mfs_connection *connection)
{
	enum mfs_verdict verdict = target_write(connection);

	if (verdict != MFS_GO_ON)
		return verdict;
	if (needs_receive(&connection->frame) && !take_receive(connection))
		return receiver_not_ready(connection);
	connection->payload_left = le32toh(connection->frame.length);
	return MFS_GO_ON;
}

static void target_operands(struct mfs_connection *connection)
{
	connection->target[0].iov_base = connection->operands;
	connection->target[0].iov_len = MFS_ATOMIC_OPERANDS_SIZE;
	connection->target_count = 1;
}

static enum mfs_verdict begin_atomic(struct mfs_connection *connection)
{
	if (le32toh(connection->frame.length) != MFS_ATOMIC_OPERANDS_SIZE ||
	    le64toh(connection->frame.address) % sizeof(uint64_t))
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	target_operands(connection);
	connection->payload_left = MFS_ATOMIC_OPERANDS_SIZE;
	return MFS_GO_ON;
}

enum mfs_verdict mfs_responder_frame(struct mfs_connection *connection)
{
	const struct mfs_frame *frame = &connection->frame;

	mfs_requester_done_by_peer(connection->qp, le32toh(frame->done));
	if (frame->opcode != MFS_SEND && frame->opcode != MFS_WRITE && (frame->flags & MFS_FRAME_IMMEDIATE))
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	if (le32toh(frame->length) > MFS_MAX_MESSAGE)
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	switch (frame->opcode) {
	case MFS_SEND:
		return begin_send(connection);
	case MFS_WRITE:
		return begin_write(connection);
	case MFS_COMPARE_SWAP:
	case MFS_FETCH_ADD:
		return begin_atomic(connection);
	case MFS_READ:
		return MFS_GO_ON;
	default:
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	}
}

static struct mfs_response *new_response(struct mfs_connection *connection)
{
	struct mfs_response *response = &connection->responses[connection->responses_tail % MFS_MAX_READS];

	if (connection->responses_tail - connection->responses_head >=
	    connection->qp->attr.max_dest_rd_atomic)
		return NULL;
	connection->responses_tail++;
	memset(response, 0, sizeof(*response));
	response->frame.value = htole32(connection->requests_done);
	return response;
}

static enum mfs_verdict answer_read(struct mfs_connection *connection)
{
	const struct mfs_frame *frame = &connection->frame;
	uint32_t length = le32toh(frame->length);
	struct mfs_response *response;

	if (length && !remote_memory(connection, length, IBV_ACCESS_REMOTE_READ))
		return refuse(connection, MFS_SYNDROME_REMOTE_ACCESS, IBV_WC_SUCCESS);
	response = new_response(connection);
	if (!response)
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	response->frame.opcode = MFS_READ_RESPONSE;
	response->frame.length = frame->length;
	response->address = le64toh(frame->address);
	response->key = le32toh(frame->key);
	connection->requests_done++;
	return MFS_GO_ON;
}

static enum mfs_verdict answer_atomic(struct mfs_connection *connection)
{
	uint64_t *word = remote_memory(connection, sizeof(*word), IBV_ACCESS_REMOTE_ATOMIC);
	uint64_t before = le64toh(connection->operands[0]);
	struct mfs_response *response;

	if (!word)
		return refuse(connection, MFS_SYNDROME_REMOTE_ACCESS, IBV_WC_SUCCESS);
	/* keys may map an aligned address to memory that is not */
	if ((uintptr_t)word % sizeof(*word))
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	response = new_response(connection);
	if (!response)
		return refuse(connection, MFS_SYNDROME_INVALID_REQUEST, IBV_WC_SUCCESS);
	if (connection->frame.opcode == MFS_FETCH_ADD)
		before = __atomic_fetch_add(word, before, __ATOMIC_SEQ_CST);
	else
		__atomic_compare_exchange_n(word, &before, le64toh(connection->operands[1]), false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	response->frame.opcode = MFS_ATOMIC_RESPONSE;
	response->frame.address = htole64(before);
	connection->requests_done++;
	return MFS_GO_ON;
}

enum mfs_verdict mfs_responder_payload_done(struct mfs_connection *connection)
{
	const struct mfs_frame *frame = &connection->frame;

	if (frame->opcode == MFS_READ)
		return answer_read(connection);
	if (frame->opcode >= MFS_COMPARE_SWAP)
		return answer_atomic(connection);
	if (needs_receive(frame))
		push_receive(connection->qp, frame, IBV_WC_SUCCESS);
	connection->requests_done++;
	connection->ack_wanted = true;
	return MFS_GO_ON;
}

/* Finds the target of the payload that is arriving anew, from its start. */
enum mfs_verdict mfs_responder_revalidate(struct mfs_connection *connection)
{
	switch (connection->frame.opcode) {
	case MFS_SEND:
		return target_receive(connection);
	case MFS_WRITE:
		return target_write(connection);
	default:
		target_operands(connection);
		return MFS_GO_ON;
	}
}

/* A frame with how far we are. Responses to reads before go first, so it never says more than they allow. */
static void begin_ack(struct mfs_connection *connection)
{
	connection->ack = (struct mfs_frame){.opcode = MFS_ACK, .value = htole32(connection->requests_done)};
	if (connection->nak) {
		connection->ack.syndrome = connection->nak;
	} else if (connection->rnr_wanted) {
		connection->ack.syndrome = MFS_SYNDROME_RECEIVER_NOT_READY;
		connection->ack.key = htole32(connection->qp->attr.min_rnr_timer);
	}
	connection->rnr_wanted = connection->ack_wanted = false;
	connection->ack_started = true;
	connection->sent_bytes = 0;
}

static ssize_t send_from(struct mfs_connection *connection, const void *frame, const void *payload,
			 uint32_t length, uint32_t limit)
{
	const uint32_t frame_size = sizeof(struct mfs_frame);
	uint32_t at = connection->sent_bytes;
	struct iovec pieces[2];
	struct msghdr message = {.msg_iov = pieces};
	ssize_t size;

	if (at < frame_size) {
		pieces[0].iov_base = (uint8_t *)(uintptr_t)frame + at;
		pieces[0].iov_len = frame_size - at;
		message.msg_iovlen = 1;
		at = frame_size;
	}
	at -= frame_size;
	if (at < length) {
		pieces[message.msg_iovlen].iov_base = (uint8_t *)(uintptr_t)payload + at;
		pieces[message.msg_iovlen].iov_len = mfs_min(length - at, limit);
		message.msg_iovlen++;
	}
	size = sendmsg(connection->source.fd, &message, MSG_NOSIGNAL);
	if (size > 0)
		mfs_connection_count(connection, MFS_SENT, (uint32_t)size);
	return size;
}

/* One call's worth of the oldest response. Returns bytes sent, 0 when it has to wait, or -errno. */
static ssize_t send_response(struct mfs_connection *connection)
{
	struct mfs_response *response = &connection->responses[connection->responses_head % MFS_MAX_READS];
	uint32_t length = le32toh(response->frame.length);
	uint32_t total = (uint32_t)sizeof(response->frame) + length, limit;
	const void *payload = NULL;
	ssize_t size;

	if (length) {
		payload = mfs_mr_resolve(connection->context, connection->qp->verbs.qp.pd, response->key,
					 response->address, length, IBV_ACCESS_REMOTE_READ);
		if (!payload)
			return -EFAULT;
	}
	limit = mfs_connection_pace(connection,
				    mfs_min(total - connection->sent_bytes, (uint32_t)CALL_BYTES));
	if (!limit)
		return 0;
	size = send_from(connection, &response->frame, payload, length, limit);
	if (size < 0)
		return -errno;
	mfs_pacer_spend(&connection->pacer, (uint32_t)size);
	connection->sent_bytes += (uint32_t)size;
	if (connection->sent_bytes == total) {
		connection->sent_bytes = 0;
		connection->responses_head++;
	}
	return size;
}

static ssize_t send_ack(struct mfs_connection *connection)
{
	ssize_t size = send_from(connection, &connection->ack, NULL, 0, 0);

	if (size < 0)
		return -errno;
	connection->sent_bytes += (uint32_t)size;
	if (connection->sent_bytes == sizeof(connection->ack)) {
		connection->sent_bytes = 0;
		connection->ack_started = false;
	}
	return size;
}

/* A queue pair that only answers goes on without its peer. */
void mfs_responder_lost(struct mfs_connection *connection)
{
	connection->qp->responder = NULL;
	mfs_connection_close(connection);
}

void mfs_responder_resume(struct mfs_pacer *pacer)
{
	mfs_responder_send(mfs_container_of(pacer, struct mfs_connection, pacer));
}

/* Sends responses and acknowledgements, up to a turn's worth; with the context's lock held. */
void mfs_responder_send(struct mfs_connection *connection)
{
	uint32_t total = 0;
	ssize_t size = 0;
	bool more = true;

	while (total < TURN_BYTES) {
		if (connection->ack_started) {
			size = send_ack(connection);
		} else if (connection->responses_head != connection->responses_tail) {
			size = send_response(connection);
		} else if (connection->ack_wanted) {
			begin_ack(connection);
			continue;
		} else {
			more = false;
			break;
		}
		if (size <= 0)
			break;
		total += (uint32_t)size;
	}
	if (size < 0 && size != -EAGAIN && size != -EINTR) {
		mfs_responder_lost(connection);
		return;
	}
	if (connection->nak && !more) {
		mfs_connection_drain(connection);
		return;
	}
	connection->want_write = more && size != 0;
	connection->pacer.backlogged = connection->pacer.backlogged && more;
	mfs_connection_update(connection);
}

/* All that one read brought has been handled: one acknowledgement for the lot. */
void mfs_responder_batch_done(struct mfs_connection *connection)
{
	if (connection->ack_wanted || connection->responses_head != connection->responses_tail)
		mfs_responder_send(connection);
}
