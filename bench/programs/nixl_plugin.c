/* Measures what NIXL's backend plugin adds to a transfer on the calling thread. A request of 1 MiB is
 * prepared, posted and released by a backend that moves nothing (tests/native/nixl_backend.c), in turns
 * without and with the plugin around it.
 *
 *	MFS_SOCKET=... MFS_NIXL_PLUGIN_DIR=FOLDER nixl_plugin LIBPLUGIN_MFS ROUNDS
 *
 * FOLDER has the backend as libplugin_UCX.so. There is a pause between two transfers, so that the arbiter
 * sleeps as it does while a transfer runs. Prints one JSON line: the time of every round in ns, by kind,
 * and how many transfers were held. */
#include "../../tests/native/nixl_backend.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES (1 << 20)
#define PAUSE_US 500
#define ROUNDS_MAX 100000

static struct backend *backend;
static struct nixl_descriptor here = {.address = 0x10000, .bytes = BYTES};
static struct nixl_descriptors list = {.begin = &here, .end = &here + 1, .room = &here + 1};
static unsigned took_ns[2][ROUNDS_MAX];

static unsigned now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (unsigned)t.tv_sec * 1000000000u + (unsigned)t.tv_nsec; /* may wrap: only differences are used */
}

static void *load(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		fprintf(stderr, "nixl_plugin: %s\n", dlerror());
		exit(1);
	}
	return library;
}

static struct nixl_object *engine_of(void *library)
{
	struct nixl_plugin *plugin = ((nixl_plugin_init_function)dlsym(library, "nixl_plugin_init"))();
	struct nixl_engine_params params = {.agent = {.data = "me", .bytes = 2}};

	return plugin->create_engine(&params);
}

/* Runs one transfer and stores its time in *ns. Returns true if it had to wait for its permit. */
static bool transfer(struct nixl_object *engine, unsigned *ns)
{
	static const struct nixl_string peer = {.data = "you", .bytes = 3};
	struct nixl_options options = {.notifies = false};
	struct nixl_object *request = NULL;
	int operation = NIXL_WRITE;
	unsigned began_ns;
	bool held;

	usleep(PAUSE_US);
	began_ns = now_ns();
	((nixl_post)engine->table[NIXL_SLOT_PREPARE])(engine, &operation, &list, &list, &peer, &request, &options);
	held = ((nixl_post)engine->table[NIXL_SLOT_POST])(engine, &operation, &list, &list, &peer, &request,
							  &options) == NIXL_IN_PROGRESS;
	while (held && ((nixl_request)engine->table[NIXL_SLOT_CHECK])(engine, request) == NIXL_IN_PROGRESS)
		;
	((nixl_request)engine->table[NIXL_SLOT_RELEASE])(engine, request);
	*ns = now_ns() - began_ns;
	return held;
}

int main(int argc, char **argv)
{
	const char *folder = getenv("MFS_NIXL_PLUGIN_DIR");
	struct nixl_object *engines[2];
	int rounds = argc > 2 ? atoi(argv[2]) : 0, held = 0;
	char path[4096];
	void *library;

	if (argc != 3 || !folder || rounds < 1 || rounds > ROUNDS_MAX)
		return 2;
	snprintf(path, sizeof(path), "%s/libplugin_UCX.so", folder);
	library = load(path);
	backend = dlsym(library, "backend");
	backend->status = NIXL_SUCCESS;
	engines[0] = engine_of(library);
	engines[1] = engine_of(load(argv[1]));
	for (int i = 0; i < rounds; i++)
		for (int kind = 0; kind < 2; kind++) {
			int which = (kind + i) % 2;

			held += transfer(engines[which], &took_ns[which][i]);
		}
	for (int kind = 0; kind < 2; kind++) {
		printf("%s\"%s_ns\": [", kind ? ", " : "{", kind ? "plugin" : "plain");
		for (int i = 0; i < rounds; i++)
			printf("%s%u", i ? "," : "", took_ns[kind][i]);
		printf("]");
	}
	printf(", \"held\": %d}\n", held);
	return 0;
}
