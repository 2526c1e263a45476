/* Which clients are polled in each turn: those that sent something lately. A turn costs as much as those do, however many
 * are attached.
 *
 * The others have MFS_ASLEEP in their segments, so that each of their messages rings; the thread polls the bells now and
 * then while it is busy, and is woken by them when it sleeps. It is the same pair as before a sleep (abi.h), for one
 * client: its word is set, and once that is seen by all its rings are polled again. A client that rings has set its word back.
 *
 * While few are attached none is left out: what rings costs a client more than polling its rings costs here. A thread that
 * ended between its message and the bell, or within a message, has rung in vain: with every heartbeat some of those that
 * are left out are read all the same.
 *
 * Of a client that is polled only the rings that gave messages lately are, and one more each time.
 */
#include "state.h"

#include <sys/epoll.h>

#define ACTIVE_FEW 16        /* so many are polled anyhow */
#define SILENT_NS 4000000ull /* a client that sent something within this is polled */
#define FAR 8                /* clients before its turn comes a client's own memory is asked for, and */
#define NEAR 4               /* the slots of its rings */
#define BELLS_NS 10000ull    /* how often a busy thread polls the bells */
#define SLICE 128            /* clients that a heartbeat polls though they have not rung */

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
			asleep_write(session, MFS_AWAKE); /* it saw that it need not ring, or has rung */
		else
			active_remove(arbiter, session);
	}
}

/* Of many clients nothing is in the caches: each would cost several misses, one after the other. */
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

/* Edge-triggered: taking the events is enough, the doorbells are not read. */
void bells_read(struct mfs_arbiter *arbiter)
{
	struct epoll_event events[64];
	int n;

	arbiter->bells_ns = arbiter->now_ns;
	do {
		n = epoll_wait(arbiter->epoll, events, 64, 0);
		for (int i = 0; i < n; i++)
			if (events[i].data.ptr) /* else it is for a command */
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
