/* Which clients are polled in each turn: those that sent something lately. So the cost of a turn depends on
 * them, and not on how many are attached.
 *
 * The other clients have MFS_ASLEEP in their segments, so each of their messages rings. The thread polls the
 * bells now and then while it is busy, and they wake it when it sleeps. Leaving out a client works like going
 * to sleep (the doorbell protocol of abi.h), but for one client: its word is set, and after a fence its rings
 * are read once more. A client that rings sets its word back.
 *
 * While few clients are attached, all are polled: ringing costs a client more than polling its rings costs
 * here. A thread may end within a message, or between its message and the bell, and then nothing rings. So
 * with every heartbeat some of the clients that are left out are read, too.
 *
 * Of a client that is polled, only the rings that gave messages lately are read, and one more each time. */
#include "state.h"

#include <sys/epoll.h>

#define ACTIVE_FEW 16        /* this many clients are polled even if they are silent */
#define SILENT_NS 4000000ull /* a client that sent something within this time is polled */
#define FAR 8                /* a client's own memory is prefetched this many clients in advance */
#define NEAR 4               /* the slots of its rings are prefetched this many clients in advance */
#define BELLS_NS 10000ull    /* how often a busy thread polls the bells */
#define SLICE 128            /* clients that a heartbeat polls even if they have not rung */

static void asleep_write(struct session *session, enum mfs_asleep asleep)
{
	atomic_store_explicit(&session->segment->header.arbiter_asleep, asleep, memory_order_release);
}

bool session_unread(const struct session *session)
{
	if (session->message_next < session->message_end)
		return true;
	for (uint32_t ring = 0; ring < MFS_SUBMIT_RINGS; ring++)
		if (atomic_load_explicit(&session->segment->submit[ring].tail, memory_order_relaxed) !=
		    session->reader.ring[ring].head)
			return true;
	return false;
}

void active_add(struct mfs_arbiter *arbiter, struct session *session)
{
	session->received_ns = arbiter->now_ns;
	if (session->active || session->state != MFS_SEGMENT_ACTIVE)
		return;
	arbiter->active[arbiter->actives++] = session;
	session->active = arbiter->actives;
	session->rings = RINGS_ALL;
	asleep_write(session, arbiter->asleep_written);
}

void active_remove(struct mfs_arbiter *arbiter, struct session *session)
{
	struct session *last;

	if (!session->active)
		return;
	work_forget(arbiter, session);
	last = arbiter->active[--arbiter->actives];
	arbiter->active[session->active - 1] = last;
	last->active = session->active;
	session->active = 0;
}

void asleep_publish(struct mfs_arbiter *arbiter, enum mfs_asleep asleep)
{
	arbiter->asleep_written = asleep;
	for (uint32_t i = 0; i < arbiter->actives; i++)
		asleep_write(arbiter->active[i], asleep);
	atomic_thread_fence(memory_order_seq_cst);
}

static bool leaves(const struct mfs_arbiter *arbiter, const struct session *session)
{
	return arbiter->now_ns - session->received_ns >= SILENT_NS && !session->ending;
}

void actives_review(struct mfs_arbiter *arbiter)
{
	uint32_t few = arbiter->actives > ACTIVE_FEW ? arbiter->actives - ACTIVE_FEW : 0, leaving = 0;

	if (arbiter->asleep_written != MFS_AWAKE || arbiter->now_ns - arbiter->reviewed_ns < SILENT_NS)
		return;
	arbiter->reviewed_ns = arbiter->now_ns;
	for (uint32_t i = arbiter->actives; i-- > 0;) {
		struct session *session = arbiter->active[i];

		session->rings = session->reader.drained;
		session->reader.drained = 0;
		session->leaving = leaving < few && leaves(arbiter, session);
		if (!session->leaving)
			continue;
		leaving++;
		asleep_write(session, MFS_ASLEEP);
	}
	if (!leaving)
		return;
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = arbiter->actives; i-- > 0;) {
		struct session *session = arbiter->active[i];

		if (!session->leaving)
			continue;
		session->leaving = false;
		if (session_unread(session))
			asleep_write(session, MFS_AWAKE); /* the client saw no need to ring, or has rung */
		else
			active_remove(arbiter, session);
	}
}

/* With many clients none is in the caches: each would cost several misses, one after the other. */
void active_prefetch(struct mfs_arbiter *arbiter, uint32_t place)
{
	if (place >= FAR) {
		const struct session *far = arbiter->active[place - FAR];

		__builtin_prefetch(far);
		__builtin_prefetch(&far->ring_next);
	}
	if (place >= NEAR) {
		struct session *near = arbiter->active[place - NEAR];

		for (uint32_t rings = active_rings(near); rings; rings &= rings - 1) {
			uint32_t ring = (uint32_t)__builtin_ctz(rings);

			__builtin_prefetch(&near->segment->submit_slot[ring][near->reader.ring[ring].head %
									     MFS_SUBMIT_SLOTS]);
			__builtin_prefetch(&near->segment->submit[ring].head, 1);
		}
	}
}

/* The doorbells are edge-triggered: taking the events is enough, the eventfds need not be read. */
void bells_read(struct mfs_arbiter *arbiter)
{
	struct epoll_event events[64];
	int n;

	arbiter->bells_ns = arbiter->now_ns;
	do {
		n = epoll_wait(arbiter->epoll, events, 64, 0);
		for (int i = 0; i < n; i++)
			if (events[i].data.ptr) /* NULL: the bell of a command */
				active_add(arbiter, events[i].data.ptr);
	} while (n == 64);
}

void bells_poll(struct mfs_arbiter *arbiter)
{
	if (arbiter->actives < arbiter->sessions && arbiter->now_ns - arbiter->bells_ns >= BELLS_NS)
		bells_read(arbiter);
}

void slice_next(struct mfs_arbiter *arbiter)
{
	arbiter->slice = arbiter->slice_end < arbiter->sessions ? arbiter->slice_end : 0;
	arbiter->slice_end =
		arbiter->slice + SLICE < arbiter->sessions ? arbiter->slice + SLICE : arbiter->sessions;
}
