/* The arbiter's thread. It takes turns over clients and NICs, spins while messages come fast, and sleeps
 * otherwise. Also the calls that the daemon makes, which run on this thread as commands. */
#define _GNU_SOURCE
#include "watch.h"

#include "../base/pause.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* with at most this many cores, a thread that spins keeps the threads that it waits for from running */
#define FEW_CORES 4
#define ARBITER_NICE (-20)
/* about what one sleep costs the thread, so spinning is never much worse than sleeping at once */
#define SPIN_AFTER_WORK_NS 3000
#define TIMERS_PER_DRAIN 10
/* A command waits for at most this many turns that leave messages in a ring, so a client that never stops
 * does not keep it waiting. */
#define TURNS_BEHIND_MOST 256
#define TORN_POLLS 8 /* after a bell, rings are polled for this many torn_slot_ns, as a slot may be torn */
#define GAP_WEIGHT 8 /* weight of the past in the mean gap; the latest gap has weight 1 */

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static bool rings_of_read(struct mfs_arbiter *arbiter, struct session *session, bool whole)
{
	bool worked = session_drain(arbiter, session, whole ? RINGS_ALL : active_rings(session));

	session->ring_next++;
	return worked;
}

/* Reads the clients that have cost more than their part. Begins where the last turn ended, and stops when
 * this turn's time for them is used up. */
static bool behind_read(struct mfs_arbiter *arbiter, bool whole)
{
	uint32_t places = arbiter->actives;
	bool worked = false;

	for (uint32_t n = 0; n < places && arbiter->actives; n++) {
		struct session *session;

		if (arbiter->turn_left_ns == 0) {
			arbiter->behind = true;
			break;
		}
		arbiter->turn_place %= arbiter->actives;
		session = arbiter->active[arbiter->turn_place++];
		if (session->behind)
			worked |= rings_of_read(arbiter, session, whole);
	}
	return worked;
}

/* Reads the rings of clients that need not ring and, when a heartbeat is due, those of some others. True if
 * there was a message. */
static bool rings_read(struct mfs_arbiter *arbiter, bool whole)
{
	bool worked = false, behind = false;

	arbiter->resume_ns = MFS_TIME_NEVER;
	work_turn(arbiter);
	/* from the end: the place of a client that is detached is taken by one that was already read */
	for (uint32_t i = arbiter->actives; i-- > 0;) {
		struct session *session = arbiter->active[i];

		active_prefetch(arbiter, i);
		session->behind = work_beyond(arbiter, session);
		behind |= session->behind;
		if (!session->behind)
			worked |= rings_of_read(arbiter, session, whole);
	}
	if (behind)
		worked |= behind_read(arbiter, whole);
	if (arbiter->now_ns < arbiter->heartbeat_due_ns)
		return worked;
	for (uint32_t i = arbiter->slice; i < arbiter->slice_end && i < arbiter->sessions; i++) {
		struct session *session = arbiter->session[i];

		if (session->active || session->state != MFS_SEGMENT_ACTIVE)
			continue;
		session->behind = false;
		worked |= session_drain(arbiter, session, RINGS_ALL);
		if (session->state == MFS_SEGMENT_ACTIVE && session_unread(session))
			active_add(arbiter, session);
	}
	return worked;
}

/* A direction that is touched while another is served has its turn in this pass if it comes later in the
 * order, otherwise in the next turn. */
static void directions_permit(struct mfs_arbiter *arbiter)
{
	direction_set left = arbiter->active_directions;

	while (left) {
		uint32_t i = direction_first(left);
		const struct direction *direction = direction_at(arbiter, i);

		if (direction->dirty || arbiter->now_ns >= direction->evaluate_ns)
			direction_permit(arbiter, i);
		left = directions_behind(arbiter->active_directions, i);
	}
}

/* One turn over everything; the rings are read only if `drain`. True if there was something to do. */
static bool turn(struct mfs_arbiter *arbiter, bool drain)
{
	bool worked = false, asked;

	arbiter->loops++;
	arbiter->now_ns = arbiter_clock_ns();
	arbiter->behind = false;
	if (drain)
		bells_poll(arbiter);
	/* A command that comes after this load is for the next turn. Its bell is not read in this one. */
	asked = drain && atomic_load_explicit(&arbiter->command, memory_order_acquire);
	if (asked)
		bells_read(arbiter);
	if (drain)
		worked = rings_read(arbiter, asked || arbiter->asleep_written != MFS_AWAKE);
	if (worked)
		arbiter->message_ns = arbiter->now_ns;
	directions_permit(arbiter);
	worked |= permits_end(arbiter);
	arbiter->turns_behind = arbiter->behind ? arbiter->turns_behind + 1 : 0;
	/* The command runs last, after the rings were read: its caller sees what earlier messages did. */
	if (asked && (!arbiter->behind || arbiter->turns_behind > TURNS_BEHIND_MOST))
		worked |= arbiter_command_run(arbiter);
	if (worked)
		heartbeats_hasten(arbiter);
	credits_write(arbiter, heartbeats_write(arbiter));
	if (drain)
		actives_review(arbiter);
	return worked;
}

/* Sleeps until a bell rings (true) or something is due (false). */
static bool sleep_until_event(struct mfs_arbiter *arbiter)
{
	struct pollfd p = {.fd = arbiter->epoll, .events = POLLIN};
	struct timespec timeout;
	uint64_t until_ns = arbiter->sessions ? arbiter->heartbeat_due_ns : MFS_TIME_NEVER;
	uint64_t now_ns = arbiter_clock_ns();

	for (direction_set left = arbiter->active_directions; left; left &= left - 1) {
		const struct direction *direction = direction_at(arbiter, direction_first(left));

		if (direction->dirty) /* it has more to permit than one turn does */
			return false;
		if (direction->evaluate_ns < until_ns)
			until_ns = direction->evaluate_ns;
	}
	if (arbiter->resume_ns < until_ns)
		until_ns = arbiter->resume_ns;
	if (until_ns <= now_ns)
		return false;
	timeout.tv_sec = (time_t)((until_ns - now_ns) / 1000000000u);
	timeout.tv_nsec = (long)((until_ns - now_ns) % 1000000000u);
	if (ppoll(&p, 1, until_ns == MFS_TIME_NEVER ? NULL : &timeout, NULL) <= 0)
		return false;
	bells_read(arbiter); /* a client may have rung only because its collectives ended */
	arbiter->wakeups++;
	heartbeats_hasten(arbiter); /* a client that rang may have set its heartbeat back */
	for (direction_set left = arbiter->active_directions; left; left &= left - 1) {
		struct direction *direction = direction_at(arbiter, direction_first(left));

		direction->dirty |= direction->waits;
	}
	return true;
}

/* Spinning pays only while the next message is likely to come before a sleep would have ended. The mean gap
 * shows this. But a gap that ends with a wake-up is as long as the wake-up takes. By the gaps alone a
 * thread that has slept would go on sleeping, however fast its clients are. So it also spins briefly after
 * all work. */
static bool spin_pays(const struct mfs_arbiter *arbiter)
{
	uint64_t idle_ns = arbiter->now_ns - arbiter->worked_ns;

	return idle_ns < arbiter->config.spin_ns &&
	       (idle_ns < SPIN_AFTER_WORK_NS || arbiter->gap_ns < arbiter->config.spin_ns);
}

/* While the thread waits for a core, all held flows wait. Niceness alone does not help against programs of
 * other login sessions (autogroups). So a thread that never spins becomes a real-time thread: it works for
 * microseconds and sleeps. A thread that spins must not be one: a program pinned to its core would starve,
 * and kernels before 6.12 stop a real-time thread that does not sleep for 50 ms of each second. Without the
 * privilege for either the thread keeps its priority. */
static void priority_raise(const struct mfs_arbiter *arbiter)
{
	const struct sched_param lowest = {.sched_priority = sched_get_priority_min(SCHED_RR)};

	if (arbiter->config.spin_ns || sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest))
		setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), ARBITER_NICE);
}

static void *arbiter_thread(void *argument)
{
	struct mfs_arbiter *arbiter = argument;
	bool asleep = false; /* clients know that they have to ring */
	bool rest = false;   /* but not for every message: MFS_AT_REST */
	bool drain = true;
	uint64_t bell_ns = 0;
	unsigned timers = 0;

	prctl(PR_SET_NAME, "mfs-arbiter");
	priority_raise(arbiter);
	prctl(PR_SET_TIMERSLACK, 1); /* in ns; the default of 50 us would double a short wait */
	while (!arbiter->stop) {
		if (turn(arbiter, drain)) {
			uint64_t gap_ns = arbiter->now_ns - arbiter->worked_ns;

			if (gap_ns > 2 * arbiter->config.spin_ns)
				gap_ns = 2 * arbiter->config.spin_ns;
			arbiter->gap_ns = (arbiter->gap_ns * GAP_WEIGHT + gap_ns) / (GAP_WEIGHT + 1);
			arbiter->worked_ns = arbiter->now_ns;
			if (asleep)
				asleep_publish(arbiter, MFS_AWAKE);
			asleep = false;
			drain = true;
		} else if (asleep && rest && arbiter->dormant) {
			rest = false; /* from now on every message rings; one more turn reads earlier ones */
			asleep_publish(arbiter, MFS_ASLEEP);
			drain = true;
		} else if (asleep) {
			/* All clients know that they have to ring, and the turn after that found nothing. A
			 * timer does not change this. So after a timer the rings are polled only now and
			 * then, in case a thread died before it rang, and while a slot may be torn. */
			if (sleep_until_event(arbiter)) {
				asleep_publish(arbiter, MFS_AWAKE);
				asleep = false;
				drain = true;
				bell_ns = arbiter->now_ns;
			} else {
				if (!rest && !arbiter->dormant && at_rest(arbiter)) {
					rest = true;
					asleep_publish(arbiter, MFS_AT_REST);
				}
				drain = rest || arbiter->dormant || arbiter->resume_ns != MFS_TIME_NEVER ||
					++timers % TIMERS_PER_DRAIN == 0 ||
					arbiter->now_ns - bell_ns < TORN_POLLS * arbiter->config.torn_slot_ns;
			}
		} else if (spin_pays(arbiter)) {
			mfs_pause();
		} else {
			rest = !arbiter->dormant && at_rest(arbiter);
			asleep_publish(arbiter, rest ? MFS_AT_REST : MFS_ASLEEP);
			asleep = true;
		}
	}
	return NULL;
}

/* ---- what the daemon asks for ------------------------------------------------------------------------------------ */

static int watch(struct mfs_arbiter *arbiter, int fd, struct session *session)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = session};

	return epoll_ctl(arbiter->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static int run_client_add(struct mfs_arbiter *arbiter, void *argument)
{
	struct session *session = argument;
	int rc;

	if (arbiter->sessions == MFS_CLIENTS_MAX)
		return -EUSERS;
	rc = watch(arbiter, session->doorbell, session);
	if (rc < 0)
		return rc;
	if (arbiter->sessions == 0) /* no heartbeat was written while there was no client */
		heartbeats_due(arbiter, arbiter->counted_ns = arbiter->now_ns);
	arbiter->message_ns = arbiter->now_ns;
	pthread_mutex_lock(&arbiter->beat_lock);
	session_admit(arbiter, session);
	active_add(arbiter, session);
	pthread_cond_signal(&arbiter->beat_changed);
	pthread_mutex_unlock(&arbiter->beat_lock);
	return (int)session->client_id;
}

int mfs_arbiter_client_add(struct mfs_arbiter *arbiter, int *memfd, int *doorbell)
{
	struct session *session;
	int rc = session_create(arbiter, &session, memfd, doorbell);

	if (rc < 0)
		return rc;
	rc = arbiter_command(arbiter, run_client_add, session);
	if (rc < 0) {
		session_destroy(session);
		close(*memfd);
		close(*doorbell);
	}
	return rc;
}

struct client_argument {
	uint32_t client_id;
	struct session *session;
};

static int run_client_remove(struct mfs_arbiter *arbiter, void *argument)
{
	struct client_argument *a = argument;

	for (uint32_t i = 0; i < arbiter->sessions; i++) {
		if (arbiter->session[i]->client_id != a->client_id)
			continue;
		a->session = arbiter->session[i];
		session_detach(arbiter, a->session, -ESHUTDOWN);
		bypass_session_ended(arbiter, a->session);
		epoll_ctl(arbiter->epoll, EPOLL_CTL_DEL, a->session->doorbell, NULL);
		pthread_mutex_lock(&arbiter->beat_lock);
		arbiter->session[i] = arbiter->session[--arbiter->sessions];
		pthread_mutex_unlock(&arbiter->beat_lock);
		return 0;
	}
	return -ENOENT;
}

int mfs_arbiter_client_remove(struct mfs_arbiter *arbiter, uint32_t client_id)
{
	struct client_argument a = {.client_id = client_id};
	int rc = arbiter_command(arbiter, run_client_remove, &a);

	if (rc == 0)
		session_destroy(a.session);
	return rc;
}

struct nic_argument {
	const char *name;
	uint64_t guid;
	uint64_t rate_bytes_per_s;
	struct nic_parts parts;
};

static int run_nic(struct mfs_arbiter *arbiter, void *argument)
{
	struct nic_argument *a = argument;
	int rc = nic_find_or_add(arbiter, a->name, a->guid, a->rate_bytes_per_s, &a->parts);

	if (rc >= 0)
		/* its client asks about this NIC next */
		outlook_write(arbiter, arbiter->heartbeat_due_ns);
	return rc;
}

int mfs_arbiter_nic(struct mfs_arbiter *arbiter, const char *name, uint64_t guid, uint64_t rate_bytes_per_s)
{
	struct nic_argument a = {.name = name, .guid = guid, .rate_bytes_per_s = rate_bytes_per_s};
	struct mfs_window_config window = {.window_ns = arbiter->config.window_ns,
					   .window_bytes_min = arbiter->config.window_bytes_min};
	int rc;

	if (strlen(name) >= sizeof(arbiter->nic[0].name))
		return -ENAMETOOLONG;
	rc = arbiter_command(arbiter, run_nic, &a);
	if (rc != -ENOENT)
		return rc;
	/* Setting up a new queue takes milliseconds, so it is not done on the arbiter's thread. */
	rc = 0;
	window.rate_bytes_per_s =
		rate_bytes_per_s ? rate_bytes_per_s : arbiter->config.rate_default_bytes_per_s;
	for (unsigned d = 0; d < MFS_DIRECTIONS && rc == 0; d++) {
		rc = mfs_rmlq_create(&arbiter->config.policy, window.rate_bytes_per_s,
				     arbiter->config.tasks_max, &a.parts.queue[d]);
		if (rc == 0)
			rc = mfs_window_create(&window, &a.parts.window[d]);
	}
	if (rc == 0)
		mfs_rmlq_set_incoming(a.parts.queue[MFS_DIRECTION_IN]);
	for (unsigned d = 0; d < MFS_DIRECTIONS && rc == 0; d++)
		mfs_rmlq_watch(a.parts.queue[d], watch_promoted, arbiter);
	if (rc == 0)
		rc = arbiter_command(arbiter, run_nic, &a);
	/* the parts are NULL by now, unless another thread has added the NIC meanwhile or a call failed */
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++) {
		mfs_rmlq_destroy(a.parts.queue[d]);
		mfs_window_destroy(a.parts.window[d]);
	}
	return rc;
}

struct rules_argument {
	const struct mfs_rule *rules;
	int n;
};

static int run_rules(struct mfs_arbiter *arbiter, void *argument)
{
	struct rules_argument *a = argument;

	memcpy(arbiter->rules, a->rules, (size_t)a->n * sizeof(*a->rules));
	arbiter->rules_count = (uint32_t)a->n;
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		session_rules_write(arbiter, arbiter->session[i]);
	return 0;
}

int mfs_arbiter_rules(struct mfs_arbiter *arbiter, const struct mfs_rule *rules, int n)
{
	struct rules_argument a = {.rules = rules, .n = n};

	return n < 0 || n > MFS_RULES_MAX ? -EINVAL : arbiter_command(arbiter, run_rules, &a);
}

static uint32_t gate_mask(enum mfs_mode mode)
{
	return mode == MFS_MODE_ENFORCE ? ((1u << MFS_STAGES_MAX) - 1) & ~MFS_STAGES_UNSCHEDULED : 0;
}

static int run_mode(struct mfs_arbiter *arbiter, void *argument)
{
	arbiter->config.mode = *(enum mfs_mode *)argument;
	arbiter->gate_mask = gate_mask(arbiter->config.mode);
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		atomic_store_explicit(&arbiter->session[i]->segment->header.mode, arbiter->config.mode,
				      memory_order_release);
	for (uint32_t i = 0; i < MFS_NICS_MAX; i++)
		nic_gates_write(arbiter, i);
	for (uint32_t i = 0; i < directions_count(arbiter); i++) {
		struct direction *direction = direction_at(arbiter, i);

		for (uint32_t d = 0; d < MFS_DESTINATIONS_MAX && arbiter->config.mode != MFS_MODE_ENFORCE;
		     d++)
			mfs_rmlq_destination_open(direction->queue, (uint16_t)d);
		direction_touch(arbiter, i);
	}
	return 0;
}

int mfs_arbiter_mode(struct mfs_arbiter *arbiter, enum mfs_mode mode)
{
	return mode > MFS_MODE_ENFORCE ? -EINVAL : arbiter_command(arbiter, run_mode, &mode);
}

static int run_wire(struct mfs_arbiter *arbiter, void *argument)
{
	memcpy(arbiter->dscp, argument, sizeof(arbiter->dscp));
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		session_dscp_write(arbiter, arbiter->session[i]);
	return 0;
}

int mfs_arbiter_wire(struct mfs_arbiter *arbiter, const uint8_t dscp[MFS_CLASSES_MAX])
{
	return arbiter_command(arbiter, run_wire, (void *)dscp);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int mfs_arbiter_create(const struct mfs_arbiter_config *config, struct mfs_arbiter **result)
{
	struct mfs_arbiter *arbiter;
	struct mfs_rmlq *probe;
	int rc;

	if (config->heartbeat_ns == 0 || config->stale_after_ns <= config->heartbeat_ns ||
	    config->max_hold_ns == 0 || config->window_bytes_min == 0 || config->torn_slot_ns == 0 ||
	    config->gate_max_ns == 0 || config->load_time_constant_ns == 0 || config->mode > MFS_MODE_ENFORCE)
		return -EINVAL;
	/* A bad policy, rate or size must be refused now, not when the first NIC comes. */
	rc = mfs_rmlq_create(&config->policy, config->rate_default_bytes_per_s, config->tasks_max, &probe);
	if (rc < 0)
		return rc;
	mfs_rmlq_destroy(probe);

	arbiter = calloc(1, sizeof(*arbiter));
	if (!arbiter)
		return -ENOMEM;
	arbiter->config = *config;
	arbiter->collective_class = mfs_policy_class(&config->policy, MFS_STAGE_COLLECTIVE, 0);
	outlook_create(arbiter);
	arbiter->measures_load = mfs_policy_has_levels(&config->policy);
	arbiter->gate_mask = gate_mask(config->mode);
	arbiter->resume_ns = MFS_TIME_NEVER;
	if (sysconf(_SC_NPROCESSORS_ONLN) <= FEW_CORES)
		arbiter->config.spin_ns = 0;
	arbiter->gap_ns = 2 * arbiter->config.spin_ns;
	memset(arbiter->dscp, MFS_DSCP_KEEP, sizeof(arbiter->dscp));
	pthread_mutex_init(&arbiter->control, NULL);
	arbiter->epoll = epoll_create1(EPOLL_CLOEXEC);
	arbiter->command_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	arbiter->notice = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (arbiter->epoll < 0 || arbiter->command_bell < 0 || arbiter->notice < 0 ||
	    getrandom(&arbiter->key_secret, sizeof(arbiter->key_secret), 0) != sizeof(arbiter->key_secret)) {
		rc = -errno;
		mfs_arbiter_destroy(arbiter);
		return rc;
	}
	rc = beater_init(arbiter);
	if (rc == 0)
		rc = watch_create(arbiter);
	if (rc == 0)
		rc = watch(arbiter, arbiter->command_bell, NULL);
	if (rc < 0) {
		mfs_arbiter_destroy(arbiter);
		return rc;
	}
	*result = arbiter;
	return 0;
}

int mfs_arbiter_start(struct mfs_arbiter *arbiter)
{
	sigset_t all, before;
	int rc;

	if (arbiter->running)
		return -EALREADY;
	sigfillset(&all); /* signals are left to the interpreter's main thread */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = beater_start(arbiter);
	if (rc == 0) {
		rc = arbiter_thread_start(arbiter, &arbiter->thread, arbiter_thread);
		if (rc < 0)
			beater_stop(arbiter);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	arbiter->running = rc == 0;
	return rc;
}

static int run_stop(struct mfs_arbiter *arbiter, void *argument)
{
	(void)argument;
	arbiter->stop = true;
	return 0;
}

void mfs_arbiter_destroy(struct mfs_arbiter *arbiter)
{
	if (arbiter->running) {
		arbiter_command(arbiter, run_stop, NULL);
		pthread_join(arbiter->thread, NULL);
		beater_stop(arbiter);
	}
	while (arbiter->sessions) {
		struct session *session = arbiter->session[--arbiter->sessions];

		session_detach(arbiter, session, -ESHUTDOWN);
		session_destroy(session);
	}
	for (uint32_t i = 0; i < directions_count(arbiter); i++)
		mfs_rmlq_destroy(direction_at(arbiter, i)->queue),
			mfs_window_destroy(direction_at(arbiter, i)->window);
	if (arbiter->epoll >= 0)
		close(arbiter->epoll);
	if (arbiter->command_bell >= 0)
		close(arbiter->command_bell);
	if (arbiter->notice >= 0)
		close(arbiter->notice);
	outlook_destroy(arbiter);
	watch_destroy(arbiter);
	pthread_mutex_destroy(&arbiter->control);
	free(arbiter);
}
