/*
 * Frames on the TCP connections between two RC queue pairs, and the datagrams of UD queue pairs.
 *
 * A queue pair opens one connection to its peer for its own requests and accepts one for the peer's
 * requests. The side that opened a connection sends requests on it, the other side sends responses. With
 * one connection for both, acknowledgements could wait behind a SEND that the peer cannot take yet
 * (receiver not ready), which would block the other direction for ever.
 *
 * The n-th request of a connection has message sequence number n. Requests do not carry it: TCP keeps
 * their order, and both sides count. A response to request n acknowledges all requests before n. A request
 * also carries how many of the peer's requests are done. The two connections have no order between them,
 * and a program's answer to a message must not arrive before the acknowledgement of that message. Integers
 * are little-endian; immediate data is not converted.
 */
#ifndef MFS_SOFT_ROCE_WIRE_H
#define MFS_SOFT_ROCE_WIRE_H

#include <assert.h>
#include <stdint.h>

enum mfs_opcode {
	MFS_HELLO = 1, /* address: MFS_WIRE_MAGIC, key: destination QPN, value: source QPN */
	MFS_SEND,
	MFS_WRITE,
	MFS_READ,
	MFS_COMPARE_SWAP, /* 16 bytes follow: compare, swap */
	MFS_FETCH_ADD,    /* 16 bytes follow: add, 0 */
	MFS_ACK,          /* value: number of requests done; the first ACK accepts the connection */
	MFS_READ_RESPONSE,
	MFS_ATOMIC_RESPONSE, /* address: value before the operation */
};

enum mfs_frame_flag {
	MFS_FRAME_IMMEDIATE = 1 << 0,
	MFS_FRAME_SOLICITED = 1 << 1,
};

/* Why request number `value` was not executed. All but RECEIVER_NOT_READY end the connection. */
enum mfs_syndrome {
	MFS_SYNDROME_NONE = 0,
	MFS_SYNDROME_RECEIVER_NOT_READY, /* key: RNR timer code */
	MFS_SYNDROME_INVALID_REQUEST,
	MFS_SYNDROME_REMOTE_ACCESS,
	MFS_SYNDROME_REMOTE_OPERATION,
};

#define MFS_WIRE_MAGIC 0x0001656f6353464dULL /* "MFScoe", then the version */

struct mfs_frame {
	uint8_t opcode;
	uint8_t flags;
	uint8_t syndrome;
	uint8_t reserved;
	uint32_t length; /* payload bytes that follow; of a READ: bytes wanted */
	uint64_t address;
	uint32_t key;
	uint32_t value;
	uint32_t done; /* of requests: number of the peer's own requests done, as in an ACK */
	uint32_t reserved2;
};
static_assert(sizeof(struct mfs_frame) == 32, "frame on the wire");

enum { MFS_ATOMIC_OPERANDS_SIZE = 16 };

#define MFS_DATAGRAM_MAGIC 0x000164756f63464dULL /* "MFcoud", then the version */

/* Head of a UDP datagram; the message follows, up to the datagram's end. It is sent from the port in the
 * source QPN. */
struct mfs_datagram {
	uint64_t magic;
	uint32_t destination; /* QPN */
	uint32_t source;      /* QPN */
	uint32_t qkey;
	uint32_t immediate; /* not converted */
	uint8_t flags;      /* enum mfs_frame_flag */
	uint8_t reserved[7];
};
static_assert(sizeof(struct mfs_datagram) == 32, "datagram on the wire");

#endif
