/* Where NIXL's own plugins are. NIXL_PLUGIN_DIR names one folder, which replaces the one beside NIXL's
 * library. It names this plugin's folder, so NIXL's own folder is found as NIXL would find it without the
 * variable: beside the library that calls. */
#define _GNU_SOURCE
#include "real.h"

#include "log.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLDER_VARIABLE "MFS_NIXL_PLUGIN_DIR"

/* True if the file is this very library or one beside it: it would then call itself. */
static bool is_ours(const char *path)
{
	char there[PATH_MAX], here[PATH_MAX];
	const char *end;
	Dl_info own;

	if (!dladdr((const void *)&nixl_real_open, &own) || !realpath(own.dli_fname, here) ||
	    !realpath(path, there))
		return false;
	end = strrchr(here, '/');
	return !strncmp(here, there, (size_t)(end - here) + 1) && !strchr(there + (end - here) + 1, '/');
}

static bool is_there(const char *folder, size_t bytes, const char *below, const char *file,
		     char path[PATH_MAX])
{
	int n = snprintf(path, PATH_MAX, "%.*s%s/%s", (int)bytes, folder, below, file);

	return n >= 0 && n < PATH_MAX && !access(path, R_OK) && !is_ours(path);
}

/* Finds the file. *folder tells beside what it was searched for. */
static bool find(const char *file, const void *caller, char path[PATH_MAX], const char **folder)
{
	const char *named = getenv(FOLDER_VARIABLE), *end;
	Dl_info core;
	size_t bytes;

	if (named && *named) {
		*folder = named;
		return is_there(named, strlen(named), "", file, path);
	}
	*folder = dladdr(caller, &core) && core.dli_fname ? core.dli_fname : "";
	end = strrchr(*folder, '/');
	if (!end)
		*folder = ".";
	bytes = end ? (size_t)(end - *folder) : 1;
	return is_there(*folder, bytes, "/plugins", file, path) ||
	       is_there(*folder, bytes, "/nixl", file, path);
}

bool nixl_real_there(const char *file, const void *caller, const char *instead)
{
	const char *folder;
	char path[PATH_MAX];

	if (find(file, caller, path, &folder))
		return true;
	nixl_log(NIXL_REASON_REAL, "NIXL has no plugin %s beside %s; " FOLDER_VARIABLE " names its folder%s",
		 file, folder, instead);
	return false;
}

void *nixl_real_open(const char *file, const void *caller, const char *instead)
{
	const char *folder;
	char path[PATH_MAX];
	void *library;

	if (!nixl_real_there(file, caller, instead) || !find(file, caller, path, &folder))
		return NULL;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* as NIXL does */
	if (!library)
		nixl_log(NIXL_REASON_REAL, "NIXL's plugin %s cannot be loaded: %s%s", path, dlerror(),
			 instead);
	return library;
}
