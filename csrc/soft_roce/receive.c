/*
 * Turns the bytes of a connection into frames and payload.
 *
 * Large payload goes from the socket straight into the target memory, in one call with the next frame behind
 * it; small messages are read many at a time into the context's buffer. Programs wait for data by polling
 * its last bytes, so those are always stored last.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "receive.h"

#include "connection.h"
#include "requester.h"
#include "responder.h"

enum {
	DIRECT_MIN = 8192,       /* payload below this is cheaper to copy than to fetch by itself */
	TURN_BYTES = 256 * 1024, /* then others get the context's lock */
};

/* Copies so that the last bytes become visible after all others. */
static void place(uint8_t *to, const uint8_t *from, size_t size)
{
	size_t tail = size < sizeof(uint64_t) ? size : sizeof(uint64_t);
	uint64_t last8;
	uint32_t last4;
	uint16_t last2;

	memcpy(to, from, size - tail);
	atomic_thread_fence(memory_order_release);
	to += size - tail;
	from += size - tail;
	switch (tail) {
	case 8:
		memcpy(&last8, from, 8);
		memcpy(to, &last8, 8);
		return;
	case 4:
		memcpy(&last4, from, 4);
		memcpy(to, &last4, 4);
		return;
	case 2:
		memcpy(&last2, from, 2);
		memcpy(to, &last2, 2);
		return;
	default:
		for (; tail; tail--)
			*(volatile uint8_t *)to++ = *from++;
	}
}

/* Moves the target on by bytes that are in place. */
static void advance(struct mfs_connection *connection, size_t bytes)
{
	connection->payload_left -= (uint32_t)bytes;
	while (bytes) {
		struct iovec *piece = &connection->target[connection->target_index];
		size_t part = mfs_min(bytes, piece->iov_len);

		piece->iov_base = (uint8_t *)piece->iov_base + part;
		piece->iov_len -= part;
		bytes -= part;
		if (!piece->iov_len)
			connection->target_index++;
	}
}

static void place_payload(struct mfs_connection *connection, const uint8_t *data, size_t size)
{
	while (size) {
		struct iovec *piece = &connection->target[connection->target_index];
		size_t part = mfs_min(size, piece->iov_len);

		place(piece->iov_base, data, part);
		advance(connection, part);
		data += part;
		size -= part;
	}
}

static enum mfs_verdict payload_done(struct mfs_connection *connection)
{
	connection->in_payload = false;
	connection->frame_bytes = 0;
	return connection->requester ? mfs_requester_payload_done(connection)
				     : mfs_responder_payload_done(connection);
}

/* A frame is complete: the roles say where its payload goes. */
static enum mfs_verdict frame_done(struct mfs_connection *connection)
{
	enum mfs_verdict verdict;

	connection->payload_left = connection->target_index = connection->target_count = 0;
	connection->key_epoch = connection->context->key_epoch;
	verdict = connection->requester ? mfs_requester_frame(connection) : mfs_responder_frame(connection);
	if (verdict != MFS_GO_ON)
		return verdict;
	connection->in_payload = true;
	return connection->payload_left ? MFS_GO_ON : payload_done(connection);
}

/* The keys behind the target may have been given back, or other memory, while the payload was on its way. What is left
 * of it goes where they lead now. */
static enum mfs_verdict check_target(struct mfs_connection *connection)
{
	uint32_t left = connection->payload_left, total = 0;
	enum mfs_verdict verdict;

	if (connection->key_epoch == connection->context->key_epoch)
		return MFS_GO_ON;
	connection->key_epoch = connection->context->key_epoch;
	verdict = connection->requester ? mfs_requester_revalidate(connection)
					: mfs_responder_revalidate(connection);
	if (verdict != MFS_GO_ON)
		return verdict;
	for (uint32_t i = 0; i < connection->target_count; i++)
		total += (uint32_t)connection->target[i].iov_len;
	connection->target_index = 0;
	connection->payload_left = total;
	advance(connection, total - left);
	return MFS_GO_ON;
}

/* Handles bytes; returns how many were used before a stall or stop. */
static size_t consume(struct mfs_connection *connection, const uint8_t *data, size_t size,
		      enum mfs_verdict *verdict)
{
	size_t used = 0, part;

	*verdict = MFS_GO_ON;
	while (used < size && *verdict == MFS_GO_ON) {
		if (connection->in_payload) {
			*verdict = check_target(connection);
			if (*verdict != MFS_GO_ON)
				break;
			part = mfs_min((size_t)connection->payload_left, size - used);
			place_payload(connection, data + used, part);
			used += part;
			if (!connection->payload_left)
				*verdict = payload_done(connection);
			continue;
		}
		part = mfs_min(sizeof(connection->frame) - connection->frame_bytes, size - used);
		memcpy((uint8_t *)&connection->frame + connection->frame_bytes, data + used, part);
		connection->frame_bytes += (uint32_t)part;
		used += part;
		if (connection->frame_bytes == sizeof(connection->frame))
			*verdict = frame_done(connection);
	}
	return used;
}

/* Keeps what a stalled connection has read but cannot handle yet. */
static int keep(struct mfs_connection *connection, const uint8_t *data, size_t size)
{
	if (!size)
		return 0;
	if (!connection->stash) {
		connection->stash = malloc(MFS_RX_BUFFER_SIZE);
		if (!connection->stash)
			return -ENOMEM;
	}
	memcpy(connection->stash, data, size);
	connection->stash_position = 0;
	connection->stash_size = (uint32_t)size;
	return 0;
}

static void stall(struct mfs_connection *connection)
{
	connection->stalled = true;
	mfs_connection_update(connection);
}

/* One read of small messages. Returns the bytes read, 0 when there is no more to do now. */
static size_t read_buffered(struct mfs_connection *connection, enum mfs_verdict *verdict)
{
	uint8_t *buffer = connection->context->rx_buffer;
	ssize_t size = recv(connection->source.fd, buffer, MFS_RX_BUFFER_SIZE, 0);
	size_t used;

	if (size <= 0) {
		*verdict = size < 0 && (errno == EAGAIN || errno == EINTR) ? MFS_GO_ON : MFS_LOST;
		return 0;
	}
	mfs_connection_count(connection, MFS_RECEIVED, (size_t)size);
	used = consume(connection, buffer, (size_t)size, verdict);
	if (*verdict == MFS_STALL && keep(connection, buffer + used, (size_t)size - used))
		*verdict = MFS_LOST;
	return size == MFS_RX_BUFFER_SIZE ? (size_t)size : 0;
}

/* One read straight into the target, with the next frame behind it. */
static size_t read_direct(struct mfs_connection *connection, enum mfs_verdict *verdict)
{
	uint32_t pieces = connection->target_count - connection->target_index;
	struct iovec into[MFS_MAX_SGE + 1];
	struct msghdr message = {.msg_iov = into, .msg_iovlen = pieces + 1};
	uint32_t wanted = connection->payload_left + (uint32_t)sizeof(connection->frame), payload;
	ssize_t size;

	*verdict = check_target(connection);
	if (*verdict != MFS_GO_ON)
		return 0;
	memcpy(into, &connection->target[connection->target_index], pieces * sizeof(*into));
	into[pieces].iov_base = connection->next_frame;
	into[pieces].iov_len = sizeof(connection->frame);
	size = recvmsg(connection->source.fd, &message, 0);
	if (size <= 0) {
		*verdict = size < 0 && (errno == EAGAIN || errno == EINTR) ? MFS_GO_ON : MFS_LOST;
		return 0;
	}
	mfs_connection_count(connection, MFS_RECEIVED, (size_t)size);
	payload = mfs_min(connection->payload_left, (uint32_t)size);
	advance(connection, payload);
	if (!connection->payload_left)
		*verdict = payload_done(connection);
	if ((size_t)size > payload && *verdict == MFS_GO_ON)
		consume(connection, connection->next_frame, (size_t)size - payload, verdict);
	return (uint32_t)size == wanted ? (size_t)size : 0;
}

/* The peer is gone. */
void mfs_connection_lost(struct mfs_connection *connection)
{
	if (connection->requester)
		mfs_requester_lost(connection);
	else
		mfs_responder_lost(connection);
}

/* Handles what the socket has, up to a turn's worth; with the context's lock held. */
void mfs_receive(struct mfs_connection *connection)
{
	enum mfs_verdict verdict = MFS_GO_ON;
	size_t size, total = 0;

	do {
		if (connection->in_payload && connection->payload_left >= DIRECT_MIN)
			size = read_direct(connection, &verdict);
		else
			size = read_buffered(connection, &verdict);
		total += size;
	} while (verdict == MFS_GO_ON && size && total < TURN_BYTES);

	if (connection->state != MFS_OPEN)
		return;
	if (verdict == MFS_STALL)
		stall(connection);
	if (verdict == MFS_LOST)
		mfs_connection_lost(connection);
	else if (!connection->requester)
		mfs_responder_batch_done(connection);
}

/* There is a receive for the message at which a connection stalled. */
void mfs_receive_resume(struct mfs_connection *connection)
{
	enum mfs_verdict verdict = frame_done(connection);
	const uint8_t *data;
	size_t size, used;

	if (verdict == MFS_GO_ON) {
		connection->stalled = false;
		connection->ack_wanted = true; /* the message may take longer than retries would */
	}
	if (verdict == MFS_GO_ON && connection->stash_size) {
		data = connection->stash + connection->stash_position;
		size = connection->stash_size;
		used = consume(connection, data, size, &verdict);
		connection->stash_position += (uint32_t)used;
		connection->stash_size -= (uint32_t)used;
	}
	if (connection->state != MFS_OPEN)
		return;
	if (verdict == MFS_STALL)
		connection->stalled = true;
	mfs_connection_update(connection);
	if (verdict == MFS_GO_ON)
		mfs_receive(connection);
	else
		mfs_responder_batch_done(connection);
}
