/* Heartbeats: how programs know that the daemon is alive, and what is checked each time.
 *
 * A thread that wakes every 10 ms for that costs more than everything else on a node without traffic. So
 * the arbiter becomes dormant when nothing has happened for a while: its next heartbeat is due in a
 * second, and its time is written in advance. Every message then rings, and a client that rings sets the
 * heartbeat of its segment back to the present (message.c). It thus notices as soon as otherwise when no
 * arbiter reads the bell. What shows only in counters (collectives) is seen with the next heartbeat.
 *
 * A long turn, or a scheduler that keeps this thread waiting (the kernel throttles real-time threads),
 * must not look like death. So a second thread only writes the heartbeats that are late. Once the arbiter
 * has not come round for half a second, that thread stops writing, too, and programs post what they hold. */
#include "state.h"

#include <errno.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DORMANT_AFTER_NS 1500000000ull /* longer than any time that credit depends on */
#define DORMANT_NS 1000000000ull
#define IDLE_HEARTBEATS_PER_TICK 10
/* one part in this many of the time between heartbeats, for contexts that have changed */
#define REFRESH_SHARE 32

static bool session_silent(const struct session *session)
{
	/* a torn slot, and what is behind it, must be polled again soon */
	return !session->batches_known && !session->ending && !session_unread(session);
}

static bool idle(struct mfs_arbiter *arbiter)
{
	for (direction_set left = arbiter->active_directions; left; left &= left - 1) {
		const struct direction *direction = direction_at(arbiter, direction_first(left));

		if (mfs_window_in_flight(direction->window) || mfs_rmlq_waiting(direction->queue))
			return false;
	}
	return true;
}

static bool silent(struct mfs_arbiter *arbiter)
{
	if (arbiter->now_ns - arbiter->message_ns < DORMANT_AFTER_NS)
		return false;
	for (uint32_t i = 0; i < arbiter->nics; i++)
		if (arbiter->nic[i].gate.wire_bytes > 0.0 ||
		    arbiter->now_ns - arbiter->nic[i].gate.busy_ns < DORMANT_AFTER_NS)
			return false;
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		if (arbiter->session[i]->state == MFS_SEGMENT_ACTIVE && !session_silent(arbiter->session[i]))
			return false;
	return true;
}

/* A client whose ring was full when a layer ended reports it later. No flow waits for that longer than
 * until the next heartbeat, unless clients' contexts change so much that reading them would take all of
 * the thread: then the others are read next time. */
static void contexts_refresh(struct mfs_arbiter *arbiter)
{
	uint64_t left_ns = arbiter->config.heartbeat_ns / REFRESH_SHARE;

	for (uint32_t n = 0; n < arbiter->sessions; n++) {
		struct session *session;
		uint64_t before_ns;

		if (arbiter->refresh_place >= arbiter->sessions)
			arbiter->refresh_place = 0;
		session = arbiter->session[arbiter->refresh_place++];
		before_ns = session->work_ns;
		session_contexts_refresh(arbiter, session);
		if (session->work_ns - before_ns >= left_ns)
			return;
		left_ns -= session->work_ns - before_ns;
	}
}

bool heartbeats_write(struct mfs_arbiter *arbiter)
{
	uint64_t ahead_ns;
	bool still;

	if (arbiter->now_ns < arbiter->heartbeat_due_ns)
		return false;
	slice_next(arbiter);
	still = idle(arbiter);
	if (!still || ++arbiter->idle_heartbeats % IDLE_HEARTBEATS_PER_TICK == 0 || arbiter->dormant)
		nics_measure(arbiter, still);
	arbiter->dormant = still && silent(arbiter);
	ahead_ns = arbiter->dormant ? DORMANT_NS : 0;
	heartbeats_due(arbiter,
		       arbiter->now_ns + (arbiter->dormant ? DORMANT_NS : arbiter->config.heartbeat_ns));
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		atomic_store_explicit(&arbiter->session[i]->segment->header.heartbeat_ns,
				      arbiter->now_ns + ahead_ns, memory_order_release);
	contexts_refresh(arbiter);
	outlook_write(arbiter, arbiter->heartbeat_due_ns);
	waiting_notice(arbiter);
	return true;
}

void heartbeats_due(struct mfs_arbiter *arbiter, uint64_t due_ns)
{
	arbiter->heartbeat_due_ns = due_ns;
	atomic_store_explicit(&arbiter->beat_due_ns, due_ns, memory_order_relaxed);
}

void heartbeats_hasten(struct mfs_arbiter *arbiter)
{
	if (!arbiter->dormant || arbiter->heartbeat_due_ns <= arbiter->now_ns)
		return;
	heartbeats_due(arbiter, arbiter->now_ns);
	pthread_cond_signal(&arbiter->beat_changed); /* it may be asleep until the end of this second */
}

/* ---- the beater -------------------------------------------------------------------------------------------------- */

#define STALL_NS 500000000ull
#define BEATER_NICE (-20)

static void beats_write(struct mfs_arbiter *arbiter, uint64_t now_ns)
{
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		atomic_store_explicit(&arbiter->session[i]->segment->header.heartbeat_ns, now_ns,
				      memory_order_release);
}

static void *beater_thread(void *argument)
{
	struct mfs_arbiter *arbiter = argument;
	uint64_t late_ns = 0; /* the late heartbeat that was written here */

	prctl(PR_SET_NAME, "mfs-heartbeat");
	/* without the privilege the thread keeps its priority */
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), BEATER_NICE);
	pthread_mutex_lock(&arbiter->beat_lock);
	while (!arbiter->beat_stop) {
		uint64_t due_ns = atomic_load_explicit(&arbiter->beat_due_ns, memory_order_relaxed);
		uint64_t at_ns = (due_ns > late_ns ? due_ns : late_ns) + arbiter->config.heartbeat_ns, now_ns;
		struct timespec until = {.tv_sec = (time_t)(at_ns / 1000000000u),
					 .tv_nsec = (long)(at_ns % 1000000000u)};

		if (arbiter->sessions == 0)
			pthread_cond_wait(&arbiter->beat_changed, &arbiter->beat_lock);
		else
			pthread_cond_timedwait(&arbiter->beat_changed, &arbiter->beat_lock, &until);
		now_ns = arbiter_clock_ns();
		if (now_ns < at_ns ||
		    atomic_load_explicit(&arbiter->beat_due_ns, memory_order_relaxed) != due_ns)
			continue;
		late_ns = now_ns;
		if (now_ns - due_ns < STALL_NS)
			beats_write(arbiter, now_ns);
	}
	pthread_mutex_unlock(&arbiter->beat_lock);
	return NULL;
}

int beater_init(struct mfs_arbiter *arbiter)
{
	pthread_condattr_t attributes;
	int rc = pthread_condattr_init(&attributes);

	if (rc == 0)
		rc = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	if (rc == 0)
		rc = pthread_cond_init(&arbiter->beat_changed, &attributes);
	pthread_condattr_destroy(&attributes);
	if (rc == 0)
		rc = pthread_mutex_init(&arbiter->beat_lock, NULL);
	return -rc;
}

int beater_start(struct mfs_arbiter *arbiter)
{
	return arbiter_thread_start(arbiter, &arbiter->beater, beater_thread);
}

void beater_stop(struct mfs_arbiter *arbiter)
{
	pthread_mutex_lock(&arbiter->beat_lock);
	arbiter->beat_stop = true;
	pthread_cond_signal(&arbiter->beat_changed);
	pthread_mutex_unlock(&arbiter->beat_lock);
	pthread_join(arbiter->beater, NULL);
}
