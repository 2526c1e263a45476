/* Open devices, found by the descriptor to which libibverbs writes its commands; and what fork does to
 * them. */
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

/* The lock is held during fork, so that no thread is changing the registry then. Its contexts belong to
 * the parent, so the child empties it. */
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

/* Called before a device is opened, so that a forked child closes what the device opens. */
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
