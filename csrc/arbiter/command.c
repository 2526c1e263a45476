/* Commands: how other threads run something on the arbiter's thread, one at a time. Also how its threads
 * are started. */
#define _GNU_SOURCE
#include "state.h"

#include "../base/clock.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Tests replace it. */
uint64_t arbiter_clock_ns(void)
{
	return mfs_clock_ns();
}

void arbiter_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

bool arbiter_command_run(struct mfs_arbiter *arbiter)
{
	struct command *command = atomic_load_explicit(&arbiter->command, memory_order_acquire);

	if (!command)
		return false;
	atomic_store_explicit(&arbiter->command, NULL, memory_order_relaxed);
	command->rc = command->run(arbiter, command->argument);
	atomic_store_explicit(&command->done, 1, memory_order_release);
	arbiter_futex_wake(&command->done);
	return true;
}

int arbiter_command(struct mfs_arbiter *arbiter, int (*run)(struct mfs_arbiter *, void *), void *argument)
{
	struct command c = {.run = run, .argument = argument};
	uint64_t one = 1;

	pthread_mutex_lock(&arbiter->control);
	if (!arbiter->running) {
		arbiter->now_ns = arbiter_clock_ns();
		c.rc = run(arbiter, argument);
	} else {
		atomic_store_explicit(&arbiter->command, &c, memory_order_release);
		while (write(arbiter->command_bell, &one, sizeof(one)) < 0 && errno == EINTR)
			;
		while (!atomic_load_explicit(&c.done, memory_order_acquire))
			syscall(SYS_futex, &c.done, FUTEX_WAIT, 0, NULL, NULL, 0);
	}
	pthread_mutex_unlock(&arbiter->control);
	return c.rc;
}

int arbiter_thread_start(struct mfs_arbiter *arbiter, pthread_t *thread, void *(*run)(void *))
{
	pthread_attr_t attributes;
	cpu_set_t cpus;
	bool any = false;
	int rc = pthread_attr_init(&attributes);

	if (rc)
		return -rc;
	CPU_ZERO(&cpus);
	for (unsigned cpu = 0; cpu < MFS_CPUS_MAX; cpu++) {
		if (!(arbiter->config.cpus[cpu / 64] >> cpu % 64 & 1))
			continue;
		CPU_SET(cpu, &cpus);
		any = true;
	}
	if (any)
		rc = pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
	if (rc == 0)
		rc = pthread_create(thread, &attributes, run, arbiter);
	pthread_attr_destroy(&attributes);
	return -rc;
}
