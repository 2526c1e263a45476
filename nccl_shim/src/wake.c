/* The sleep of the shim's thread. A post that is held wakes it. */
#define _GNU_SOURCE
#include "wake.h"

#include "process.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic uint32_t sleeping; /* the thread sleeps until woken; futex */

static void sleep_ns(uint64_t timeout_ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000),
				   .tv_nsec = (long)(timeout_ns % 1000000000)};

	syscall(SYS_futex, &sleeping, FUTEX_WAIT_PRIVATE, 1, &timeout, NULL, 0);
}

/* Called after something was held: wakes the thread if it sleeps. No system call if it is awake. */
void shim_wake(void)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&sleeping, memory_order_relaxed) && atomic_exchange(&sleeping, 0)) {
		int saved = errno;

		syscall(SYS_futex, &sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		errno = saved;
	}
}

/* Sleeps until woken or until the timeout. Does not sleep while something is held. */
void shim_sleep(uint64_t timeout_ns)
{
	atomic_store(&sleeping, 1);
	if (!atomic_load(&shim.held_requests))
		sleep_ns(timeout_ns);
	atomic_store(&sleeping, 0);
}

void shim_wake_after_fork(void)
{
	atomic_store(&sleeping, 0);
}
