/* MFS_MODE. It is read once: by the constructor, or earlier if a constructor of the program opens a device. */
#include "mode.h"

#include "compiler.h"
#include "log.h"
#include "mark.h"
#include "service_level.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

static _Atomic uint32_t mode_plus_one; /* 0: not read yet */

enum mfs_mode shim_mode(void)
{
	uint32_t mode = atomic_load_explicit(&mode_plus_one, memory_order_relaxed);
	const char *text;

	if (likely(mode))
		return mode - 1;
	text = getenv("MFS_MODE");
	mode = MFS_MODE_ENFORCE;
	if (getauxval(AT_SECURE)) {
		mode = MFS_MODE_OFF;
		shim_log(SHIM_REASON_SECURE, "setuid or privileged program: not scheduled");
	} else if (text && !strcmp(text, "off")) {
		mode = MFS_MODE_OFF;
	} else if (text && !strcmp(text, "observe")) {
		mode = MFS_MODE_OBSERVE;
	} else if (text && !strcmp(text, "mark")) {
		mode = shim_mark_load() ? MFS_MODE_OBSERVE : MFS_MODE_OFF;
	} else if (text && *text && strcmp(text, "enforce")) {
		mode = MFS_MODE_OFF;
		shim_log(SHIM_REASON_MODE,
			 "MFS_MODE=%s is not one of off, mark, observe, enforce: taken as off", text);
	}
	shim_service_level_load();
	atomic_store(&mode_plus_one, mode + 1);
	return mode;
}
