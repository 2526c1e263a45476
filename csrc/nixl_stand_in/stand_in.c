/* A library with the name of one of NIXL's own plugins. If NIXL_PLUGIN_DIR is set, NIXL searches only that
 * folder. When it is the folder of libplugin_MFS.so, NIXL finds these libraries there, and they return the
 * plugins of NIXL's own folder. So none of those is hidden. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MAIN_LIBRARY "libplugin_MFS.so"

/* Returns what the function `name` of NIXL's own plugin returns, with the help of libplugin_MFS.so beside
 * this library. NULL: the plugin, or libplugin_MFS.so, was not found. */
static void *of_the_real_one(const char *name, const void *caller)
{
	void *(*stand_in)(const char *, const char *, const void *);
	char path[PATH_MAX];
	const char *file;
	void *library;
	Dl_info own;

	if (!dladdr((const void *)&of_the_real_one, &own) || !(file = strrchr(own.dli_fname, '/')))
		return NULL;
	if (snprintf(path, sizeof(path), "%.*s/" MAIN_LIBRARY, (int)(file - own.dli_fname), own.dli_fname) >=
	    (int)sizeof(path))
		return NULL;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	stand_in = library ? (void *(*)(const char *, const char *, const void *))dlsym(library,
											"mfs_nixl_stand_in")
			   : NULL;
	return stand_in ? stand_in(file + 1, name, caller) : NULL;
}

EXPORT void *nixl_plugin_init(void);
EXPORT void *nixl_plugin_init(void)
{
	return of_the_real_one("nixl_plugin_init", __builtin_return_address(0));
}

EXPORT void nixl_plugin_fini(void);
EXPORT void nixl_plugin_fini(void)
{
}

EXPORT void *nixl_telemetry_plugin_init(void);
EXPORT void *nixl_telemetry_plugin_init(void)
{
	return of_the_real_one("nixl_telemetry_plugin_init", __builtin_return_address(0));
}

EXPORT void nixl_telemetry_plugin_fini(void);
EXPORT void nixl_telemetry_plugin_fini(void)
{
}

EXPORT void *nixl_trace_plugin_init(void);
EXPORT void *nixl_trace_plugin_init(void)
{
	return of_the_real_one("nixl_trace_plugin_init", __builtin_return_address(0));
}

EXPORT void nixl_trace_plugin_fini(void);
EXPORT void nixl_trace_plugin_fini(void)
{
}
