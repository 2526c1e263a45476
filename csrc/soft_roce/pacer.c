/*
 * Turns on a link of limited rate. A connection or UD queue pair waits for one turn at a time, so the link
 * serves all that have something to send, in all processes, one after the other.
 */
#include "pacer.h"

#include "../base/clock.h"
#include "timer.h"

/* Returns the bytes that may be sent now, of a turn of `turn_bytes`. 0: the pacer is resumed when its turn
 * begins. */
uint32_t mfs_pacer_credit(struct mfs_context *context, struct mfs_pacer *pacer, uint32_t turn_bytes)
{
	uint64_t now;

	if (pacer->waiting)
		return 0;
	if (pacer->credit_bytes)
		return pacer->credit_bytes;
	now = mfs_clock_ns();
	pacer->credit_bytes = turn_bytes;
	pacer->due_ns =
		mfs_rate_reserve(&context->rate, turn_bytes, now, pacer->backlogged ? pacer->due_ns : now);
	pacer->backlogged = true;
	if (pacer->due_ns <= now)
		return pacer->credit_bytes;
	pacer->waiting = true;
	TAILQ_INSERT_TAIL(&context->paced, pacer, link);
	if (pacer == TAILQ_FIRST(&context->paced))
		mfs_timer_set(context, pacer->due_ns);
	return 0;
}

void mfs_pacer_spend(struct mfs_pacer *pacer, uint32_t bytes)
{
	pacer->credit_bytes -= mfs_min(pacer->credit_bytes, bytes);
}

/* Stops waiting; a turn that was reserved is lost. */
void mfs_pacer_stop(struct mfs_context *context, struct mfs_pacer *pacer)
{
	if (pacer->waiting)
		TAILQ_REMOVE(&context->paced, pacer, link);
	pacer->waiting = pacer->backlogged = false;
	pacer->credit_bytes = 0;
}

/* Resumes the pacers whose turn has begun. */
void mfs_pacers_run(struct mfs_context *context, uint64_t now_ns)
{
	struct mfs_pacer *pacer;

	while ((pacer = TAILQ_FIRST(&context->paced)) && pacer->due_ns <= now_ns) {
		TAILQ_REMOVE(&context->paced, pacer, link);
		pacer->waiting = false;
		pacer->resume(pacer);
	}
}
