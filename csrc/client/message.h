/* Messages to the arbiter. */
#ifndef MFS_CLIENT_MESSAGE_H
#define MFS_CLIENT_MESSAGE_H

#include "state.h"

/* The ring of this thread. Static TLS: no allocation on first use. */
struct client_own {
	uint64_t serial; /* serial of the client whose ring it is */
	uint32_t ring;
};
extern __thread volatile struct client_own client_own __attribute__((tls_model("initial-exec")));

uint32_t client_ring_acquire(struct mfs_client *client);
static inline uint32_t client_ring_own(struct mfs_client *client)
{
	return __builtin_expect(client_own.serial == client->serial, 1) ? client_own.ring
									: client_ring_acquire(client);
}

/* Wakes the arbiter if it sleeps; if it is at rest, only for an `urgent` message. Call it after storing
 * what the arbiter should see. */
void client_doorbell_ring(struct mfs_client *client, bool urgent);
/* Sends one message. Returns false when the rings are full. A message that is not `urgent` may wait until
 * the arbiter wakes by itself. */
bool client_message_send(struct mfs_client *client, const struct mfs_message *message, bool urgent);
/* Tell the arbiter that the slot has changed. Return false when the rings are full. */
bool client_batch_send(struct mfs_client *client, uint32_t batch);
bool client_request_send(struct mfs_client *client, uint32_t request);

#endif
