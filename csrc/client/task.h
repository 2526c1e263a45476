/* Owed messages: those that found the ring full. */
#ifndef MFS_CLIENT_TASK_H
#define MFS_CLIENT_TASK_H

#include "state.h"

void client_owed_flush(struct mfs_client *client);

static inline void client_owed_check(struct mfs_client *client)
{
	if (__builtin_expect(atomic_load_explicit(&client->owed, memory_order_relaxed) != 0, 0))
		client_owed_flush(client);
}

#endif
