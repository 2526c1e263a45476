/* NIXL's backend plugin MFS: a real plugin's engine that asks for a permit before each of its transfers.
 *
 * Layers, from top to bottom; a file calls and includes only what is below it:
 *
 *   plugin.c     what NIXL loads: the real plugin's table, with engines that are wrapped
 *   engine.c     an engine's virtual functions, some of them replaced
 *   transfer.c   a request: asks for its permit, is held, is posted, gives the permit back
 *   permit.c     one permit: submitted, polled, given back
 *   session.c    the process's session with the daemon, and the thread that keeps it
 *   nic.c        which network card UCX takes
 *   name.c       the number by which the daemon knows an agent
 *   real.c       where NIXL's own plugins are
 *   slots.c      whether the virtual functions are those that abi.h declares
 *   log.c        one line for each reason
 *   abi.h        what NIXL's interface asks of a plugin
 *
 * On the path of a transfer nothing here throws, exits, or waits for another program. Whatever goes wrong,
 * the real engine's call is made. */
#ifndef MFS_NIXL_NIXL_H
#define MFS_NIXL_NIXL_H

#include "abi.h"

#include <mfs/client.h>
#include <pthread.h>

/* The name by which NIXL knows the plugin, and the name of the real plugin behind it unless
 * MFS_NIXL_BACKEND names another. */
#define NIXL_OWN_NAME "MFS"
#define NIXL_REAL_NAME "UCX"

/* A session with one daemon. It stays in memory when the daemon has gone. */
struct nixl_session {
	struct mfs_client *client;
	bool borrowed; /* it is the preloaded shim's session; the shim counts what it posts itself */
	uint8_t nic;
};

/* The permit of one transfer, or none. */
struct nixl_permit {
	const struct nixl_session *session; /* NULL: the transfer is unscheduled */
	uint64_t task;                      /* 0: the transfer goes without a permit */
	uint64_t bytes;
	uint64_t hold_until_ns;
	uint8_t stage;
};

/* What belongs to an engine of the real plugin, which NIXL takes for an engine of this plugin. The
 * engine's virtual table is a copy with some functions replaced. It is stored in here, so that the engine
 * leads to the rest of this structure. */
struct nixl_engine {
	void **real; /* the engine's own table */
	char *agent;
	size_t agent_bytes;
	pthread_mutex_t lock; /* protects the list */
	struct nixl_transfer *held;
	void *table[]; /* NIXL_TABLE_HEAD words, then the functions */
};

#endif
