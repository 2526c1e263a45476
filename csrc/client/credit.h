/* Tasks that go without asking for a permit. */
#ifndef MFS_CLIENT_CREDIT_H
#define MFS_CLIENT_CREDIT_H

#include "state.h"

/* Returns the class in which the task may go without a permit, or -EAGAIN. After success the caller owes a
 * credit_give. */
int credit_take(struct mfs_client *client, const struct mfs_task *task);

static inline void credit_give(struct mfs_client *client, uint32_t direction, uint64_t bytes)
{
	atomic_fetch_sub_explicit(&client->taken_bytes[direction], bytes, memory_order_relaxed);
}

#endif
