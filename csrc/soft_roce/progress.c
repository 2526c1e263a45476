/*
 * Which thread moves the bytes. A thread that polls an empty completion queue does the work itself: no hand-over, no
 * wake-up. A background thread serves programs that sleep, wait on memory or are passive targets; it keeps
 * out of the way while a thread polls, because on few cores its wake-ups would cost more than they bring.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "progress.h"

#include "../base/clock.h"
#include "connection.h"
#include "datagram.h"
#include "descriptors.h"
#include "handshake.h"
#include "pacer.h"
#include "port.h"
#include "requester.h"
#include "timer.h"

enum {
	EVENTS_PER_TURN = 32,
	POLLED_RECENTLY_NS = 5 * 1000,
	BACK_OFF_MIN_NS = 10 * 1000,
	BACK_OFF_MAX_NS = 500 * 1000,
	POLL_SPIN_NS = 100 * 1000,
	POLL_WAIT_NS = 50 * 1000,
};

static void send_deferred(struct mfs_context *context)
{
	struct mfs_qp *qp;

	while ((qp = TAILQ_FIRST(&context->deferred))) {
		TAILQ_REMOVE(&context->deferred, qp, deferred_link);
		qp->deferred = false;
		mfs_requester_send(qp);
	}
}

static bool is_due(const struct mfs_qp *qp, uint64_t now)
{
	return qp->timer != MFS_NO_TIMER && qp->timer_due_ns <= now;
}

/* Where this process was stopped, or had no core, what the peer has said in time is still to be read. */
static void run_timer(struct mfs_qp *qp, uint64_t now)
{
	if (qp->timer == MFS_RNR_TIMER && qp->requester)
		mfs_connection_event(qp->requester, EPOLLIN);
	if (is_due(qp, now))
		mfs_requester_timer(qp);
}

static void run_timers(struct mfs_context *context)
{
	uint64_t now = mfs_clock_ns(), next;
	struct mfs_pacer *pacer;
	struct mfs_qp *qp, *following;

	mfs_pacers_run(context, now);
	for (qp = TAILQ_FIRST(&context->timed); qp; qp = following) {
		following = TAILQ_NEXT(qp, timed_link);
		if (is_due(qp, now))
			run_timer(qp, now);
	}
	if (context->accept_due_ns && context->accept_due_ns <= now)
		mfs_ports_resume(context);
	if (context->timer_due_ns && context->timer_due_ns > now)
		return;
	next = context->accept_due_ns;
	pacer = TAILQ_FIRST(&context->paced);
	if (pacer && (!next || pacer->due_ns < next))
		next = pacer->due_ns;
	TAILQ_FOREACH (qp, &context->timed, timed_link)
		if (!next || qp->timer_due_ns < next)
			next = qp->timer_due_ns;
	if (next || context->timer_due_ns)
		mfs_timer_arm(context, next); /* 0 disarms, and ends its being readable */
}

/* One turn over everything that can go on; with the context's lock held. Events are only ever fetched here,
 * so none outlives the turn, and what was closed before can be freed at its end. */
static int progress(struct mfs_context *context)
{
	struct epoll_event events[EVENTS_PER_TURN];
	int count, i;

	send_deferred(context);
	if (context->timer_due_ns)
		run_timers(context);
	count = epoll_wait(context->epoll_fd, events, EVENTS_PER_TURN, 0);
	for (i = 0; i < count; i++) {
		struct mfs_source *source = events[i].data.ptr;

		if (source->kind == MFS_SOURCE_CONNECTION)
			mfs_connection_event((struct mfs_connection *)source, events[i].events);
		else if (source->kind == MFS_SOURCE_PORT)
			mfs_port_accept(context, (struct mfs_port *)source);
		else if (source->kind == MFS_SOURCE_DATAGRAMS)
			mfs_datagrams_event(context, mfs_container_of(source, struct mfs_port, datagrams),
					    events[i].events);
		/* the timer is checked in every turn, the wake-up only ends the background thread */
	}
	send_deferred(context);
	mfs_counters_show(&context->counters, mfs_clock_ns());
	mfs_connection_free_closed(context);
	return count;
}

static bool try_progress(struct mfs_context *context)
{
	int count;

	if (atomic_load_explicit(&context->lock_waiters, memory_order_relaxed) ||
	    !mfs_context_trylock(context))
		return false;
	count = progress(context);
	mfs_context_unlock(context);
	return count > 0;
}

/*
 * A poller that has found nothing for long waits a moment in the kernel. The kernel wakes it as soon as
 * something comes, ahead of threads that have kept a core busy; a thread that only yields its core stands
 * behind them for a time slice.
 */
static void wait_for_event(struct mfs_context *context)
{
	const struct timespec time = {.tv_nsec = POLL_WAIT_NS};
	struct pollfd any = {.fd = context->epoll_fd, .events = POLLIN};
	int cancelable;

	/* a thread that is cancelled here would count as one that waits for ever */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancelable);
	atomic_fetch_add_explicit(&context->waiting_pollers, 1, memory_order_relaxed);
	ppoll(&any, 1, &time, NULL);
	atomic_fetch_sub_explicit(&context->waiting_pollers, 1, memory_order_relaxed);
	pthread_setcancelstate(cancelable, NULL);
}

/* Called by a poll that found nothing. */
void mfs_progress_help(struct mfs_context *context)
{
	uint64_t now = mfs_clock_ns(), since;

	atomic_store_explicit(&context->last_poll_ns, now, memory_order_relaxed);
	if (try_progress(context)) {
		atomic_store_explicit(&context->idle_since_ns, 0, memory_order_relaxed);
		return;
	}
	since = atomic_load_explicit(&context->idle_since_ns, memory_order_relaxed);
	if (!since) {
		atomic_store_explicit(&context->idle_since_ns, now, memory_order_relaxed);
	} else if (now - since < POLL_SPIN_NS) {
		sched_yield(); /* the peer may need this very core */
	} else {
		wait_for_event(context);
		try_progress(context);
	}
}

/* Whether some thread polls, and so will do what there is to do. */
static bool is_polled(struct mfs_context *context)
{
	return atomic_load_explicit(&context->waiting_pollers, memory_order_relaxed) ||
	       mfs_clock_ns() - atomic_load_explicit(&context->last_poll_ns, memory_order_relaxed) <
		       POLLED_RECENTLY_NS;
}

static void sleep_ns(long time_ns)
{
	struct timespec time = {.tv_nsec = time_ns};

	nanosleep(&time, NULL);
}

static void *background(void *argument)
{
	struct mfs_context *context = argument;
	struct pollfd any = {.fd = context->epoll_fd, .events = POLLIN};
	long back_off_ns = BACK_OFF_MIN_NS;

	prctl(PR_SET_NAME, "mfs-soft-roce");
	prctl(PR_SET_TIMERSLACK, 1UL); /* sleeps are short here */
	while (!atomic_load(&context->stopping)) {
		poll(&any, 1,
		     atomic_load_explicit(&context->counters.pending, memory_order_relaxed)
			     ? MFS_COUNTERS_SHOWN_MS
			     : -1);
		if (is_polled(context)) {
			sleep_ns(back_off_ns);
			back_off_ns = mfs_min(back_off_ns * 2, (long)BACK_OFF_MAX_NS);
			continue;
		}
		back_off_ns = BACK_OFF_MIN_NS;
		if (atomic_load_explicit(&context->lock_waiters, memory_order_relaxed))
			sleep_ns(BACK_OFF_MIN_NS);
		pthread_mutex_lock(&context->lock);
		progress(context);
		pthread_mutex_unlock(&context->lock);
	}
	return NULL;
}

static int watch(struct mfs_context *context, struct mfs_source *source, enum mfs_source_kind kind, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

	source->kind = kind;
	source->fd = mfs_descriptor_own(fd);
	return fd < 0 || epoll_ctl(context->epoll_fd, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

int mfs_progress_start(struct mfs_context *context)
{
	sigset_t all, before;
	int ret;

	ret = watch(context, &context->timer, MFS_SOURCE_TIMER,
		    timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
	if (!ret)
		ret = watch(context, &context->wake, MFS_SOURCE_WAKE, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	if (ret)
		return ret;
	/* signals are for the program's own threads */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = pthread_create(&context->thread, NULL, background, context);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -ret;
}

void mfs_progress_stop(struct mfs_context *context)
{
	uint64_t one = 1;

	atomic_store(&context->stopping, true);
	if (write(context->wake.fd, &one, sizeof(one)) == sizeof(one))
		pthread_join(context->thread, NULL);
}
