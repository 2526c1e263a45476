/* Waiting for a flag. See flag.h. */
#include "flag.h"

#include "../../csrc/base/clock.h"
#include "../../csrc/base/pause.h"

#include <sched.h>

void shim_acquire_slow(_Atomic uint32_t *flag)
{
	for (unsigned spins = 0; !shim_try(flag); spins++) {
		mfs_pause();
		if (spins % 64 == 63)
			sched_yield();
	}
}

bool shim_acquire_for(_Atomic uint32_t *flag, uint64_t timeout_ns)
{
	uint64_t until;

	if (shim_try(flag))
		return true;
	until = mfs_clock_ns() + timeout_ns;
	for (unsigned spins = 0; mfs_clock_ns() < until; spins++) {
		if (shim_try(flag))
			return true;
		mfs_pause();
		if (spins % 16 == 15)
			sched_yield();
	}
	return false;
}
