/*
 * One of two ranks that send each other messages until they are killed. They use the InfiniBand transport
 * of a shipped libnccl.so.2 as NCCL's proxy thread does for a collective.
 *   nccl_pace LIBRARY OFFSET_OF_ncclNetIb OFFSET_OF_ncclGetVersion RANK FOLDER BYTES PACE_US
 *
 * A message is due every PACE_US (0: at once). It is posted when it is due, unless SENDS messages are on
 * their way. Each message writes one line to FOLDER/times.RANK, in nanoseconds of CLOCK_MONOTONIC: when the
 * transport was asked to send it, and when the transport reported that it had arrived. The ranks find each
 * other by files in FOLDER.
 *
 * NCCL's proxy thread polls without a pause. This program rests for REST_US between two polls while
 * messages are on their way. So two ranks leave cores to the programs with which they compete for the link.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "nccl_net.h"

enum { RECEIVES = 8, SENDS = 4, REST_US = 20, IDLE_REST_US = 100, SECOND = 1000000000 };

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void rest(uint64_t duration_ns)
{
	nanosleep(&(struct timespec){ .tv_nsec = (long)duration_ns }, NULL);
}

static FILE *open_or_die(const char *path, const char *how)
{
	FILE *file = fopen(path, how);

	if (!file) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		exit(1);
	}
	return file;
}

/* Gives our handle to the other rank and takes the handle of that rank. */
static void handles_swap(const char *folder, int rank, const char *mine, char *theirs)
{
	char path[512], fresh[520];
	FILE *file;

	snprintf(path, sizeof(path), "%s/handle.%d", folder, rank);
	snprintf(fresh, sizeof(fresh), "%s.new", path);
	file = open_or_die(fresh, "w");
	if (fwrite(mine, HANDLE_SIZE, 1, file) != 1 || fclose(file) || rename(fresh, path)) {
		fprintf(stderr, "%s: cannot write\n", path);
		exit(1);
	}
	snprintf(path, sizeof(path), "%s/handle.%d", folder, !rank);
	while (!(file = fopen(path, "r")))
		rest(1000000);
	if (fread(theirs, HANDLE_SIZE, 1, file) != 1) {
		fprintf(stderr, "%s: cannot read\n", path);
		exit(1);
	}
	fclose(file);
}

static void *buffer_new(const struct net *net, void *connection, size_t size, void **memory)
{
	void *buffer = aligned_alloc(4096, (size + 4095) / 4096 * 4096);

	if (!buffer) {
		fprintf(stderr, "no memory for %zu bytes\n", size);
		exit(1);
	}
	memset(buffer, 0x5a, size);
	CHECK(net->register_memory(connection, buffer, size, POINTER_HOST, memory));
	return buffer;
}

int main(int argc, char **argv)
{
	char mine[HANDLE_SIZE] = "", theirs[HANDLE_SIZE], path[512];
	void *context, *listener, *sender = NULL, *receiver = NULL, *send_memory, *receive_memory;
	void *receive[RECEIVES], *send[SENDS];
	uint64_t asked_ns[SENDS], received = 0, receives = 0, sent = 0, sends = 0, due_ns, pace_ns;
	uint8_t *outgoing, *incoming;
	size_t bytes;
	FILE *times;
	int rank;

	if (argc != 8)
		return 2;
	prctl(PR_SET_TIMERSLACK, 1UL);
	rank = atoi(argv[4]);
	bytes = strtoull(argv[6], NULL, 10);
	pace_ns = strtoull(argv[7], NULL, 10) * 1000;
	setenv("NCCL_HOSTID", rank ? "other" : "one", 1);
	snprintf(path, sizeof(path), "%s/times.%d", argv[5], rank);
	times = open_or_die(path, "w");
	setvbuf(times, NULL, _IOLBF, BUFSIZ);

	const struct net *net = nccl_net_load(argv + 1, &context);

	CHECK(net->listen(context, 0, mine, &listener));
	handles_swap(argv[5], rank, mine, theirs);
	while (!sender || !receiver) {
		if (!sender)
			CHECK(net->connect(context, 0, theirs, &sender, NULL));
		if (!receiver)
			CHECK(net->accept(listener, &receiver, NULL));
	}
	outgoing = buffer_new(net, sender, bytes * SENDS, &send_memory);
	incoming = buffer_new(net, receiver, bytes * RECEIVES, &receive_memory);
	due_ns = now_ns();
	for (uint64_t asked = 0, now = due_ns;; now = now_ns()) {
		int ready = 0, size, moved = 0;

		if (receives - received < RECEIVES) {
			const unsigned at = receives % RECEIVES;
			void *data = incoming + at * bytes, *request = NULL, *profiler = NULL;
			int tag = FIRST_TAG;

			CHECK(net->receive(receiver, 1, &data, &bytes, &tag, &receive_memory, &profiler, &request));
			if (request)
				receive[receives++ % RECEIVES] = request, moved = 1;
		}
		if (receives > received) {
			CHECK(net->test(receive[received % RECEIVES], &ready, &size));
			if (ready)
				received++, moved = 1;
		}
		if (sends - sent < SENDS && now >= due_ns) {
			const unsigned at = sends % SENDS;
			void *request = NULL;

			if (!asked)
				asked = now;
			CHECK(net->send(sender, outgoing + at * bytes, bytes, FIRST_TAG, send_memory, NULL, &request));
			if (request) { /* NULL until the peer is ready to receive */
				send[at] = request;
				asked_ns[at] = asked;
				asked = 0;
				sends++, moved = 1;
				due_ns = due_ns + pace_ns > now ? due_ns + pace_ns : now; /* delays are not made up for */
			}
		}
		ready = 0;
		if (sends > sent)
			CHECK(net->test(send[sent % SENDS], &ready, &size));
		if (ready) {
			fprintf(times, "%llu %llu\n", (unsigned long long)asked_ns[sent % SENDS],
				(unsigned long long)now_ns());
			sent++, moved = 1;
		}
		if (!moved)
			rest((sends > sent || asked ? REST_US : IDLE_REST_US) * 1000);
	}
}
