/* Events of the arbiter for a recorder: a bounded ring between the arbiter's thread and one reader.
 *
 * The arbiter writes only while a ring is attached, and never waits for its reader: what finds the ring full is lost and
 * counted. The layout of an event is read outside of this process (mfsd/node/events.py): fields are only added in
 * reserved bytes, and MFS_EVENT_LAYOUT grows with each change of meaning.
 */
#ifndef MFS_TRACE_H
#define MFS_TRACE_H

#include <mfs/arbiter.h>

#define MFS_EVENT_LAYOUT 2
#define MFS_EVENT_SLOTS_MAX (1u << 20)

enum mfs_event_kind {
	MFS_EVENT_SUBMIT =
		1, /* a task asks for a permit; `time_ns` is the client's, where that is credible */
	MFS_EVENT_PERMIT = 2,  /* wire_class, level and tier are those of the permit */
	MFS_EVENT_PROMOTE = 3, /* the request of this waiting task moved to `level`, or is critical: tier 0 */
	MFS_EVENT_COMPLETE = 4,
	MFS_EVENT_CANCEL = 5,      /* it was not sent */
	MFS_EVENT_BYPASS = 6,      /* it went out without a permit: failed open */
	MFS_EVENT_DROP = 7,        /* its program ended, was given up, or has used its slot anew */
	MFS_EVENT_BATCH_BEGIN = 8, /* layer: the current one; value: layers */
	MFS_EVENT_BATCH_LAYER = 9, /* the batch has begun this layer, as the arbiter sees it */
	MFS_EVENT_BATCH_END = 10,
	MFS_EVENT_REQUEST_ANNOUNCED =
		11,                    /* deadline_ns; value: the budget in microseconds, at most 2^32 - 1 */
	MFS_EVENT_REQUEST_BATCH = 12,  /* it belongs to this batch */
	MFS_EVENT_REQUEST_PRUNED = 13, /* value: 1 pruned, 0 no longer */
	MFS_EVENT_REQUEST_ENDED = 14,
	MFS_EVENT_FAIL_OPEN =
		15, /* value: enum mfs_open_reason; of a client or, for a full queue, of a task */
};

/* Ways in which the arbiter lets flows go that it cannot keep in order. Those of a program itself are in its report. */
enum mfs_open_reason {
	MFS_OPEN_QUEUE_FULL = 0, /* tasks: permitted at once, since the queue had no room */
	MFS_OPEN_GIVEN_UP = 1,   /* clients: detached because their segment made no sense */
	MFS_OPEN_WRITTEN_OFF =
		2, /* clients: finished nothing for so long that their bytes no longer fill the window */
	MFS_OPEN_BYPASS = 3, /* tasks: sent by their program without a permit */
};
#define MFS_OPEN_REASONS 4

struct mfs_event {
	uint64_t time_ns; /* CLOCK_MONOTONIC of this host */
	uint64_t
		task; /* slot and generation, with the client: one task; 0 where it is about something else */
	uint64_t bytes;
	uint64_t request_id;  /* 0: none */
	uint64_t batch_id;    /* 0: none */
	uint64_t deadline_ns; /* 0: none */
	uint32_t client_id;
	uint32_t value;
	uint16_t layer;
	uint8_t kind; /* enum mfs_event_kind */
	uint8_t stage;
	uint8_t direction; /* of the task: number of its NIC times MFS_DIRECTIONS, plus enum mfs_direction */
	uint8_t wire_class;
	uint8_t level; /* of last-stage flows, 1 the most urgent; 0: none */
	uint8_t tier;  /* enum mfs_tier */
};
_Static_assert(sizeof(struct mfs_event) == 64, "an event is a cache line");

/* Attaches a ring of `slots` events, a power of two of at most MFS_EVENT_SLOTS_MAX. -EBUSY: one is attached; -EINVAL;
 * -ENOMEM. */
int mfs_arbiter_trace_attach(struct mfs_arbiter *arbiter, uint32_t slots);
int mfs_arbiter_trace_detach(struct mfs_arbiter *arbiter); /* -ENOENT: none is attached */
/* Takes up to n events out, oldest first, and answers how many; *lost: those since the attachment that found no room.
 * Does not involve the arbiter's thread. One reader at a time, which is also the one that detaches. -ENOENT. */
int mfs_arbiter_trace_read(struct mfs_arbiter *arbiter, struct mfs_event *events, int n, uint64_t *lost);

/* How often the arbiter has failed open, by reason, since it started. */
int mfs_arbiter_opened(struct mfs_arbiter *arbiter, uint64_t counts[MFS_OPEN_REASONS]);

#endif
