/* Counters that other threads and the daemon read. */
#ifndef MFS_SHIM_COUNTER_H
#define MFS_SHIM_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

static inline void shim_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* For a counter that this thread alone adds to: without a locked instruction where one instruction adds to memory, so that
 * no signal handler of the thread comes in between. */
static inline void shim_count_alone(_Atomic uint64_t *counter, uint64_t n)
{
#if defined(__x86_64__)
	__asm__ volatile("addq %1, %0" : "+m"(*(volatile uint64_t *)counter) : "r"(n) : "cc");
#else
	shim_count(counter, n);
#endif
}

#endif
