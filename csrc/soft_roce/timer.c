/* Work for the next turn or for a later time. */
#define _GNU_SOURCE
#include "timer.h"

#include <sys/timerfd.h>

#include "../base/clock.h"

void mfs_defer(struct mfs_qp *qp)
{
	if (qp->deferred)
		return;
	qp->deferred = true;
	TAILQ_INSERT_TAIL(&mfs_context_of(qp->verbs.qp.context)->deferred, qp, deferred_link);
}

void mfs_timer_arm(struct mfs_context *context, uint64_t due_ns)
{
	struct itimerspec when = {
		.it_value = {.tv_sec = (time_t)(due_ns / MFS_NS_PER_S),
			     .tv_nsec = (long)(due_ns % MFS_NS_PER_S)},
	};

	context->timer_due_ns = due_ns;
	timerfd_settime(context->timer.fd, TFD_TIMER_ABSTIME, &when, NULL);
}

void mfs_timer_set(struct mfs_context *context, uint64_t due_ns)
{
	if (!context->timer_due_ns || due_ns < context->timer_due_ns)
		mfs_timer_arm(context, due_ns);
}

/* A queue pair has one timer at a time. */
void mfs_timer_start(struct mfs_qp *qp, enum mfs_qp_timer timer, uint64_t due_ns)
{
	struct mfs_context *context = mfs_context_of(qp->verbs.qp.context);

	mfs_timer_stop(qp);
	qp->timer = timer;
	qp->timer_due_ns = due_ns;
	TAILQ_INSERT_TAIL(&context->timed, qp, timed_link);
	mfs_timer_set(context, due_ns);
}

void mfs_timer_stop(struct mfs_qp *qp)
{
	if (qp->timer != MFS_NO_TIMER)
		TAILQ_REMOVE(&mfs_context_of(qp->verbs.qp.context)->timed, qp, timed_link);
	qp->timer = MFS_NO_TIMER;
}
