/* What NIXL loads. libplugin_MFS.so is a backend of its own, MFS. The libraries beside it
 * (csrc/nixl_stand_in) have the names of NIXL's own plugins, which NIXL_PLUGIN_DIR would hide, and return
 * those. Both call nixl_open here. */
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all of the following */
static struct nixl_plugin *real;                         /* the plugin that is wrapped */
static bool unscheduled;                                 /* it takes the place of the plugin that was named */
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

/* Returns the backend whose transfers ask for permits. *chosen: the program's operator has named it. */
static const char *backend(bool *chosen)
{
	const char *name = getenv(BACKEND_VARIABLE);

	*chosen = name && *name;
	return *chosen ? name : NIXL_REAL_NAME;
}

static struct nixl_plugin *start(const char *name, const void *caller, const char *instead)
{
	nixl_plugin_init_function init;
	struct nixl_plugin *plugin;
	char file[128];
	void *library;

	snprintf(file, sizeof(file), "libplugin_%s.so", name);
	library = nixl_real_open(file, caller, instead);
	if (!library)
		return NULL;
	init = (nixl_plugin_init_function)dlsym(library, "nixl_plugin_init");
	plugin = init ? init() : NULL;
	if (!plugin)
		nixl_log(NIXL_REASON_REAL, "NIXL's plugin %s does not start%s", file, instead);
	return plugin;
}

/* Returns the real plugin; the lock is held. `anyhow`: the program asked for MFS, so it gets some backend
 * even if its operator has named one that cannot be loaded. */
static struct nixl_plugin *open_real(const void *caller, bool anyhow)
{
	const char *name;
	bool chosen, other;

	if (real)
		return unscheduled && !anyhow ? NULL : real;
	name = backend(&chosen);
	other = anyhow && strcmp(name, NIXL_REAL_NAME) != 0;
	real = start(name, caller, other ? "; transfers go by " NIXL_REAL_NAME ", unscheduled" : "");
	if (!real && other) {
		real = start(NIXL_REAL_NAME, caller, "");
		unscheduled = true;
	}
	return real;
}

static struct nixl_plugin *wrapped(struct nixl_plugin *plugin, const void *caller)
{
	const struct nixl_plugin *found;

	pthread_mutex_lock(&lock);
	found = open_real(caller, plugin == &own);
	if (found) {
		/* if it has another interface, NIXL reports that itself, by the version of the real one */
		*plugin = *real;
		if (plugin == &own)
			plugin->name = own_name;
		if (real->api_version == NIXL_PLUGIN_API_VERSION && !unscheduled)
			plugin->create_engine = create_engine;
		else if (!unscheduled)
			nixl_log(
				NIXL_REASON_SLOTS,
				"this NIXL's plugins have interface version %d, not %d; its transfers run unscheduled",
				real->api_version, NIXL_PLUGIN_API_VERSION);
	}
	pthread_mutex_unlock(&lock);
	return found ? plugin : NULL;
}

/* For a library that stands in for NIXL's own plugin `file`: returns what the function `name` of that
 * plugin returns. */
EXPORT void *mfs_nixl_stand_in(const char *file, const char *name, const void *caller);
EXPORT void *mfs_nixl_stand_in(const char *file, const char *name, const void *caller)
{
	void *(*function)(void);
	void *library;
	char named[128];
	bool chosen;

	snprintf(named, sizeof(named), "libplugin_%s.so", backend(&chosen));
	if (chosen && !strcmp(name, "nixl_plugin_init")) {
		if (!strcmp(file, named))
			return wrapped(&under_its_name, caller);
		nixl_real_there(named, caller, "; transfers go unscheduled");
	}
	library = nixl_real_open(file, caller, "");
	function = library ? (void *(*)(void))dlsym(library, name) : NULL;
	return function ? function() : NULL;
}

EXPORT struct nixl_plugin *nixl_plugin_init(void);
EXPORT struct nixl_plugin *nixl_plugin_init(void)
{
	return wrapped(&own, __builtin_return_address(0));
}

/* The real plugin stays loaded: NIXL does not unload its own plugins either. */
EXPORT void nixl_plugin_fini(void);
EXPORT void nixl_plugin_fini(void)
{
}
