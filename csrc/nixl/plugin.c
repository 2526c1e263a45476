/* What NIXL loads: libplugin_MFS.so is a backend of its own, MFS; the libraries beside it (csrc/nixl_stand_in) have the names of
 * NIXL's own plugins, which NIXL_PLUGIN_DIR would hide, and hand those out. Both come to nixl_open here.
 */
#include "engine.h"
#include "log.h"
#include "real.h"
#include "session.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKEND_VARIABLE "MFS_NIXL_BACKEND"
#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below */
static struct nixl_plugin *real;                         /* the one that is wrapped */
static struct nixl_plugin own, under_its_name;

static const char *own_name(void)
{
	return NIXL_OWN_NAME;
}

static struct nixl_object *create_engine(const struct nixl_engine_params *params)
{
	struct nixl_object *engine;

	if (!nixl_session_wanted())
		return real->create_engine(params);
	nixl_session_lane(true);
	engine = real->create_engine(params);
	nixl_session_lane(false);
	if (engine && nixl_engine_wrap(engine, params))
		nixl_session_start();
	return engine;
}

/* The backend whose transfers ask for permits; *chosen: the program's operator has named it. */
static const char *backend(bool *chosen)
{
	const char *name = getenv(BACKEND_VARIABLE);

	*chosen = name && *name;
	return *chosen ? name : NIXL_REAL_NAME;
}

/* The real plugin; with the lock. */
static struct nixl_plugin *open_real(const void *caller)
{
	nixl_plugin_init_function init;
	bool chosen;
	char file[128];
	void *library;

	if (real)
		return real;
	snprintf(file, sizeof(file), "libplugin_%s.so", backend(&chosen));
	library = nixl_real_open(file, caller);
	if (!library)
		return NULL;
	init = (nixl_plugin_init_function)dlsym(library, "nixl_plugin_init");
	real = init ? init() : NULL;
	if (!real)
		nixl_log(NIXL_REASON_REAL, "NIXL's plugin %s does not start", file);
	return real;
}

static struct nixl_plugin *wrapped(struct nixl_plugin *plugin, const void *caller)
{
	pthread_mutex_lock(&lock);
	if (open_real(caller)) {
		*plugin =
			*real; /* of another interface NIXL says so itself, by the version that the real one has */
		if (plugin == &own)
			plugin->name = own_name;
		if (real->api_version == NIXL_PLUGIN_API_VERSION)
			plugin->create_engine = create_engine;
		else
			nixl_log(
				NIXL_REASON_SLOTS,
				"this NIXL's plugins have interface version %d, not %d; its transfers run unscheduled",
				real->api_version, NIXL_PLUGIN_API_VERSION);
	}
	pthread_mutex_unlock(&lock);
	return real ? plugin : NULL;
}

/* For a library that stands in for the plugin `file` of NIXL's own: what its function `name` answers. */
EXPORT void *mfs_nixl_stand_in(const char *file, const char *name, const void *caller);
EXPORT void *mfs_nixl_stand_in(const char *file, const char *name, const void *caller)
{
	void *(*function)(void);
	void *library;
	char named[128];
	bool chosen;

	snprintf(named, sizeof(named), "libplugin_%s.so", backend(&chosen));
	if (chosen && !strcmp(file, named) && !strcmp(name, "nixl_plugin_init"))
		return wrapped(&under_its_name, caller);
	library = nixl_real_open(file, caller);
	function = library ? (void *(*)(void))dlsym(library, name) : NULL;
	return function ? function() : NULL;
}

EXPORT struct nixl_plugin *nixl_plugin_init(void);
EXPORT struct nixl_plugin *nixl_plugin_init(void)
{
	return wrapped(&own, __builtin_return_address(0));
}

/* The real plugin stays loaded: NIXL's own are never taken out either. */
EXPORT void nixl_plugin_fini(void);
EXPORT void nixl_plugin_fini(void)
{
}
