/*
 * Drives the InfiniBand transport inside a shipped libnccl.so.2 between two processes, without a GPU.
 *   nccl_net LIBRARY OFFSET_OF_ncclNetIb OFFSET_OF_ncclGetVersion MESSAGES BYTES MULTI [profile]
 * `ncclNetIb` is a local symbol: the caller reads both offsets from the symbol table. MULTI messages go into
 * one receive. With `profile` the sender calls the plugin that NCCL_PROFILER_PLUGIN names around every send, as
 * NCCL's proxy thread does, and stays until it is ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../bench/programs/nccl_net.h"

enum { DEPTH = 8, MULTI_MAX = 8 };

/* The part of version 5 of the profiler interface that is used here. */
struct profiler {
	const char *name;
	int (*init)(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
		    void *log);
	int (*start)(void *context, void **handle, void *event);
	int (*stop)(void *handle);
	int (*state)(void *handle, int state, void *arguments);
};
struct event {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct {
			uint64_t sequence;
			const char *function;
			const void *send;
			void *receive;
			size_t count;
			int root;
			const char *type;
		} coll;
		struct {
			pid_t pid;
			uint8_t channel;
			int peer, steps, chunk, is_send;
		} op;
		char rest[128];
	};
};
enum { COLL = 2, PROXY_OP = 8, PROXY_STEP = 16, SEND_WAIT = 9, SEND_PEER_WAIT = 20 };

static const struct profiler *profiler;
static void *profiled_step;

static void profile(void)
{
	struct event coll = { .type = COLL, .coll = { .function = "AllReduce", .count = 1, .type = "ncclInt8" } };
	struct event op = { .type = PROXY_OP, .op = { .pid = getpid(), .steps = 1, .is_send = 1 } };
	struct event step = { .type = PROXY_STEP };
	void *library = dlopen(getenv("NCCL_PROFILER_PLUGIN"), RTLD_NOW | RTLD_LOCAL), *context;
	int mask;

	profiler = library ? dlsym(library, "ncclProfiler_v5") : NULL;
	if (!profiler || profiler->init(&context, COMMUNICATOR, &mask, "tensor", 1, 2, 1, NULL)) {
		fprintf(stderr, "no profiler plugin\n");
		exit(1);
	}
	profiler->start(context, &op.parent, &coll);
	profiler->stop(op.parent);
	profiler->start(context, &step.parent, &op);
	profiler->start(context, &profiled_step, &step);
}

static void profile_state(int state)
{
	uint64_t arguments = 0;

	if (profiler)
		profiler->state(profiled_step, state, &arguments);
}

static int messages, multi;
static size_t size;

static uint8_t *slot(uint8_t *buffer, int message, int part)
{
	return buffer + ((size_t)(message % DEPTH) * (size_t)multi + (size_t)part) * size;
}

static uint8_t byte_of(int message, int part, size_t at)
{
	return (uint8_t)((size_t)message * 7 + (size_t)part * 31 + at + at / 251);
}

static void receive_all(const struct net *net, void *context, int to_peer, int from_peer)
{
	uint8_t *buffer = aligned_alloc(4096, (size * DEPTH * (size_t)multi + 4095) / 4096 * 4096);
	char handle[HANDLE_SIZE] = "", word;
	void *listener, *receiver = NULL, *memory, *requests[DEPTH];
	int posted = 0, done = 0;

	CHECK(net->listen(context, 0, handle, &listener));
	if (write(to_peer, handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	while (!receiver)
		CHECK(net->accept(listener, &receiver, NULL));
	CHECK(net->register_memory(receiver, buffer, size * DEPTH * (size_t)multi, POINTER_HOST, &memory));
	while (done < messages) {
		int ready, sizes[MULTI_MAX] = { 0 };

		while (posted < messages && posted < done + DEPTH) {
			void *data[MULTI_MAX], *memories[MULTI_MAX], *profilers[MULTI_MAX] = { 0 },
								     *request = NULL;
			size_t room[MULTI_MAX];
			int tags[MULTI_MAX];

			for (int i = 0; i < multi; i++) {
				data[i] = slot(buffer, posted, i);
				memset(data[i], 0, size);
				room[i] = size;
				tags[i] = FIRST_TAG + i;
				memories[i] = memory;
			}
			CHECK(net->receive(receiver, multi, data, room, tags, memories, profilers, &request));
			if (!request)
				break;
			requests[posted++ % DEPTH] = request;
		}
		if (posted == done)
			continue;
		CHECK(net->test(requests[done % DEPTH], &ready, sizes));
		if (!ready)
			continue;
		for (int i = 0; i < multi; i++) {
			const uint8_t *data = slot(buffer, done, i);

			if ((size_t)sizes[i] != size) {
				fprintf(stderr, "message %d part %d has %d bytes\n", done, i, sizes[i]);
				exit(1);
			}
			for (size_t at = 0; at < size; at++)
				if (data[at] != byte_of(done, i, at)) {
					fprintf(stderr, "message %d part %d: wrong at byte %zu\n", done, i,
						at);
					exit(1);
				}
		}
		done++;
	}
	if (write(to_peer, "x", 1) != 1 || read(from_peer, &word, 1) != 1)
		exit(1);
	CHECK(net->deregister_memory(receiver, memory));
	CHECK(net->close_receive(receiver));
	CHECK(net->close_listen(listener));
	printf("%d messages\n", done);
}

static void send_all(const struct net *net, void *context, int to_peer, int from_peer)
{
	uint8_t *buffer = aligned_alloc(4096, (size * DEPTH * (size_t)multi + 4095) / 4096 * 4096);
	char handle[HANDLE_SIZE], word;
	void *sender = NULL, *memory, *requests[DEPTH][MULTI_MAX] = { { 0 } };
	int posted = 0, parts = 0, done = 0;

	if (read(from_peer, handle, sizeof(handle)) != sizeof(handle))
		exit(1);
	while (!sender)
		CHECK(net->connect(context, 0, handle, &sender, NULL));
	CHECK(net->register_memory(sender, buffer, size * DEPTH * (size_t)multi, POINTER_HOST, &memory));
	while (done < messages) {
		while (posted < messages && posted < done + DEPTH) {
			uint8_t *data = slot(buffer, posted, parts);
			void *request = NULL;

			for (size_t at = 0; at < size; at++)
				data[at] = byte_of(posted, parts, at);
			profile_state(SEND_PEER_WAIT);
			CHECK(net->send(sender, data, size, FIRST_TAG + parts, memory, NULL, &request));
			if (!request)
				break;
			profile_state(SEND_WAIT);
			requests[posted % DEPTH][parts++] = request;
			if (parts == multi)
				parts = 0, posted++;
		}
		if (posted == done)
			continue;
		int open = 0;
		for (int i = 0; i < multi; i++) {
			void **request = &requests[done % DEPTH][i];
			int ready = 0, sent;

			if (*request)
				CHECK(net->test(*request, &ready, &sent));
			if (ready)
				*request = NULL;
			open += *request != NULL;
		}
		done += !open;
	}
	if (read(from_peer, &word, 1) != 1)
		exit(1);
	while (profiler && read(from_peer, &word, 1) > 0)
		; /* until the receiver has ended */
	CHECK(net->deregister_memory(sender, memory));
	CHECK(net->close_send(sender));
	if (write(to_peer, "y", 1) != 1)
		exit(1);
}

int main(int argc, char **argv)
{
	int down[2], up[2], status;
	void *context;
	pid_t child;

	if (argc < 7 || argc > 8 || pipe(down) || pipe(up))
		return 2;
	messages = atoi(argv[4]);
	size = strtoull(argv[5], NULL, 10);
	multi = atoi(argv[6]);
	child = fork();
	if (child == 0) {
		close(down[1]), close(up[0]);
		setenv("NCCL_HOSTID", "other", 1);
		const struct net *net = nccl_net_load(argv + 1, &context);

		if (argc == 8)
			profile();
		send_all(net, context, up[1], down[0]);
		exit(0);
	}
	close(down[0]), close(up[1]);
	const struct net *net = nccl_net_load(argv + 1, &context);

	receive_all(net, context, down[1], up[0]);
	return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
