/* Flags that are locks: set by an exchange, cleared by a store. They are held for a few microseconds. A
 * thread that needs one spins; a thread that does not need it leaves its work to the holder. */
#ifndef MFS_SHIM_FLAG_H
#define MFS_SHIM_FLAG_H

#include "compiler.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How long to wait for a flag. A thread that was cancelled while it had a flag never clears it, so every
 * wait for a flag that a thread of the program may hold has a bound. */
#define SHIM_TURNOVER_WAIT_NS 1000000000u /* RESET, ERR, destroy: nothing may be posted meanwhile */
#define SHIM_UPDATE_WAIT_NS 100000000u    /* new rules or a new daemon: tried again later */
#define SHIM_SETTLE_WAIT_NS 100000000u    /* a preempted thread may still be counting completions */
#define SHIM_ERROR_WAIT_NS 1000000u       /* an error was seen on the path of a poll */
#define SHIM_KEY_WAIT_NS 1000000u         /* a memory region is deregistered */

static inline bool shim_try(_Atomic uint32_t *flag)
{
	return !atomic_load_explicit(flag, memory_order_relaxed) &&
	       !atomic_exchange_explicit(flag, 1, memory_order_acquire);
}

static inline void shim_release(_Atomic uint32_t *flag)
{
	atomic_store_explicit(flag, 0, memory_order_release);
}

void shim_acquire_slow(_Atomic uint32_t *flag);
static inline void shim_acquire(_Atomic uint32_t *flag)
{
	if (unlikely(!shim_try(flag)))
		shim_acquire_slow(flag);
}

/* Returns false if the flag could not be taken within the time. */
bool shim_acquire_for(_Atomic uint32_t *flag, uint64_t timeout_ns);

#endif
