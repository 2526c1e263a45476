/* Whether a work request must wait: its stage, and the gate that the daemon opens and closes for that stage. */
#ifndef MFS_SHIM_GATE_H
#define MFS_SHIM_GATE_H

#include "process.h"
#include "records.h"

/* The stage of a tag replaces that of the rules, except that NCCL's traffic is never made to wait. */
static inline uint8_t shim_stage_of(const struct shim_qp *q, const struct shim_tag *tag)
{
	uint8_t stage = atomic_load_explicit(&q->stage, memory_order_relaxed);

	if (likely(!tag->stage) || stage == MFS_STAGE_COLLECTIVE ||
	    (stage == MFS_STAGE_CONTROL &&
	     atomic_load_explicit(&q->role, memory_order_relaxed) != MFS_ROLE_UNKNOWN))
		return stage;
	return tag->stage;
}

/* True when the gate is closed for this stage and the daemon is there to open it. */
static inline bool shim_must_hold(const struct shim_qp *q, uint8_t stage)
{
	_Atomic uint32_t *gate = atomic_load_explicit(&q->gate, memory_order_relaxed);

	return atomic_load_explicit(gate, memory_order_relaxed) & 1u << stage &&
	       !atomic_load_explicit(&q->passes, memory_order_relaxed) &&
	       atomic_load_explicit(&shim.enforcing, memory_order_relaxed);
}

#endif
