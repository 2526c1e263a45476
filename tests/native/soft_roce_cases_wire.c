/* A peer that speaks the protocol by hand: what a queue pair sends and answers, frame by frame. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <endian.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "../../csrc/soft_roce/wire.h"

static struct sockaddr_in address_of(const struct ibv_context *context, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	union ibv_gid gid;

	CHECK_EQUAL(ibv_query_gid((struct ibv_context *)context, 1, 0, &gid), 0);
	memcpy(&address.sin_addr, &gid.raw[12], sizeof(address.sin_addr));
	return address;
}

static void send_frames(int fd, const struct mfs_frame *frames, size_t count)
{
	CHECK_EQUAL(send(fd, frames, count * sizeof(*frames), MSG_NOSIGNAL), count * sizeof(*frames));
}

static struct mfs_frame next_frame(int fd)
{
	struct pollfd file = { .fd = fd, .events = POLLIN };
	struct mfs_frame frame;

	CHECK_EQUAL(poll(&file, 1, WAIT_S * 1000), 1);
	CHECK_EQUAL(recv(fd, &frame, sizeof(frame), MSG_WAITALL), sizeof(frame));
	return frame;
}

static void expect_ack(int fd, uint32_t done, enum mfs_syndrome syndrome)
{
	struct mfs_frame frame = next_frame(fd);

	CHECK_EQUAL(frame.opcode, MFS_ACK);
	CHECK_EQUAL(le32toh(frame.value), done);
	CHECK_EQUAL(frame.syndrome, syndrome);
}

/* Returns the number of a queue pair that does not exist, on a port of the test's own. */
static uint32_t listen_as_peer(const struct side *side, int *listener)
{
	struct sockaddr_in address = address_of(side->context, 0);
	socklen_t size = sizeof(address);

	*listener = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(*listener >= 0);
	CHECK_EQUAL(bind(*listener, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQUAL(listen(*listener, 1), 0);
	CHECK_EQUAL(getsockname(*listener, (struct sockaddr *)&address, &size), 0);
	return (uint32_t)ntohs(address.sin_port) << 8;
}

/* Opens the connection for the requests of `peer` to the queue pair. Returns its descriptor. */
static int connect_as_peer(const struct ibv_qp *qp, uint32_t peer)
{
	struct sockaddr_in address = address_of(qp->context, (uint16_t)(qp->qp_num >> 8));
	struct mfs_frame hello = { .opcode = MFS_HELLO,
				   .address = htole64(MFS_WIRE_MAGIC),
				   .key = htole32(qp->qp_num),
				   .value = htole32(peer) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	send_frames(fd, &hello, 1);
	expect_ack(fd, 0, MFS_SYNDROME_NONE);
	return fd;
}

/* When a message that found no receive has one, its sender is told at once, not only when the message has
 * arrived. */
void receiver_ready_again(void)
{
	struct mfs_frame message = { .opcode = MFS_SEND, .length = htole32(8) };
	const uint32_t peer = 1 << 8;
	struct side side;

	side_open(&side, 4096, &defaults);
	side.qp = make_qp(&side, &defaults, NULL);
	to_init(side.qp, &defaults);
	to_rtr(side.qp, peer, &defaults, 0);
	int fd = connect_as_peer(side.qp, peer);
	send_frames(fd, &message, 1);
	expect_ack(fd, 0, MFS_SYNDROME_RECEIVER_NOT_READY);
	CHECK_EQUAL(post_recv(&side, 1, 0, 8), 0);
	expect_ack(fd, 0, MFS_SYNDROME_NONE);
	CHECK_EQUAL(send(fd, "message", 8, MSG_NOSIGNAL), 8);
	expect_ack(fd, 1, MFS_SYNDROME_NONE);
	expect(side.cq, 1, IBV_WC_SUCCESS);
	CHECK(!strcmp((char *)side.memory, "message"));
	close(fd);
	side_close(&side);
}

/* Retries end when the receiver is ready: the time that the message takes from then on does not count. */
void rnr_retries_end(void)
{
	struct pair_options options = { .rnr_retry = 0 };
	struct mfs_frame ready = { .opcode = MFS_ACK };
	struct mfs_frame not_ready[2] = { { .opcode = MFS_ACK, .syndrome = MFS_SYNDROME_RECEIVER_NOT_READY },
					  ready };
	struct side side;
	int listener, fd;

	side_open(&side, 4096, &options);
	side.qp = make_qp(&side, &options, NULL);
	to_init(side.qp, &options);
	to_rtr(side.qp, listen_as_peer(&side, &listener), &options, 0);
	to_rts(side.qp, &options);
	fd = accept(listener, NULL, NULL);
	CHECK(fd >= 0);
	CHECK_EQUAL(next_frame(fd).opcode, MFS_HELLO);
	send_frames(fd, &ready, 1);
	CHECK_EQUAL(post(&side, &side, IBV_WR_SEND, 1, 0, 0), 0);
	CHECK_EQUAL(next_frame(fd).opcode, MFS_SEND);
	send_frames(fd, not_ready, 2); /* in one segment, so they are handled together */
	ready.value = htole32(1);
	send_frames(fd, &ready, 1);
	expect(side.cq, 1, IBV_WC_SUCCESS);
	CHECK_EQUAL(side.qp->state, IBV_QPS_RTS);
	close(fd);
	close(listener);
	side_close(&side);
}

/* Opens two queue pairs with one queue of receives, and the connections of their peers. */
static struct ibv_srq *open_sharers(struct side *side, size_t size, struct ibv_qp *qps[2], int fds[2])
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq;

	side_open(side, size, &defaults);
	srq = ibv_create_srq(side->pd, &init);
	CHECK(srq);
	for (uint32_t i = 0; i < 2; i++) {
		qps[i] = make_qp(side, &defaults, srq);
		to_init(qps[i], &defaults);
		to_rtr(qps[i], i + 1, &defaults, 0);
		fds[i] = connect_as_peer(qps[i], i + 1);
	}
	return srq;
}

static void close_sharers(struct side *side, struct ibv_srq *srq, struct ibv_qp *qps[2], const int fds[2])
{
	for (int i = 0; i < 2; i++) {
		close(fds[i]);
		CHECK_EQUAL(ibv_destroy_qp(qps[i]), 0);
	}
	CHECK_EQUAL(ibv_destroy_srq(srq), 0);
	side->qp = NULL;
	side_close(side);
}

static void post_shared(struct side *side, struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = sge_of(side, 0, 8);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK_EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

/* Queue pairs that wait for shared receives take turns: a peer that always has a message takes none from
 * the others. */
void shared_receives_in_turn(void)
{
	struct mfs_frame messages[4] = { { .opcode = MFS_SEND }, { .opcode = MFS_SEND }, { .opcode = MFS_SEND },
					 { .opcode = MFS_SEND } };
	struct side side;
	struct ibv_qp *qps[2];
	int fds[2];
	struct ibv_srq *srq = open_sharers(&side, 4096, qps, fds);

	for (int i = 0; i < 2; i++) {
		send_frames(fds[i], messages, 4);
		expect_ack(fds[i], 0, MFS_SYNDROME_RECEIVER_NOT_READY);
	}
	for (uint64_t i = 0; i < 8; i++) {
		post_shared(&side, srq, i);
		CHECK_EQUAL(expect(side.cq, i, IBV_WC_SUCCESS).qp_num, qps[i % 2]->qp_num);
	}
	close_sharers(&side, srq, qps, fds);
}

/* A message is refused only once, even while its peer reads nothing and so cannot be told. It takes no
 * receive that others share. */
void refused_takes_no_receive(void)
{
	const size_t size = 64 << 20; /* more than the network holds */
	struct mfs_frame message = { .opcode = MFS_SEND };
	struct side side;
	struct ibv_qp *qps[2];
	int fds[2];
	struct ibv_srq *srq = open_sharers(&side, size, qps, fds);
	struct mfs_frame wrong[2] = { { .opcode = MFS_READ,
					.length = htole32((uint32_t)size),
					.address = htole64((uintptr_t)side.memory),
					.key = htole32(side.mr->rkey) },
				      { .opcode = MFS_SEND, .length = htole32(9) } };

	post_shared(&side, srq, 1);
	send_frames(fds[0], wrong, 2);
	CHECK_EQUAL(expect(side.cq, 1, IBV_WC_LOC_LEN_ERR).qp_num, qps[0]->qp_num);
	send_frames(fds[1], &message, 1);
	expect_ack(fds[1], 0, MFS_SYNDROME_RECEIVER_NOT_READY);
	post_shared(&side, srq, 2);
	CHECK_EQUAL(expect(side.cq, 2, IBV_WC_SUCCESS).qp_num, qps[1]->qp_num);
	close_sharers(&side, srq, qps, fds);
}
