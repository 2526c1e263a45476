/* The InfiniBand transport inside a shipped libnccl.so.2, without a GPU. `ncclNetIb` is a local symbol: a program that loads it reads
 * its offset and that of `ncclGetVersion` from the library's symbol table. For programs of one source file. */
#ifndef BENCH_NCCL_NET_H
#define BENCH_NCCL_NET_H

#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLE_SIZE = 128, POINTER_HOST = 1, COMMUNICATOR = 0x1234, FIRST_TAG = 100 };

struct config {
	int traffic_class;
};

/* The start of ncclNet_t from version 11 on (NCCL 2.28): the functions used here keep their places. */
struct net {
	const char *name;
	int (*init)(void **context, uint64_t communicator, struct config *config, void *log, void *profiler);
	int (*devices)(int *count);
	int (*get_properties)(int device, void *properties);
	int (*listen)(void *context, int device, void *handle, void **listener);
	int (*connect)(void *context, int device, void *handle, void **sender, void **device_handle);
	int (*accept)(void *listener, void **receiver, void **device_handle);
	int (*register_memory)(void *connection, void *data, size_t size, int type, void **memory);
	int (*register_dmabuf)(void);
	int (*deregister_memory)(void *connection, void *memory);
	int (*send)(void *sender, void *data, size_t size, int tag, void *memory, void *profiler,
		    void **request);
	int (*receive)(void *receiver, int count, void **data, size_t *sizes, int *tags, void **memory,
		       void **profiler, void **request);
	int (*flush)(void *receiver, int count, void **data, int *sizes, void **memory, void **request);
	int (*test)(void *request, int *done, int *sizes);
	int (*close_send)(void *sender);
	int (*close_receive)(void *receiver);
	int (*close_listen)(void *listener);
};

#define CHECK(call)                                                                                          \
	do {                                                                                                 \
		int result_ = (call);                                                                        \
		if (result_) {                                                                               \
			fprintf(stderr, "%s gives %d\n", #call, result_);                                    \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

static void log_nothing(int level, unsigned long flags, const char *function, int line, const char *format,
			...)
{
	(void)flags;
	if (level == 2) { /* warnings tell why something failed */
		va_list arguments;

		va_start(arguments, format);
		fprintf(stderr, "%s:%d ", function, line);
		vfprintf(stderr, format, arguments);
		fputc('\n', stderr);
		va_end(arguments);
	}
}

static int profile_nothing(void **handle, int type, void *parent, int64_t id, void *data)
{
	(void)handle, (void)type, (void)parent, (void)id, (void)data;
	return 0;
}

/* ARGUMENTS: the library, and the offsets of ncclNetIb and of ncclGetVersion, in hexadecimal. */
static const struct net *nccl_net_load(char **arguments, void **context)
{
	static struct config config = { -1 };
	void *library = dlopen(arguments[0], RTLD_NOW);
	char *version_function = library ? dlsym(library, "ncclGetVersion") : NULL;
	const struct net *net;
	int version, count;

	if (!version_function) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	net = (const struct net *)(version_function - strtoull(arguments[2], NULL, 16) +
				   strtoull(arguments[1], NULL, 16));
	CHECK(((int (*)(int *))version_function)(&version));
	CHECK(net->init(context, COMMUNICATOR, &config, log_nothing, profile_nothing));
	CHECK(net->devices(&count));
	if (count < 1 || strcmp(net->name, "IB")) {
		fprintf(stderr, "NCCL %d: net %s finds %d devices\n", version, net->name, count);
		exit(1);
	}
	printf("NCCL %d\n", version);
	return net;
}

#endif
