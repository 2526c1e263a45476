/* What happens to the process around a device: no descriptor is left, a thread is cancelled, all threads are stopped. */
#define _GNU_SOURCE
#include "soft_roce_cases.h"

#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../csrc/soft_roce/wire.h"

/* From now on no descriptor can be opened; `before` is what to set again. */
static void use_up_descriptors(struct rlimit *before)
{
	struct rlimit none;

	CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, before), 0);
	none = *before;
	none.rlim_cur = 3; /* poll() wants room for the descriptors that it is given */
	CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &none), 0);
	CHECK_EQUAL(dup(2), -1);
}

/* The descriptor in /proc/self/fd that is of that kind. */
static int find_descriptor(const char *kind)
{
	DIR *folder = opendir("/proc/self/fd");
	struct dirent *entry;
	char path[300], target[64];
	int found = -1;

	CHECK(folder);
	while (found < 0 && (entry = readdir(folder))) {
		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		ssize_t size = readlink(path, target, sizeof(target) - 1);

		target[size > 0 ? size : 0] = '\0';
		if (!strcmp(target, kind))
			found = atoi(entry->d_name);
	}
	closedir(folder);
	CHECK(found >= 0);
	return found;
}

static struct sockaddr_in address_of(struct ibv_context *context, uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	union ibv_gid gid;

	CHECK_EQUAL(ibv_query_gid(context, 1, 0, &gid), 0);
	memcpy(&address.sin_addr, &gid.raw[12], sizeof(address.sin_addr));
	return address;
}

/* A peer that comes while no descriptor is left waits, and nothing turns round it meanwhile; then it is taken. */
void descriptors_used_up(void)
{
	const uint32_t peer = 1 << 8;
	struct rlimit before;
	struct mfs_frame frame;
	struct side side;

	side_open(&side, 4096, &defaults);
	side.qp = make_qp(&side, &defaults, NULL);
	to_init(side.qp, &defaults);
	to_rtr(side.qp, peer, &defaults, 0);
	struct pollfd events = { .fd = find_descriptor("anon_inode:[eventpoll]"), .events = POLLIN };
	struct sockaddr_in address = address_of(side.context, (uint16_t)(side.qp->qp_num >> 8));
	struct mfs_frame hello = { .opcode = MFS_HELLO,
				   .address = htole64(MFS_WIRE_MAGIC),
				   .key = htole32(side.qp->qp_num),
				   .value = htole32(peer) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(fd >= 0);
	use_up_descriptors(&before);
	CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQUAL(send(fd, &hello, sizeof(hello), MSG_NOSIGNAL), sizeof(hello));
	for (double end = seconds() + WAIT_S; poll(&events, 1, 0);)
		CHECK(seconds() < end);
	CHECK_EQUAL(recv(fd, &frame, sizeof(frame), MSG_DONTWAIT), -1);
	CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
	struct pollfd answer = { .fd = fd, .events = POLLIN };
	CHECK_EQUAL(poll(&answer, 1, WAIT_S * 1000), 1);
	CHECK_EQUAL(recv(fd, &frame, sizeof(frame), MSG_WAITALL), sizeof(frame));
	CHECK_EQUAL(frame.opcode, MFS_ACK);
	close(fd);
	side_close(&side);
}

/* Unread events go with their queue, also where no file can be opened: out of descriptors, or without /proc. */
void events_of_the_destroyed(void)
{
	struct pair_options options = defaults;
	struct rlimit before;
	struct side pair[2];

	options.with_channel = 1;
	pair_open(pair, 4096, &options);
	CHECK_EQUAL(ibv_req_notify_cq(pair[0].cq, 0), 0);
	CHECK_EQUAL(post(&pair[0], &pair[1], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
	expect(pair[0].cq, 1, IBV_WC_SUCCESS);
	struct pollfd file = { .fd = pair[0].channel->fd, .events = POLLIN };
	CHECK_EQUAL(poll(&file, 1, WAIT_S * 1000), 1);
	use_up_descriptors(&before);
	CHECK_EQUAL(ibv_destroy_qp(pair[0].qp), 0);
	CHECK_EQUAL(ibv_destroy_cq(pair[0].cq), 0);
	CHECK_EQUAL(poll(&file, 1, 0), 0); /* ibv_get_cq_event would follow it to what is freed */
	CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
	pair[0].qp = NULL;
	pair[0].cq = ibv_create_cq(pair[0].context, 1, NULL, NULL, 0);
	CHECK(pair[0].cq);
	pair_close(pair);
}

static _Thread_local bool in_verbs;
static atomic_uint turns;

static void check_outside(void *argument)
{
	(void)argument;
	CHECK(!in_verbs);
}

static void *poll_for_ever(void *argument)
{
	struct side *pair = argument;
	struct ibv_wc wc;

	pthread_cleanup_push(check_outside, NULL);
	for (;;) {
		pthread_testcancel();
		in_verbs = true;
		CHECK_EQUAL(post(&pair[1], &pair[0], IBV_WR_RDMA_WRITE, 1, 0, 8), 0);
		while (!ibv_poll_cq(pair[1].cq, 1, &wc)) {
		}
		CHECK_EQUAL(ibv_poll_cq(pair[1].cq, 1, &wc), 0);
		in_verbs = false;
		atomic_fetch_add(&turns, 1);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

/* As on a NIC, posting and polling are no places where a thread is cancelled: it would take the lock with it. */
void cancelled_threads(void)
{
	struct side pair[2];
	pthread_t thread;

	pair_open(pair, 4096, &defaults);
	for (int i = 0; i < 100; i++) {
		unsigned before = atomic_load(&turns);

		CHECK_EQUAL(pthread_create(&thread, NULL, poll_for_ever, pair), 0);
		for (double end = seconds() + WAIT_S; atomic_load(&turns) == before;)
			CHECK(seconds() < end);
		CHECK_EQUAL(pthread_cancel(thread), 0);
		CHECK_EQUAL(pthread_join(thread, NULL), 0);
	}
	CHECK_EQUAL(post_recv(&pair[0], 2, 0, 8), 0);
	CHECK_EQUAL(post(&pair[1], &pair[0], IBV_WR_SEND, 3, 0, 8), 0);
	expect(pair[0].cq, 2, IBV_WC_SUCCESS);
	expect(pair[1].cq, 3, IBV_WC_SUCCESS);
	pair_close(pair);
}

enum { RNR_TIMER = 0, RNR_RETRY = 3 }; /* 655 ms, three times */

/* Posts a message to a peer that has no receive, and stops once the time has begun that this may last. */
static void send_and_stop(uint32_t peer)
{
	struct pair_options options = { .rnr_retry = RNR_RETRY };
	struct side side;
	struct ibv_wc wc;

	side_open(&side, 4096, &options);
	side.qp = make_qp(&side, &options, NULL);
	to_init(side.qp, &options);
	to_rtr(side.qp, peer, &options, 0);
	to_rts(side.qp, &options);
	CHECK_EQUAL(post(&side, &side, IBV_WR_SEND, 1, 0, 0), 0);
	char path[64], line[128];
	bool armed = false;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", find_descriptor("anon_inode:[timerfd]"));
	while (!armed) {
		FILE *file = fopen(path, "r");

		CHECK_EQUAL(ibv_poll_cq(side.cq, 1, &wc), 0);
		CHECK(file);
		while (fgets(line, sizeof(line), file))
			armed = armed || (!strncmp(line, "it_value:", 9) && !strstr(line, "(0, 0)"));
		fclose(file);
	}
	raise(SIGSTOP);
	expect(side.cq, 1, IBV_WC_SUCCESS);
	side_close(&side);
}

static struct mfs_frame next_frame(int fd)
{
	struct mfs_frame frame;

	CHECK_EQUAL(recv(fd, &frame, sizeof(frame), MSG_WAITALL), sizeof(frame));
	return frame;
}

/* A process that is stopped while its message waits for a receive fails nothing that was in time: a NIC would not have
 * been stopped with it. */
void stopped_while_receiver_is_not_ready(void)
{
	struct mfs_frame ack = { .opcode = MFS_ACK };
	struct mfs_frame not_ready = { .opcode = MFS_ACK,
				       .syndrome = MFS_SYNDROME_RECEIVER_NOT_READY,
				       .key = htole32(RNR_TIMER) };
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof(address);
	struct timespec until;
	int listener = socket(AF_INET, SOCK_STREAM, 0), status;

	CHECK_EQUAL(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	CHECK_EQUAL(listen(listener, 1), 0);
	CHECK_EQUAL(getsockname(listener, (struct sockaddr *)&address, &size), 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		send_and_stop((uint32_t)ntohs(address.sin_port) << 8);
		exit(0);
	}
	int fd = accept(listener, NULL, NULL);
	CHECK_EQUAL(next_frame(fd).opcode, MFS_HELLO);
	CHECK_EQUAL(send(fd, &ack, sizeof(ack), MSG_NOSIGNAL), sizeof(ack));
	CHECK_EQUAL(next_frame(fd).opcode, MFS_SEND);
	CHECK_EQUAL(send(fd, &not_ready, sizeof(not_ready), MSG_NOSIGNAL), sizeof(not_ready));
	CHECK_EQUAL(waitpid(child, &status, WUNTRACED), child);
	CHECK(WIFSTOPPED(status));
	ack.value = htole32(1);
	CHECK_EQUAL(send(fd, &ack, sizeof(ack), MSG_NOSIGNAL), sizeof(ack));
	CHECK_EQUAL(clock_gettime(CLOCK_MONOTONIC, &until), 0);
	until.tv_sec += RNR_RETRY; /* more than the child's time */
	CHECK_EQUAL(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL), 0);
	CHECK_EQUAL(kill(child, SIGCONT), 0);
	CHECK_EQUAL(waitpid(child, &status, 0), child);
	CHECK_EQUAL(status, 0);
	close(fd);
	close(listener);
}
