/* Looks up the private functions of libibverbs by their private symbol version. */
#define _GNU_SOURCE
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>

struct mfs_rdma_core mfs_rdma_core;

static void *find(void *library, const char *name)
{
	void *symbol = dlvsym(library, name, MFS_PRIVATE_ABI);

	if (!symbol)
		fprintf(stderr,
			"mfs soft RoCE: libibverbs has no %s@" MFS_PRIVATE_ABI
			": soft RoCE needs rdma-core 36 to 56; start programs with mfs-soft-roce\n",
			name);
	return symbol;
}

bool mfs_library_load(void *library)
{
	mfs_rdma_core.register_driver = find(library, "verbs_register_driver_34");
	mfs_rdma_core.alloc_context = find(library, "_verbs_init_and_alloc_context");
	mfs_rdma_core.uninit_context = find(library, "verbs_uninit_context");
	mfs_rdma_core.set_ops = find(library, "verbs_set_ops");
	/* a library with this function also has the member `active_speed_ex` after the flags */
	mfs_rdma_core.port_attr_size = offsetof(struct ibv_port_attr, port_cap_flags2) + sizeof(uint32_t);
	if (dlvsym(library, "ibv_wr_opcode_str", MFS_PRIVATE_ABI))
		mfs_rdma_core.port_attr_size += sizeof(uint32_t);
	return mfs_rdma_core.register_driver && mfs_rdma_core.alloc_context && mfs_rdma_core.uninit_context &&
	       mfs_rdma_core.set_ops;
}
