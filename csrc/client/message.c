/* Messages to the arbiter, through the thread's own ring or the shared one. */
#define _GNU_SOURCE
#include "message.h"

#include "../base/clock.h"

#include <errno.h>
#include <mfs/ring.h>
#include <sys/syscall.h>
#include <unistd.h>

__thread volatile struct client_own client_own __attribute__((tls_model("initial-exec")));

struct mfs_segment *mfs_client_segment(struct mfs_client *client)
{
	return client->segment;
}

uint32_t mfs_client_minor(const struct mfs_client *client)
{
	return client->minor;
}

bool mfs_client_alive(const struct mfs_client *client, uint64_t now_ns)
{
	const struct mfs_segment_header *header = &client->segment->header;
	uint64_t heartbeat_ns = atomic_load_explicit(&header->heartbeat_ns, memory_order_relaxed);

	return atomic_load_explicit(&header->state, memory_order_relaxed) == MFS_SEGMENT_ACTIVE &&
	       (int64_t)(now_ns - heartbeat_ns) < (int64_t)client->stale_after_ns;
}

/* A dormant arbiter has written a heartbeat that lies in the future. A caller that needs the arbiter to
 * act must not take that for a sign of life. It sets the heartbeat to the present time, so the heartbeat
 * ages from this call on until the arbiter writes the next one. */
static void heartbeat_doubt(struct mfs_segment_header *header)
{
	uint64_t now_ns = mfs_clock_ns();
	uint64_t ahead_ns = atomic_load_explicit(&header->heartbeat_ns, memory_order_relaxed);

	/* fails if the arbiter has just written another one: it is alive */
	if ((int64_t)(ahead_ns - now_ns) > 0)
		atomic_compare_exchange_strong_explicit(&header->heartbeat_ns, &ahead_ns, now_ns,
							memory_order_relaxed, memory_order_relaxed);
}

/* The fence pairs with the arbiter's fence (Dekker, see abi.h). */
void client_doorbell_ring(struct mfs_client *client, bool urgent)
{
	_Atomic uint32_t *asleep = &client->segment->header.arbiter_asleep;

	atomic_thread_fence(memory_order_seq_cst);

	/* acquire: sees the heartbeat that was written before it */
	uint32_t how = atomic_load_explicit(asleep, memory_order_acquire);

	if (__builtin_expect(how == MFS_AWAKE, 1) || (how == MFS_AT_REST && !urgent))
		return;
	heartbeat_doubt(&client->segment->header);
	if (atomic_exchange_explicit(asleep, MFS_AWAKE, memory_order_relaxed)) {
		uint64_t one = 1;
		int saved = errno;

		syscall(SYS_write, client->doorbell, &one, sizeof(one));
		errno = saved;
	}
}

/* Finds a ring for this thread alone: the one it had, a free one, or that of a thread that has ended.
 * Otherwise returns MFS_SUBMIT_SHARED. */
uint32_t client_ring_acquire(struct mfs_client *client)
{
	uint32_t tid = (uint32_t)syscall(SYS_gettid);
	uint32_t found = MFS_SUBMIT_SHARED;
	int saved = errno;

	for (uint32_t ring = 0; ring < MFS_SUBMIT_SHARED && found == MFS_SUBMIT_SHARED; ring++)
		if (atomic_load_explicit(&client->ring[ring].owner, memory_order_relaxed) == tid)
			found = ring;
	for (uint32_t ring = 0; ring < MFS_SUBMIT_SHARED && found == MFS_SUBMIT_SHARED; ring++) {
		uint32_t owner = atomic_load_explicit(&client->ring[ring].owner, memory_order_relaxed);

		if ((owner == 0 || (syscall(SYS_tgkill, getpid(), owner, 0) < 0 && errno == ESRCH)) &&
		    atomic_compare_exchange_strong_explicit(&client->ring[ring].owner, &owner, tid,
							    memory_order_acquire, memory_order_relaxed))
			found = ring;
	}
	errno = saved;
	if (found != MFS_SUBMIT_SHARED)
		mfs_mpsc_adopt(&client->segment->submit[found], client->segment->submit_slot[found],
			       MFS_SUBMIT_SLOTS);
	client_own.ring = found;
	client_own.serial = client->serial;
	return found;
}

bool client_message_send(struct mfs_client *client, const struct mfs_message *message, bool urgent)
{
	struct mfs_segment *segment = client->segment;
	uint32_t ring = client_ring_own(client);
	unsigned sent = 0;

	if (ring != MFS_SUBMIT_SHARED && !client->ring[ring].sending) {
		client->ring[ring].sending = 1;
		atomic_signal_fence(memory_order_seq_cst);
		sent = mfs_mpsc_push_owned(&segment->submit[ring], segment->submit_slot[ring],
					   MFS_SUBMIT_SLOTS, message, 1);
		atomic_signal_fence(memory_order_seq_cst);
		client->ring[ring].sending = 0;
	}
	if (!sent) {
		ring = MFS_SUBMIT_SHARED;
		sent = mfs_mpsc_push(&segment->submit[ring], segment->submit_slot[ring], MFS_SUBMIT_SLOTS,
				     message, 1);
	}
	if (!sent)
		return false;
	client_doorbell_ring(client, urgent || mfs_mpsc_crowded(&segment->submit[ring], MFS_SUBMIT_SLOTS));
	return true;
}

bool client_batch_send(struct mfs_client *client, uint32_t batch)
{
	struct mfs_message message = {.batch = batch, .kind = MFS_MESSAGE_BATCH};

	return client_message_send(client, &message, true);
}

bool client_request_send(struct mfs_client *client, uint32_t request)
{
	struct mfs_message message = {.task = request, .batch = MFS_NONE_U32, .kind = MFS_MESSAGE_REQUEST};

	if (client->minor < MINOR_REQUESTS) /* the daemon has no such table: nothing to send */
		return true;
	return client_message_send(client, &message, true);
}
