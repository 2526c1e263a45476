/* A library with the name of one of NIXL's own plugins. NIXL_PLUGIN_DIR names one folder, and NIXL then looks nowhere else: where it
 * names that of libplugin_MFS.so, these hand out the plugins of NIXL's own folder, so that none is hidden.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define MAIN_LIBRARY "libplugin_MFS.so"

/* What the same function of NIXL's own plugin answers, through the library that lies beside this one; NULL where it is not there. */
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
