/* Attaching to the daemon and losing it, the shim's own thread, and fork.
 *
 * The thread starts with the first device, never in a constructor. While something is held, it checks
 * every few milliseconds whether the daemon is alive and whether anything was held too long; otherwise
 * four times a second. */
#define _GNU_SOURCE
#include "lifecycle.h"

#include "../../csrc/base/clock.h"
#include "budget.h"
#include "builders.h"
#include "classify.h"
#include "devices.h"
#include "flush.h"
#include "log.h"
#include "mark.h"
#include "metadata.h"
#include "mode.h"
#include "owner.h"
#include "permits.h"
#include "process.h"
#include "profiler.h"
#include "qp_state.h"
#include "rules.h"
#include "session.h"
#include "sweep.h"
#include "symbols.h"
#include "table.h"
#include "wake.h"

#include <errno.h>
#include <mfs/client.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUSY_TICK_NS 4000000
#define BUSY_FOR_NS 20000000 /* after something was held */
/* the caller's own polling takes the permits: the thread need not be woken for each */
#define POLLED_TICK_NS 1000000
#define IDLE_TICK_NS 250000000
#define RETRY_FIRST_NS 100000000
#define RETRY_LAST_NS 2000000000

/* a path too long for a socket is cut, but stays too long */
static char socket_path[256] = "/run/mfs/mfsd.sock";
static bool started, thread_runs, fork_watched;
static bool unclassified; /* some queue pair was busy when the rules changed */

/* ---- attach and detach (attach_lock held) ------------------------------------------------------------------------------------ */

/* A daemon whose heartbeat has stopped while its socket is open is hung, or short of CPU. What is held is
 * posted, and everything passes through until the heartbeat returns; the session stays. */
static void update_mode(struct mfs_client *client)
{
	struct mfs_segment *segment = mfs_client_segment(client);
	bool alive = mfs_client_alive(client, mfs_clock_ns());
	uint32_t enforcing = alive && thread_runs && shim_mode() == MFS_MODE_ENFORCE &&
			     atomic_load(&segment->header.mode) == MFS_MODE_ENFORCE;

	if (atomic_exchange(&shim.enforcing, enforcing) && !enforcing)
		shim_flush_all();
	/* otherwise the daemon has just detached us */
	if (!alive && atomic_load(&segment->header.state) == MFS_SEGMENT_ACTIVE)
		shim_log(SHIM_REASON_HUNG,
			 "the daemon does not answer: work requests pass through until it does");
}

static void name_nic(struct mfs_client *client, struct shim_context *context)
{
	int nic = mfs_client_nic(client, context->name, context->guid, context->rate_bytes_per_s);

	context->unanswered = nic == -ETIMEDOUT;
	if (context->unanswered)
		shim_log(SHIM_REASON_NIC_LATE,
			 "the daemon is late with device %s: its traffic is not scheduled until it answers",
			 context->name);
	else if (nic == -ENOSPC)
		shim_log(
			SHIM_REASON_NIC,
			"the daemon has no room for device %s (%d NICs at most, less for older libraries): its traffic is "
			"not scheduled; give fewer devices to programs under MFS",
			context->name, MFS_NICS_MAX);
	else if (nic < 0 || nic >= MFS_NICS_MAX)
		shim_log(SHIM_REASON_NIC,
			 "the daemon does not take device %s (%s): its traffic is not scheduled",
			 context->name, strerror(nic < 0 ? -nic : EINVAL));
	atomic_store(&context->nic, nic < MFS_NICS_MAX && nic >= 0 ? nic : -1);
}

/* Waits for the daemon's reply as attaching does; therefore it is called rarely, and only while nothing is held. */
static void name_late(struct mfs_client *client, uint64_t now_ns)
{
	static uint64_t next_ns;
	struct shim_context *context;
	unsigned cursor = 0;

	if (now_ns < next_ns)
		return;
	while ((context = shim_context_each(&cursor)))
		if (context->unanswered && !context->inherited) {
			next_ns = now_ns + RETRY_LAST_NS;
			name_nic(client, context);
			return;
		}
}

static bool bind_all(struct mfs_client *client)
{
	unsigned cursor = 0;
	bool all = true;
	struct shim_qp *q;

	while ((q = shim_qp_each(&cursor)))
		if (q->client != client)
			all &= shim_qp_bind(q, client);
	return all;
}

static void classify_all(void)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	unclassified = false;
	while ((q = shim_qp_each(&cursor)))
		unclassified |= !shim_classify(q);
}

/* Called on the thread of the program that opens its first device: later the environment may be changing. */
static void socket_path_read(void)
{
	const char *path = getenv("MFS_SOCKET");

	if (path && *path)
		snprintf(socket_path, sizeof(socket_path), "%s", path);
}

static bool attach(void)
{
	struct mfs_client_options options = {.mode = shim_mode(), .socket_path = socket_path};
	const char *why = NULL;
	struct mfs_client *client = NULL;
	struct shim_context *context;
	unsigned cursor = 0;
	int rc = mfs_client_attach(&options, &client, &why);

	if (rc) {
		shim_log(SHIM_REASON_ATTACH, "not attached to a daemon at %s: %s; work requests pass through",
			 socket_path, why ? why : strerror(-rc));
		return false;
	}
	if (mfs_client_minor(client) < MFS_ABI_MINOR)
		shim_log(SHIM_REASON_VERSION,
			 "the daemon speaks ABI %d.%u, older than this %d.%d: used as far as it goes",
			 MFS_ABI_MAJOR, mfs_client_minor(client), MFS_ABI_MAJOR, MFS_ABI_MINOR);
	while ((context = shim_context_each(&cursor)))
		if (!context->inherited)
			name_nic(client, context);
	shim_rules_load(client);
	atomic_store(&shim.client, client);
	update_mode(client);
	classify_all();
	bind_all(client);
	return true;
}

static void lose(struct mfs_client *client)
{
	bool free = false;

	atomic_store(&shim.enforcing, 0);
	shim_flush_all();
	atomic_store(&shim.client, NULL);
	for (int tries = 0; tries < 10 && !free; tries++)
		free = bind_all(NULL);
	free = free && shim_permits_settle();
	if (free) {
		/* an engine may be inside: its calls return -ENOTCONN from now on */
		if (shim_client_shared())
			atomic_store(&mfs_client_segment(client)->header.state, MFS_SEGMENT_DETACHED);
		/* if not free, a thread died inside, and the memory stays */
		else
			mfs_client_detach(client);
	}
	shim_log(SHIM_REASON_LOST, "the daemon is gone: work requests pass through until it is back");
}

/* ---- the thread --------------------------------------------------------------------------------------------------------------- */

static void tick(struct mfs_client *client, bool busy)
{
	struct mfs_segment *segment = mfs_client_segment(client);
	uint64_t now_ns = mfs_clock_ns();

	if (mfs_client_hung_up(client) || atomic_load(&segment->header.state) != MFS_SEGMENT_ACTIVE) {
		lose(client);
		return;
	}
	update_mode(client);
	if ((shim_rules_changed(client) && shim_rules_load(client) >= 0) || unclassified)
		classify_all();
	if (!busy) {
		name_late(client, now_ns);
		bind_all(client);
	}
	shim_communicators_report(segment);
	shim_sweep(now_ns, segment->header.max_hold_ns);
}

static void *thread_main(void *unused)
{
	uint64_t retry_ns = RETRY_FIRST_NS, busy_until_ns = 0, retry_at_ns = mfs_clock_ns() + retry_ns;
	uint32_t polls = 0;

	(void)unused;
	pthread_setname_np(pthread_self(), "mfs-shim");
	for (;;) {
		uint64_t now_ns = mfs_clock_ns();
		struct mfs_client *client;
		bool busy, polled;

		/* stay awake for a while instead of waking up for every work request */
		if (atomic_load(&shim.held_requests))
			busy_until_ns = now_ns + BUSY_FOR_NS;
		busy = now_ns < busy_until_ns;

		pthread_mutex_lock(&shim_attach_lock);
		client = atomic_load(&shim.client);
		if (client) {
			tick(client, busy);
			retry_ns = RETRY_FIRST_NS;
			retry_at_ns = now_ns + retry_ns;
		} else {
			shim_sweep(now_ns, UINT64_MAX); /* nothing is held for a daemon that is not there */
			if (now_ns >= retry_at_ns) {
				if (attach())
					shim_log(SHIM_REASON_BACK, "attached to the daemon");
				retry_ns = retry_ns * 2 < RETRY_LAST_NS ? retry_ns * 2 : RETRY_LAST_NS;
				retry_at_ns = now_ns + retry_ns;
			}
		}
		client = atomic_load(&shim.client);
		pthread_mutex_unlock(&shim_attach_lock);

		shim_permits();
		polled = polls != atomic_load(&shim.polls);
		polls = atomic_load(&shim.polls);
		if (!client && busy)
			usleep(BUSY_TICK_NS / 1000);
		else if (!client)
			shim_sleep(retry_ns < IDLE_TICK_NS ? retry_ns : IDLE_TICK_NS);
		else if (!busy)
			shim_sleep(IDLE_TICK_NS);
		else if (polled)
			usleep(POLLED_TICK_NS / 1000);
		else
			/* the client stays mapped: only this thread detaches */
			mfs_client_wait(client, BUSY_TICK_NS);
		shim_permits();
	}
	return NULL;
}

static bool start_thread(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 512 << 10);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, &attr, thread_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc)
		shim_log(SHIM_REASON_THREAD,
			 "no thread for the shim (%s): work requests are counted but never held",
			 strerror(rc));
	return rc == 0;
}

/* ---- fork ------------------------------------------------------------------------------------------------------------------------ */

/* The child holds nothing, knows no daemon, and passes through on the devices that it inherited. A device
 * that it opens itself starts everything anew. Nothing here allocates or locks. */
static void after_fork(void)
{
	struct mfs_client *client = atomic_load(&shim.client);

	atomic_store(&shim.client, NULL);
	atomic_store(&shim.enforcing, 0);
	atomic_store(&shim.held_requests, 0);
	atomic_store(&shim.failures, 0);
	atomic_store(&shim.draining, 0);
	shim_wake_after_fork();
	pthread_mutex_init(&shim_attach_lock, NULL);
	started = thread_runs = false;
	mfs_symbols_after_fork();
	shim_rules_after_fork();
	shim_context_after_fork();
	shim_builders_after_fork();
	shim_table_after_fork();
	shim_metadata_after_fork();
	shim_profiler_after_fork();
	shim_sweep_after_fork();
	shim_owner_after_fork();
	if (client)
		mfs_client_forget(client);
}

/* ---- the first device ------------------------------------------------------------------------------------------------------------- */

void shim_start(struct shim_context *context)
{
	pthread_mutex_lock(&shim_attach_lock);
	if (!fork_watched)
		fork_watched = pthread_atfork(NULL, NULL, after_fork) == 0;
	if (shim_marking()) { /* there is no daemon to attach to, and nothing to sweep */
		started = true;
	} else if (!started) {
		started = true;
		thread_runs = fork_watched;
		socket_path_read();
		if (fork_watched)
			shim_owner_start();
		attach();
		thread_runs = fork_watched && start_thread();
		if (!thread_runs)
			atomic_store(&shim.enforcing, 0);
	} else if (atomic_load(&shim.client)) {
		name_nic(atomic_load(&shim.client), context);
	}
	pthread_mutex_unlock(&shim_attach_lock);
}

__attribute__((constructor(101))) static void load(void)
{
	mfs_symbols_load();
	shim_log_load();
	shim_budget_load();
	shim_mode();
}
