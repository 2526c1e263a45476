/* Registers the provider with libibverbs when it is loaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "context.h"
#include "library.h"

static struct verbs_device *alloc_device(struct verbs_sysfs_dev *sysfs)
{
	struct mfs_device *device = calloc(1, sizeof(*device));

	(void)sysfs;
	return device ? &device->verbs : NULL;
}

static void uninit_device(struct verbs_device *device)
{
	free(mfs_container_of(device, struct mfs_device, verbs));
}

/* Matches only devices of the launcher, which adds this file to those that a kernel driver would show. */
static bool match_device(struct verbs_sysfs_dev *sysfs)
{
	char path[IBV_SYSFS_PATH_MAX + 16];
	FILE *file;

	snprintf(path, sizeof(path), "%s/mfs_clock", sysfs->ibdev_path);
	file = fopen(path, "re");
	if (!file)
		return false;
	fclose(file);
	return true;
}

static const struct verbs_device_ops device_ops = {
	.name = "mfs",
	.match_min_abi_version = 1,
	.match_max_abi_version = 1,
	.match_device = match_device,
	.alloc_device = alloc_device,
	.uninit_device = uninit_device,
	.alloc_context = mfs_context_open,
};

struct copies {
	ElfW(Addr) own; /* load address of the provider's own libibverbs */
	const char *other;
};

static int note_copy(struct dl_phdr_info *object, size_t size, void *data)
{
	const char *slash = strrchr(object->dlpi_name, '/');
	struct copies *copies = data;

	(void)size;
	if (object->dlpi_addr != copies->own && slash &&
	    !strncmp(slash + 1, "libibverbs", strlen("libibverbs")))
		copies->other = object->dlpi_name;
	return 0;
}

/* Warns if the program has a copy of libibverbs under another name. The copy loads this provider, too, and
 * with it the system's library. The provider registers with the latter, so the copy does not find the
 * device. This does no harm if the program's calls go to the system's library because that was preloaded. */
static void warn_of_copies(void *library)
{
	struct link_map *map;
	struct copies copies = {0};
	Dl_info first;
	/* in the program's scope: RTLD_DEFAULT would begin with this library's own */
	void *program = dlopen(NULL, RTLD_LAZY), *symbol = dlsym(program, "ibv_node_type_str");

	dlclose(program);
	if (dlinfo(library, RTLD_DI_LINKMAP, &map))
		return;
	copies.own = map->l_addr;
	if (symbol && dladdr(symbol, &first) && (ElfW(Addr))first.dli_fbase == copies.own)
		return;
	dl_iterate_phdr(note_copy, &copies);
	if (copies.other)
		fprintf(stderr,
			"mfs soft RoCE: code that uses %s does not find the device; start the program with "
			"LD_PRELOAD=libibverbs.so.1\n",
			copies.other);
}

static __attribute__((constructor)) void register_provider(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);

	if (!library) {
		fprintf(stderr, "mfs soft RoCE: not loaded by libibverbs.so.1: %s\n", dlerror());
		return;
	}
	if (mfs_library_load(library) && !mfs_channel_install(library))
		mfs_rdma_core.register_driver(&device_ops);
	warn_of_copies(library);
	dlclose(library);
}
