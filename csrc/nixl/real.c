/* Where NIXL's own plugins are: NIXL_PLUGIN_DIR names one folder, instead of the one beside NIXL's library. It names this plugin's,
 * so NIXL's own is found as NIXL would have done it without: beside the library that calls.
 */
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

/* True when it is this very library, or one beside it: it would call itself. */
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

static void *try_open(const char *folder, size_t bytes, const char *below, const char *file, bool *seen)
{
	char path[PATH_MAX];
	void *library;
	int n = snprintf(path, sizeof(path), "%.*s%s/%s", (int)bytes, folder, below, file);

	if (n < 0 || n >= (int)sizeof(path) || access(path, R_OK) || is_ours(path))
		return NULL;
	*seen = true;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* as NIXL does */
	if (!library)
		nixl_log(NIXL_REASON_REAL, "NIXL's plugin %s cannot be loaded: %s", path, dlerror());
	return library;
}

void *nixl_real_open(const char *file, const void *caller)
{
	const char *named = getenv(FOLDER_VARIABLE), *folder = named, *end;
	bool seen = false;
	size_t bytes;
	Dl_info core;
	void *library;

	if (named && *named) {
		library = try_open(named, strlen(named), "", file, &seen);
	} else {
		folder = dladdr(caller, &core) && core.dli_fname ? core.dli_fname : "";
		end = strrchr(folder, '/');
		if (!end)
			folder = ".";
		bytes = end ? (size_t)(end - folder) : 1;
		library = try_open(folder, bytes, "/plugins", file, &seen);
		if (!seen)
			library = try_open(folder, bytes, "/nixl", file, &seen);
	}
	if (!seen)
		nixl_log(NIXL_REASON_REAL,
			 "NIXL has no plugin %s beside %s; " FOLDER_VARIABLE " names its folder", file,
			 folder);
	return library;
}
