/* Open devices, and what fork does to them. */
#ifndef MFS_SOFT_ROCE_REGISTRY_H
#define MFS_SOFT_ROCE_REGISTRY_H

#include "objects.h"

extern uint32_t mfs_forks; /* incremented in each forked child */

/* True if the context came by fork: it belongs to the parent, and calls on it fail. */
static inline bool mfs_context_inherited(const struct mfs_context *context)
{
	return context->forks != mfs_forks;
}

void mfs_registry_start(void);
void mfs_registry_add(struct mfs_context *context);
void mfs_registry_remove(struct mfs_context *context);
struct mfs_context *mfs_context_by_command_fd(int fd);

#endif
