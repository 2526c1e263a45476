/* The process's session with the daemon: that of the preloaded shim if there is one, otherwise its own. A
 * thread searches for a daemon and notices when it goes; no transfer waits for either. A session is
 * published through one pointer and never unmapped, so a transfer may use it at any time. That costs one
 * segment for each daemon that dies. */
#define _GNU_SOURCE
#include "session.h"

#include "log.h"
#include "nic.h"

#include "../base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEARCH_US 500000 /* time between two attempts */
/* set by the adapter of NIXL's Python agent while it makes engines */
#define ASKED_VARIABLE "MFS_NIXL_ASKED"

static _Atomic(struct nixl_session *) current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all of the following */
static bool thread_runs, fork_watched;
static bool lent; /* the preloaded shim has lent its session once; it finds the next daemon itself */
/* the client of a daemon that has no place for the card, and will have none as long as it runs */
static struct mfs_client *refused;
static bool refused_borrowed;
static char nic[NIXL_NIC_NAME_BYTES];
static uint64_t nic_guid;
/* "": the default path; a path too long for a socket is cut, but stays too long */
static char socket_path[256];

bool nixl_session_wanted(void)
{
	const char *mode = getenv("MFS_MODE");

	if (getenv(ASKED_VARIABLE))
		return false;
	if (!mode || !*mode || !strcmp(mode, "enforce"))
		return true;
	if (strcmp(mode, "off") && strcmp(mode, "mark") && strcmp(mode, "observe"))
		nixl_log(NIXL_REASON_MODE,
			 "MFS_MODE=%s is not one of off, mark, observe, enforce: taken as off", mode);
	return false;
}

/* Returns the preloaded shim's functions. NULL if there is no shim or if it is of another version. In the
 * second case it holds what is posted here by itself, and nothing may wait twice. */
static const struct mfs_api *shim(void)
{
	const struct mfs_api *api = mfs_api();

	return api && mfs_api_lends_client(api) ? api : NULL;
}

void nixl_session_lane(bool on)
{
	const struct mfs_api *api = shim();
	struct mfs_client *client = api ? api->client() : NULL;
	unsigned classes = client ? mfs_client_segment(client)->header.classes : MFS_CLASSES_MAX;

	if (api)
		api->lane_set(on && classes >= 2 && classes <= MFS_CLASSES_MAX ? (int)classes - 2 : -1);
}

bool nixl_session_context(uint64_t address, struct mfs_context *context)
{
	const struct mfs_api *api = shim();

	return api && api->context_of(address, context) == 0;
}

const struct nixl_session *nixl_session_now(uint64_t now_ns)
{
	const struct nixl_session *session = atomic_load_explicit(&current, memory_order_acquire);

	if (!session || !mfs_client_alive(session->client, now_ns) ||
	    atomic_load_explicit(&mfs_client_segment(session->client)->header.mode, memory_order_relaxed) !=
		    MFS_MODE_ENFORCE)
		return NULL;
	return session;
}

/* Announces the network card and publishes the session. */
static void publish(struct mfs_client *client, bool borrowed)
{
	struct nixl_session *session = malloc(sizeof(*session));
	int number;

	number = *nic ? mfs_client_nic(client, nic, nic_guid, 0) : -ENODEV;
	if (!session || number < 0 || number > UINT8_MAX) {
		free(session);
		if (number == -ENOSPC || number == -ENODEV) {
			refused = client;
			refused_borrowed = borrowed;
			nixl_log(NIXL_REASON_NIC, "NIXL's transfers go unscheduled: %s",
				 *nic ? "mfsd knows as many network cards as it can (see its log)"
				      : "no network card is found");
			return;
		}
		if (!borrowed)
			mfs_client_detach(client); /* no other thread has seen it */
		return;
	}
	*session = (struct nixl_session){.client = client, .borrowed = borrowed, .nic = (uint8_t)number};
	atomic_store_explicit(&current, session, memory_order_release);
}

/* Called with the lock held, on the program's thread that makes the first engine, also after a fork: later
 * the environment may be changing while it is read. The card is chosen here, too, since looking up the
 * host's name reads the environment in the C library. */
static void environment_read(void)
{
	const char *path = getenv("MFS_SOCKET");

	snprintf(socket_path, sizeof(socket_path), "%s", path ? path : "");
	nixl_nic_chosen(nic, &nic_guid);
}

/* True while the daemon that refused the card is still running. Asking it again would attach and detach
 * twice a second, and use up the attaches that other programs may make. */
static bool refused_still(const struct mfs_client *shared)
{
	if (!refused)
		return false;
	if (refused_borrowed
		    ? shared == refused
		    : !shared && !mfs_client_hung_up(refused) &&
			      atomic_load(&mfs_client_segment(refused)->header.state) == MFS_SEGMENT_ACTIVE)
		return true;
	if (!refused_borrowed)
		mfs_client_detach(refused); /* no transfer has seen it */
	refused = NULL;
	return false;
}

/* One attempt, with the lock held: checks whether the session is still the right one, and searches for one
 * if there is none. */
static void search(void)
{
	const struct mfs_api *api = shim();
	struct mfs_client *shared = api ? api->client() : NULL, *client;
	struct nixl_session *session = atomic_load(&current);
	const char *why = NULL;
	int rc;

	if (!api && mfs_api()) {
		nixl_log(
			NIXL_REASON_SHIM,
			"NIXL's transfers are scheduled by the preloaded libmfs_shim alone: it is of another version than the plugin");
		return;
	}
	if ((session && shared == session->client) || refused_still(shared))
		return;
	if (session && !shared && !session->borrowed && !mfs_client_hung_up(session->client) &&
	    atomic_load(&mfs_client_segment(session->client)->header.state) == MFS_SEGMENT_ACTIVE)
		return; /* also if the daemon is stopped: it may go on */
	atomic_store(&current, NULL);
	if (shared)
		publish(shared, true);
	lent |= shared != NULL;
	if (lent)
		return;
	rc = mfs_client_attach(&(struct mfs_client_options){.mode = MFS_MODE_ENFORCE,
							    .socket_path = socket_path},
			       &client, &why);
	if (!rc)
		publish(client, false);
	else if (rc != -ENOENT && rc != -ECONNREFUSED && rc != -ETIMEDOUT && rc != -EPERM)
		nixl_log(NIXL_REASON_ATTACH, "NIXL's transfers go unscheduled: %s",
			 why ? why : strerror(-rc));
}

static void *keep(void *unused)
{
	(void)unused;
	pthread_setname_np(pthread_self(), "mfs-nixl");
	for (;;) {
		usleep(SEARCH_US);
		pthread_mutex_lock(&lock);
		search();
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

/* For the child: it knows no daemon until it makes an engine itself. Nothing here allocates or locks. */
static void after_fork(void)
{
	struct nixl_session *session = atomic_exchange(&current, NULL);

	pthread_mutex_init(&lock, NULL);
	thread_runs = lent = false;
	if (session && !session->borrowed)
		mfs_client_forget(session->client);
	if (refused && !refused_borrowed)
		mfs_client_forget(refused);
	refused = NULL;
}

static bool start_thread(void)
{
	sigset_t all, old;
	pthread_t thread;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&thread, NULL, keep, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc) {
		nixl_log(NIXL_REASON_THREAD, "no thread for NIXL's plugin (%s): its transfers go unscheduled",
			 strerror(rc));
		return false;
	}
	pthread_detach(thread);
	return true;
}

void nixl_session_start(void)
{
	pthread_mutex_lock(&lock);
	if (!fork_watched)
		fork_watched = pthread_atfork(NULL, NULL, after_fork) == 0;
	if (fork_watched && !thread_runs) {
		environment_read();
		thread_runs = start_thread();
	}
	if (thread_runs)
		search();
	pthread_mutex_unlock(&lock);
}
