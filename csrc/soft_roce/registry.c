/* Open devices by the descriptor that libibverbs writes its commands to; and what fork makes of them. */
#include "registry.h"

#include "descriptors.h"

static LIST_HEAD(, mfs_context) registry = LIST_HEAD_INITIALIZER(registry);
static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

uint32_t mfs_forks;

struct mfs_context *mfs_context_by_command_fd(int fd)
{
	struct mfs_context *context;

	pthread_mutex_lock(&registry_lock);
	LIST_FOREACH (context, &registry, registry_link)
		if (context->verbs.context.cmd_fd == fd)
			break;
	pthread_mutex_unlock(&registry_lock);
	return context;
}

/* The registry is taken over as it is at one moment; its contexts are the parent's. */
static void before_fork(void)
{
	pthread_mutex_lock(&registry_lock);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&registry_lock);
}

static void after_fork_child(void)
{
	mfs_forks++;
	LIST_INIT(&registry);
	mfs_descriptors_close_all();
	pthread_mutex_unlock(&registry_lock);
}

static void watch_fork(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Before a device is opened: what it opens is closed in a child. */
void mfs_registry_start(void)
{
	pthread_once(&fork_once, watch_fork);
}

void mfs_registry_add(struct mfs_context *context)
{
	pthread_mutex_lock(&registry_lock);
	LIST_INSERT_HEAD(&registry, context, registry_link);
	pthread_mutex_unlock(&registry_lock);
}

void mfs_registry_remove(struct mfs_context *context)
{
	pthread_mutex_lock(&registry_lock);
	LIST_REMOVE(context, registry_link);
	pthread_mutex_unlock(&registry_lock);
}
