/* NIXL's backend plugin MFS: a real plugin's engine that asks for a permit before each of its transfers.
 *
 * Layers, from above to below; a file calls and includes only what is below it:
 *
 *   plugin.c     what NIXL loads: the real plugin's table, with engines that are wrapped
 *   engine.c     an engine's virtual functions, some of them replaced
 *   transfer.c   a request: asks for its permit, is held, is posted, gives the permit back
 *   permit.c     one permit: asked for, waited for without waiting, given back
 *   session.c    the process's session with the daemon, and the thread that keeps it
 *   nic.c        which network card UCX takes
 *   name.c       the number by which the daemon knows where an agent is
 *   real.c       where NIXL's own plugins are
 *   slots.c      whether the virtual functions are those that abi.h knows
 *   log.c        one line for each reason
 *   abi.h        what NIXL's interface asks of a plugin
 *
 * Nothing here throws, exits, or waits for another program on the way of a
 * transfer; whatever goes wrong, the real engine's call is made.
 */
#ifndef MFS_NIXL_NIXL_H
#define MFS_NIXL_NIXL_H

#include "abi.h"

#include <mfs/client.h>
#include <pthread.h>

/* The name under which NIXL knows the plugin, and the real one that it stands for where MFS_NIXL_BACKEND names none. */
#define NIXL_OWN_NAME "MFS"
#define NIXL_REAL_NAME "UCX"

/* A session with one daemon; it stays, also when the daemon has gone. */
struct nixl_session {
	struct mfs_client *client;
	bool borrowed; /* the preloaded shim's, which counts what it posts itself */
	uint8_t nic;
};

/* A permit of one transfer, or none. */
struct nixl_permit {
	const struct nixl_session *session; /* NULL: it is unscheduled */
	uint64_t task;                      /* 0: it goes without */
	uint64_t bytes;
	uint64_t hold_until_ns;
	uint8_t stage;
};

/* An engine of the real plugin, which NIXL believes to be this one's. Its virtual table is a copy, with some of the
 * functions replaced; it lies in here, so that the engine leads to the rest. */
struct nixl_engine {
	void **real; /* the engine's own table */
	char *agent;
	size_t agent_bytes;
	pthread_mutex_t lock; /* of the list */
	struct nixl_transfer *held;
	void *table[]; /* NIXL_TABLE_HEAD words, then the functions */
};

#endif
