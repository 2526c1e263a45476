/* The NIXL backend plugin over a backend that records its calls, with a scripted daemon. Every test is a
 * function named on the command line; see tests/unit/nixl.
 *
 *	nixl_plugin TEST PLUGIN FOLDER
 *
 * PLUGIN: the library libplugin_MFS.so. FOLDER: holds the backend (libplugin_UCX.so) and a socket. */
#define _GNU_SOURCE
#include "check.h"
#include "nixl_backend.h"
#include "scripted_daemon.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES 4096
#define GATE (1u << MFS_STAGE_P2D)

static struct backend *backend;
static struct nixl_plugin *plugin;
static struct nixl_object *engine, *request;
static char socket_path[256];
static struct nixl_descriptor here[2] = {{.address = 0x10000, .bytes = BYTES},
					 {.address = 0x20000, .bytes = BYTES}};
static struct nixl_descriptors local = {.begin = here, .end = here + 2, .room = here + 2};

static struct nixl_string string(const char *text)
{
	return (struct nixl_string){.data = text, .bytes = strlen(text)};
}

/* ---- as NIXL calls -------------------------------------------------------------------------------------------------- */

static struct nixl_string peer;

static void *function(enum nixl_slot slot)
{
	return engine->table[slot];
}

static void make(void)
{
	struct nixl_engine_params params = {.agent = string("me")};

	engine = plugin->create_engine(&params);
	CHECK(engine && backend->engines == 1);
}

static void prepare(int operation, const char *to)
{
	peer = string(to);
	CHECK(((nixl_post)function(NIXL_SLOT_PREPARE))(engine, &operation, &local, &local, &peer, &request,
						       NULL) == 0);
}

static int post(int operation, const char *notification)
{
	char text[BACKEND_TEXT_MAX] = "";
	struct nixl_options options = {.notifies = notification != NULL};
	int status, kind = operation;

	if (notification)
		strcpy(text, notification);
	options.notification = string(text);
	status = ((nixl_post)function(NIXL_SLOT_POST))(engine, &kind, &local, &local, &peer, &request,
						       &options);
	memset(text, 'x', sizeof(text)); /* as if the stack were used again */
	kind = -1;
	return status;
}

static int check(void)
{
	return ((nixl_request)function(NIXL_SLOT_CHECK))(engine, request);
}

static void release(void)
{
	CHECK(((nixl_request)function(NIXL_SLOT_RELEASE))(engine, request) == 0);
	CHECK(backend->last_request == backend->own_request);
}

static struct daemon *begin(uint64_t max_hold_ns, uint64_t stale_after_ns)
{
	struct daemon_options options = {.path = socket_path,
					 .gate = GATE,
					 .mode = MFS_MODE_ENFORCE,
					 .max_hold_ns = max_hold_ns,
					 .stale_after_ns = stale_after_ns};
	struct daemon *d = daemon_start(&options);

	make();
	WAIT(daemon_has_named());
	return d;
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

static void held_until_it_is_permitted(void)
{
	struct daemon *d = begin(0, 0);

	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, "there") == NIXL_IN_PROGRESS);
	WAIT(daemon_counts(d).submitted == 1);
	for (int i = 0; i < 100; i++)
		CHECK(check() == NIXL_IN_PROGRESS);
	CHECK(backend->posted == 0 && backend->checked == 0);
	CHECK(daemon_submitted(d, 0).bytes == 2 * BYTES && daemon_submitted(d, 0).stage == MFS_STAGE_P2D);
	CHECK(!(daemon_submitted(d, 0).flags & MFS_TASK_INCOMING));
	daemon_grant(d, 1);
	WAIT(check() == NIXL_IN_PROGRESS && backend->posted);
	CHECK(backend->posted == 1 && backend->notifies && !strcmp(backend->notification, "there"));
	CHECK(backend->last_operation == NIXL_WRITE && backend->last_request == backend->own_request);
	CHECK(check() == NIXL_IN_PROGRESS && daemon_counts(d).completed == 0);
	backend->status = NIXL_SUCCESS;
	CHECK(check() == NIXL_SUCCESS);
	WAIT(daemon_counts(d).completed == 1);
	release();
	CHECK(daemon_counts(d).cancelled == 0);
}

static void a_read_is_incoming(void)
{
	struct daemon *d = begin(0, 0);

	prepare(NIXL_READ, "you");
	CHECK(post(NIXL_READ, NULL) == NIXL_IN_PROGRESS);
	WAIT(daemon_counts(d).submitted == 1);
	CHECK(daemon_submitted(d, 0).flags & MFS_TASK_INCOMING);
	daemon_grant(d, 1);
	WAIT(check() == NIXL_IN_PROGRESS && backend->posted);
	CHECK(backend->last_operation == NIXL_READ && !backend->notifies);
	release(); /* while it is under way */
	WAIT(daemon_counts(d).completed == 1);
}

/* A slow peer must not stop the others: each has its own window, which all that send there share. */
static void a_transfer_names_its_peer(void)
{
	const char *name = getenv("PEER_NAME"), *number = getenv("PEER_NUMBER");
	struct daemon *d = begin(0, 0);

	CHECK(name && number);
	for (unsigned i = 0; i < 2; i++) {
		prepare(i ? NIXL_READ : NIXL_WRITE, name);
		CHECK(post(i ? NIXL_READ : NIXL_WRITE, NULL) == NIXL_IN_PROGRESS);
		WAIT(daemon_counts(d).submitted == i + 1);
		CHECK(daemon_submitted(d, i).peer == strtoul(number, NULL, 0));
		release();
	}
}

static void a_long_notification_is_kept(void)
{
	struct daemon *d = begin(0, 0);
	char text[3000];

	memset(text, 'n', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	prepare(NIXL_WRITE, "you");
	for (int times = 1; times <= 2; times++) { /* the same request again */
		backend->status = NIXL_IN_PROGRESS;
		CHECK(post(NIXL_WRITE, text) == NIXL_IN_PROGRESS);
		daemon_grant(d, 1);
		WAIT(check() == NIXL_IN_PROGRESS && backend->posted == times);
		CHECK(!strcmp(backend->notification, text));
		backend->status = NIXL_SUCCESS;
		CHECK(check() == NIXL_SUCCESS);
		WAIT(daemon_counts(d).completed == (uint64_t)times);
	}
	release();
}

static void a_released_one_is_never_posted(void)
{
	struct daemon *d = begin(0, 0);

	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, "never") == NIXL_IN_PROGRESS);
	release();
	WAIT(daemon_counts(d).cancelled == 1);
	CHECK(backend->posted == 0 && backend->released == 1 && daemon_counts(d).bypassed == 0);
}

static void a_hold_is_bounded(void)
{
	struct daemon *d = begin(20000000, 0);

	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, "late") == NIXL_IN_PROGRESS);
	WAIT(check() == NIXL_IN_PROGRESS && backend->posted == 1);
	WAIT(daemon_counts(d).bypassed == 1);
	backend->status = NIXL_SUCCESS;
	CHECK(check() == NIXL_SUCCESS);
	release();
	CHECK(atomic_load(&daemon_segment(d)->report.bypassed_hold) == 1);
}

static void a_daemon_that_dies_lets_go(void)
{
	struct daemon *d = begin(0, 50000000);

	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, "on") == NIXL_IN_PROGRESS);
	WAIT(daemon_counts(d).submitted == 1);
	daemon_kill(d);
	WAIT(check() == NIXL_IN_PROGRESS && backend->posted == 1);
	CHECK(!strcmp(backend->notification, "on"));
	CHECK(post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS && backend->posted == 2);
	release();
}

/* Sends one transfer. Returns whether the daemon has been asked for any by now. */
static bool sent_one_is_asked_for(struct daemon *d)
{
	backend->status = NIXL_SUCCESS;
	if (post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS)
		WAIT(check() == NIXL_SUCCESS);
	return daemon_counts(d).submitted != 0;
}

static void another_daemon_is_found(void)
{
	struct daemon *d = begin(0, 50000000);

	daemon_kill(d);
	d = daemon_start(&(struct daemon_options){.path = socket_path,
						  .gate = GATE,
						  .mode = MFS_MODE_ENFORCE,
						  .grant_all = true});
	WAIT(daemon_counts(d).attached == 1 && daemon_has_named());
	prepare(NIXL_WRITE, "you");
	WAIT(sent_one_is_asked_for(d));
	release();
}

/* Returns whether a search, with which each engine begins, leaves the daemon alone. */
static bool searches_quietly(struct daemon *d)
{
	struct nixl_engine_params params = {.agent = string("me")};
	uint64_t before = daemon_counts(d).attached;

	CHECK(plugin->create_engine(&params));
	return before && daemon_counts(d).attached == before;
}

static void a_daemon_that_refuses_the_card_is_left_alone(void)
{
	struct daemon_options options = {.path = socket_path, .mode = MFS_MODE_ENFORCE, .nic_error = -ENOSPC};
	struct daemon *d = daemon_start(&options);

	make();
	WAIT(searches_quietly(d));
	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS && backend->posted == 1);
	daemon_kill(d);
	options.nic_error = 0;
	options.gate = GATE;
	options.grant_all = true;
	d = daemon_start(&options);
	WAIT(daemon_counts(d).attached && daemon_has_named());
	WAIT(sent_one_is_asked_for(d));
	release();
}

/* A program may set variables while the plugin's thread searches. That thread must not read them, so it
 * cannot see the new ones. */
static void the_environment_is_read_with_the_first_engine(void)
{
	struct daemon *d;

	setenv("UCX_TLS", "tcp", 1);
	setenv("UCX_NET_DEVICES", "lo", 1);
	make();
	setenv("MFS_SOCKET", "/nowhere/mfsd.sock", 1);
	setenv("UCX_TLS", "rc", 1);
	setenv("UCX_NET_DEVICES", "mlx5_7:1", 1);
	d = daemon_start(
		&(struct daemon_options){.path = socket_path, .gate = GATE, .mode = MFS_MODE_ENFORCE});
	WAIT(daemon_counts(d).attached == 1 && daemon_has_named());
	CHECK(daemon_was_asked_for(d, "lo"));
}

static void a_peer_that_goes_takes_what_is_held(void)
{
	struct daemon *d = begin(0, 0);
	struct nixl_string other = string("other"), you = string("you");

	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, "never") == NIXL_IN_PROGRESS);
	((nixl_disconnect)function(NIXL_SLOT_DISCONNECT))(engine, &other);
	CHECK(check() == NIXL_IN_PROGRESS);
	((nixl_disconnect)function(NIXL_SLOT_DISCONNECT))(engine, &you);
	CHECK(backend->disconnected == 2);
	daemon_grant(d, 1);
	for (int i = 0; i < 3; i++)
		CHECK(check() == NIXL_ERR_REMOTE_DISCONNECT);
	CHECK(backend->posted == 0);
	release();
	CHECK(backend->released == 1);
}

static void an_engine_that_goes_gives_back_what_is_held(void)
{
	struct daemon *d = begin(0, 0);

	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS);
	WAIT(daemon_counts(d).submitted == 1);
	((nixl_delete)function(NIXL_SLOT_DELETE))(engine);
	CHECK(backend->engines == 0);
	WAIT(daemon_counts(d).cancelled == 1);
	CHECK(backend->posted == 0);
}

static void a_failed_one_gives_its_permit_back(void)
{
	struct daemon *d = begin(0, 0);

	daemon_grant_all(d, true);
	backend->status = -3;
	prepare(NIXL_WRITE, "you");
	if (post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS)
		WAIT(check() == -3);
	WAIT(daemon_counts(d).cancelled == 1);
	release();
	CHECK(daemon_counts(d).completed == 0);
}

static void what_need_not_ask_does_not(void)
{
	struct daemon *d = begin(0, 0);

	backend->status = NIXL_SUCCESS;
	prepare(NIXL_WRITE, "me"); /* within the agent */
	CHECK(post(NIXL_WRITE, NULL) == NIXL_SUCCESS);
	release();
	daemon_gate(d, 0);
	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, NULL) == NIXL_SUCCESS);
	release();
	daemon_gate(d, GATE);
	daemon_mode(d, MFS_MODE_OBSERVE);
	WAIT(atomic_load(&daemon_segment(d)->header.mode) == MFS_MODE_OBSERVE);
	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, NULL) == NIXL_SUCCESS);
	release();
	CHECK(backend->posted == 3 && daemon_counts(d).submitted == 0);
}

static void the_rest_is_the_real_engines(void)
{
	struct nixl_object *real;
	int duration, margin, method, operation = NIXL_WRITE;

	begin(0, 0);
	prepare(NIXL_WRITE, "you");
	CHECK(((nixl_estimate)function(NIXL_SLOT_ESTIMATE))(engine, &operation, &local, &local, &peer,
							    &request, &duration, &margin, &method,
							    NULL) == NIXL_SUCCESS);
	CHECK(backend->estimated == 1 && backend->last_request == backend->own_request);
	release();
	CHECK(function(0) == ((void **)backend->table)[0] && function(NIXL_SLOTS_LEAST) == NULL);
	real = engine;
	CHECK(!strcmp(plugin->name(), "MFS"));
	plugin->destroy_engine(real);
	CHECK(backend->engines == 0);
	make(); /* NIXL may delete an engine itself */
	((nixl_delete)function(NIXL_SLOT_DELETE))(engine);
	CHECK(backend->engines == 0);
}

static void a_child_asks_nothing(void)
{
	struct daemon *d = begin(0, 0);
	int status;
	pid_t child;

	prepare(NIXL_WRITE, "you");
	child = fork();
	if (!child) {
		backend->status = NIXL_SUCCESS;
		_exit(post(NIXL_WRITE, NULL) != NIXL_SUCCESS);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(daemon_counts(d).submitted == 0);
	CHECK(post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS);
	release();
}

/* The engine keeps the backend's own table: the backend differs from those that were tested, the mode
 * schedules nothing, or the adapter asks instead. */
static void untouched(void)
{
	make();
	CHECK(engine->table == backend->table);
	plugin->destroy_engine(engine);
}

/* The shim holds by itself what is posted here: a transfer with a permit of ours would wait for its own
 * work requests. */
static void beside_a_shim_of_another_version(void)
{
	struct daemon_options options = {.path = socket_path, .gate = GATE, .mode = MFS_MODE_ENFORCE};
	struct daemon *d = daemon_start(&options);

	make();
	prepare(NIXL_WRITE, "you");
	CHECK(post(NIXL_WRITE, NULL) == NIXL_IN_PROGRESS && backend->posted == 1);
	release();
	CHECK(daemon_counts(d).attached == 0);
}

static void of_another_interface(void)
{
	CHECK(plugin->api_version == 2); /* NIXL refuses it, as it does without us */
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{"held_until_it_is_permitted", held_until_it_is_permitted},
	{"a_read_is_incoming", a_read_is_incoming},
	{"a_transfer_names_its_peer", a_transfer_names_its_peer},
	{"a_long_notification_is_kept", a_long_notification_is_kept},
	{"a_released_one_is_never_posted", a_released_one_is_never_posted},
	{"a_hold_is_bounded", a_hold_is_bounded},
	{"a_daemon_that_dies_lets_go", a_daemon_that_dies_lets_go},
	{"another_daemon_is_found", another_daemon_is_found},
	{"a_daemon_that_refuses_the_card_is_left_alone", a_daemon_that_refuses_the_card_is_left_alone},
	{"the_environment_is_read_with_the_first_engine", the_environment_is_read_with_the_first_engine},
	{"a_peer_that_goes_takes_what_is_held", a_peer_that_goes_takes_what_is_held},
	{"an_engine_that_goes_gives_back_what_is_held", an_engine_that_goes_gives_back_what_is_held},
	{"a_failed_one_gives_its_permit_back", a_failed_one_gives_its_permit_back},
	{"what_need_not_ask_does_not", what_need_not_ask_does_not},
	{"the_rest_is_the_real_engines", the_rest_is_the_real_engines},
	{"a_child_asks_nothing", a_child_asks_nothing},
	{"untouched", untouched},
	{"of_another_interface", of_another_interface},
	{"beside_a_shim_of_another_version", beside_a_shim_of_another_version},
};

int main(int argc, char **argv)
{
	char path[256];
	void *library;

	CHECK(argc == 4);
	snprintf(socket_path, sizeof(socket_path), "%s/mfsd.sock", argv[3]);
	setenv("MFS_SOCKET", socket_path, 1);
	setenv("MFS_NIXL_PLUGIN_DIR", argv[3], 1);
	snprintf(path, sizeof(path), "%s/libplugin_UCX.so", argv[3]);
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	backend = library ? dlsym(library, "backend") : NULL;
	library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
	if (!library || !backend)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library && backend);
	plugin = ((nixl_plugin_init_function)dlsym(library, "nixl_plugin_init"))();
	CHECK(plugin);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (!strcmp(tests[i].name, argv[1])) {
			tests[i].run();
			return 0;
		}
	fprintf(stderr, "no test %s\n", argv[1]);
	return 2;
}
