/* Attached or not: the daemon's coming and going, the shim's own thread, fork.
 *
 * The thread starts with the first device, never in a constructor. While something is held it looks every few
 * milliseconds whether the daemon lives and whether anything was held too long; otherwise it looks four times a second.
 */
#define _GNU_SOURCE
#include "mark.h"
#include "owner.h"
#include "symbols.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BUSY_TICK_NS 4000000
#define POLLED_TICK_NS 1000000 /* the caller's own polling takes the permits: no need to be woken for each */
#define IDLE_TICK_NS 250000000
#define RETRY_FIRST_NS 100000000
#define RETRY_LAST_NS 2000000000

struct shim shim;

static pthread_mutex_t attach_lock = PTHREAD_MUTEX_INITIALIZER;
static char socket_path[256] = "/run/mfs/mfsd.sock"; /* one that is too long for a socket stays too long */
static bool started, thread_runs, fork_watched;
static _Atomic uint32_t shared;	  /* an engine knows the session */
static bool unclassified; /* some queue pair was busy when the rules changed */
static _Atomic uint32_t sleeping; /* the thread sleeps until woken; futex */

enum mfs_mode shim_mode(void)
{
	uint32_t mode = atomic_load_explicit(&shim.mode, memory_order_relaxed);
	const char *text;

	if (likely(mode))
		return mode - 1;
	text = getenv("MFS_MODE");
	mode = MFS_MODE_ENFORCE;
	if (getauxval(AT_SECURE)) {
		mode = MFS_MODE_OFF;
		shim_log(SHIM_REASON_SECURE, "setuid or privileged program: not scheduled");
	} else if (text && !strcmp(text, "off")) {
		mode = MFS_MODE_OFF;
	} else if (text && !strcmp(text, "observe")) {
		mode = MFS_MODE_OBSERVE;
	} else if (text && !strcmp(text, "mark")) {
		mode = shim_mark_load() ? MFS_MODE_OBSERVE : MFS_MODE_OFF;
	} else if (text && *text && strcmp(text, "enforce")) {
		mode = MFS_MODE_OFF;
		shim_log(SHIM_REASON_MODE, "MFS_MODE=%s is not one of off, mark, observe, enforce: taken as off", text);
	}
	atomic_store(&shim.mode, mode + 1);
	return mode;
}

/* ---- the thread's sleep ---------------------------------------------------------------------------------------------------- */

static void sleep_ns(uint64_t ns)
{
	struct timespec timeout = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};

	syscall(SYS_futex, &sleeping, FUTEX_WAIT_PRIVATE, 1, &timeout, NULL, 0);
}

/* After something was held: sees to it that the thread is awake. No system call if it is. */
void shim_wake(void)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (atomic_load_explicit(&sleeping, memory_order_relaxed) && atomic_exchange(&sleeping, 0)) {
		int saved = errno;

		syscall(SYS_futex, &sleeping, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		errno = saved;
	}
}

static void sleep_until_woken(uint64_t ns)
{
	atomic_store(&sleeping, 1);
	if (!atomic_load(&shim.attention))
		sleep_ns(ns);
	atomic_store(&sleeping, 0);
}

/* ---- attach and detach (attach_lock held) ------------------------------------------------------------------------------------ */

static void flush_all(void)
{
	unsigned cursor = 0;
	struct shim_qp *q;

	while ((q = shim_qp_each(&cursor)))
		shim_flush(q);
}

/* A daemon whose heart has stopped while its socket is open is hung, or only short of CPU: what is held goes out and the
 * rest passes through until it beats again; the session stays. */
static void update_mode(struct mfs_client *client)
{
	struct mfs_segment *segment = mfs_client_segment(client);
	bool alive = mfs_client_alive(client, shim_now_ns());
	uint32_t enforcing = alive && thread_runs && shim_mode() == MFS_MODE_ENFORCE &&
			     atomic_load(&segment->header.mode) == MFS_MODE_ENFORCE;

	if (atomic_exchange(&shim.enforcing, enforcing) && !enforcing)
		flush_all();
	if (!alive && atomic_load(&segment->header.state) == MFS_SEGMENT_ACTIVE) /* else it gave us up just now */
		shim_log(SHIM_REASON_HUNG, "the daemon does not answer: work requests pass through until it does");
}

static void name_nic(struct mfs_client *client, struct shim_context *context)
{
	int nic = mfs_client_nic(client, context->name, context->guid, context->rate_bytes_per_s);

	context->unanswered = nic == -ETIMEDOUT;
	if (context->unanswered)
		shim_log(SHIM_REASON_NIC_LATE, "the daemon is late with device %s: its traffic is not scheduled until it answers",
			 context->name);
	else if (nic < 0 || nic >= MFS_NICS_MAX)
		shim_log(SHIM_REASON_NIC, "the daemon does not take device %s (%s): its traffic is not scheduled",
			 context->name, strerror(nic < 0 ? -nic : EINVAL));
	atomic_store(&context->nic, nic < MFS_NICS_MAX && nic >= 0 ? nic : -1);
}

/* Waits for an answer as attaching does, so seldom, and only where nothing is held. */
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

/* On the thread of the program that opens its first device: later the environment may be changing while we look. */
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
		shim_log(SHIM_REASON_VERSION, "the daemon speaks ABI %d.%u, older than this %d.%d: used as far as it goes",
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
	flush_all();
	atomic_store(&shim.client, NULL);
	for (int tries = 0; tries < 10 && !free; tries++)
		free = bind_all(NULL);
	free = free && shim_permits_settle();
	if (free) {
		if (atomic_load(&shared)) /* an engine may be inside: what it asks is answered -ENOTCONN from now on */
			atomic_store(&mfs_client_segment(client)->header.state, MFS_SEGMENT_DETACHED);
		else
			mfs_client_detach(client); /* otherwise a thread died inside, and the memory stays */
	}
	shim_log(SHIM_REASON_LOST, "the daemon is gone: work requests pass through until it is back");
}

/* Hands the session to an engine: no session of this process is unmapped from now on, at the price of one segment for each
 * daemon that dies. `shared` is set before the client is read, and lose() reads it after it has cleared the client. */
struct mfs_client *shim_client_share(void)
{
	atomic_store(&shared, 1);
	return atomic_load(&shim.client);
}

/* The batch of this process and its layer, when there is exactly one. Only an engine that knows the session has any. */
void shim_batch_now(uint32_t *batch, uint16_t *layer)
{
	struct mfs_client *client = atomic_load_explicit(&shared, memory_order_relaxed) ? atomic_load(&shim.client) : NULL;
	struct mfs_segment *segment;
	uint32_t found = MFS_NONE_U32;

	if (!client)
		return;
	segment = mfs_client_segment(client);
	for (uint32_t i = 0; i < MFS_BATCHES_MAX; i++) {
		if (!atomic_load_explicit(&segment->batch[i].batch_id, memory_order_relaxed))
			continue;
		if (found != MFS_NONE_U32)
			return;
		found = i;
	}
	if (found == MFS_NONE_U32)
		return;
	*batch = found;
	*layer = (uint16_t)atomic_load_explicit(&segment->batch[found].layer_current, memory_order_relaxed);
}

void shim_bind_current(struct shim_qp *q)
{
	pthread_mutex_lock(&attach_lock);
	shim_qp_bind(q, atomic_load(&shim.client));
	pthread_mutex_unlock(&attach_lock);
}

/* ---- the thread --------------------------------------------------------------------------------------------------------------- */

static void tick(struct mfs_client *client, bool busy)
{
	struct mfs_segment *segment = mfs_client_segment(client);
	uint64_t now_ns = shim_now_ns();

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
	uint64_t retry_ns = RETRY_FIRST_NS, busy_until_ns = 0, retry_at_ns = shim_now_ns() + retry_ns;
	uint32_t polls = 0;

	(void)unused;
	pthread_setname_np(pthread_self(), "mfs-shim");
	for (;;) {
		uint64_t now_ns = shim_now_ns();
		struct mfs_client *client;
		bool busy, polled;

		if (atomic_load(&shim.attention))
			busy_until_ns = now_ns + 20000000; /* no waking up again for every work request */
		busy = now_ns < busy_until_ns;

		pthread_mutex_lock(&attach_lock);
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
		pthread_mutex_unlock(&attach_lock);

		shim_permits();
		polled = polls != atomic_load(&shim.polls);
		polls = atomic_load(&shim.polls);
		if (!client && busy)
			usleep(BUSY_TICK_NS / 1000);
		else if (!client)
			sleep_until_woken(retry_ns < IDLE_TICK_NS ? retry_ns : IDLE_TICK_NS);
		else if (!busy)
			sleep_until_woken(IDLE_TICK_NS);
		else if (polled)
			usleep(POLLED_TICK_NS / 1000);
		else
			mfs_client_wait(client, BUSY_TICK_NS); /* only this thread detaches: it stays mapped */
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
		shim_log(SHIM_REASON_THREAD, "no thread for the shim (%s): work requests are counted but never held",
			 strerror(rc));
	return rc == 0;
}

/* ---- fork ------------------------------------------------------------------------------------------------------------------------ */

/* The child holds nothing, knows no daemon, and passes through on what it inherited. A device that it opens itself starts
 * everything anew. Nothing here allocates or locks. */
static void after_fork(void)
{
	struct mfs_client *client = atomic_load(&shim.client);

	atomic_store(&shim.client, NULL);
	atomic_store(&shim.enforcing, 0);
	atomic_store(&shim.attention, 0);
	atomic_store(&shim.failures, 0);
	atomic_store(&shim.draining, 0);
	atomic_store(&sleeping, 0);
	pthread_mutex_init(&attach_lock, NULL);
	started = thread_runs = false;
	mfs_symbols_after_fork();
	shim_rules_after_fork();
	shim_context_after_fork();
	shim_table_after_fork();
	shim_metadata_after_fork();
	shim_profiler_after_fork();
	shim_listed_after_fork();
	shim_owner_after_fork();
	if (client)
		mfs_client_forget(client);
}

/* ---- the first device ------------------------------------------------------------------------------------------------------------- */

void shim_start(struct shim_context *context)
{
	pthread_mutex_lock(&attach_lock);
	if (!fork_watched)
		fork_watched = pthread_atfork(NULL, NULL, after_fork) == 0;
	if (shim_marking()) { /* there is nobody to attach to, and nothing to look after */
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
	pthread_mutex_unlock(&attach_lock);
}

__attribute__((constructor(101))) static void load(void)
{
	mfs_symbols_load();
	shim_log_load();
	shim_budget_limit();
	shim_mode();
}
