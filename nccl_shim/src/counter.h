/* Counters that other threads and the daemon read. */
#ifndef MFS_SHIM_COUNTER_H
#define MFS_SHIM_COUNTER_H

#include <stdatomic.h>
#include <stdint.h>

static inline void shim_count(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* Adds to a counter that only this thread changes. No locked instruction is used where a single
 * instruction adds to memory: a signal handler of the thread cannot interrupt it halfway. */
static inline void shim_count_alone(_Atomic uint64_t *counter, uint64_t n)
{
#if defined(__x86_64__)
	__asm__ volatile("addq %1, %0" : "+m"(*(volatile uint64_t *)counter) : "r"(n) : "cc");
#else
	shim_count(counter, n);
#endif
}

#endif
