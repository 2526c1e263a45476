/* Events of the arbiter for a recorder: a bounded ring between the arbiter's thread and one reader.
 *
 * The arbiter writes only while a ring is attached and never waits for the reader: an event that finds the ring
 * full is lost and counted. The layout of an event is read outside of this process (mfsd/node/events.py): fields
 * are only added in reserved bytes, and MFS_EVENT_LAYOUT grows with each change of meaning. */
#ifndef MFS_TRACE_H
#define MFS_TRACE_H

#include <mfs/arbiter.h>

#define MFS_EVENT_LAYOUT 2
#define MFS_EVENT_SLOTS_MAX (1u << 20)

enum mfs_event_kind {
	/* a task asks for a permit; `time_ns` is the client's time if it is plausible */
	MFS_EVENT_SUBMIT = 1,
	MFS_EVENT_PERMIT = 2, /* wire_class, level and tier are those of the permit */
	/* the request of this waiting task moved to `level`, or is critical (tier 0) */
	MFS_EVENT_PROMOTE = 3,
	MFS_EVENT_COMPLETE = 4,
	MFS_EVENT_CANCEL = 5,      /* the task was not sent */
	MFS_EVENT_BYPASS = 6,      /* the task went out without a permit (failed open) */
	MFS_EVENT_DROP = 7,        /* the program ended or was detached, or it reused the task's slot */
	MFS_EVENT_BATCH_BEGIN = 8, /* layer: the current one; value: layers */
	MFS_EVENT_BATCH_LAYER = 9, /* the batch has begun this layer, as the arbiter sees it */
	MFS_EVENT_BATCH_END = 10,
	/* deadline_ns; value: the budget in microseconds, at most 2^32 - 1 */
	MFS_EVENT_REQUEST_ANNOUNCED = 11,
	MFS_EVENT_REQUEST_BATCH = 12,  /* the request now belongs to this batch */
	MFS_EVENT_REQUEST_PRUNED = 13, /* value: 1 pruned, 0 no longer */
	MFS_EVENT_REQUEST_ENDED = 14,
	/* value: enum mfs_open_reason; about a client or, if the queue was full, about a task */
	MFS_EVENT_FAIL_OPEN = 15,
};

/* Reasons for which the arbiter lets flows go out of order. What a program lets go by itself is in its own report. */
enum mfs_open_reason {
	MFS_OPEN_QUEUE_FULL = 0, /* tasks: permitted at once because the queue had no room */
	MFS_OPEN_GIVEN_UP = 1,   /* clients: detached because their segment was corrupt */
	/* clients: finished nothing for so long that their bytes no longer count in the window */
	MFS_OPEN_WRITTEN_OFF = 2,
	MFS_OPEN_BYPASS = 3, /* tasks: sent by their program without a permit */
};
#define MFS_OPEN_REASONS 4

struct mfs_event {
	uint64_t time_ns; /* CLOCK_MONOTONIC of this host */
	/* slot and generation, unique together with the client; 0 if the event is not about a task */
	uint64_t task;
	uint64_t bytes;
	uint64_t request_id;  /* 0: none */
	uint64_t batch_id;    /* 0: none */
	uint64_t deadline_ns; /* 0: none */
	uint32_t client_id;
	uint32_t value;
	uint16_t layer;
	uint8_t kind; /* enum mfs_event_kind */
	uint8_t stage;
	/* direction of the task: index of its NIC times MFS_DIRECTIONS, plus enum mfs_direction */
	uint8_t direction;
	uint8_t wire_class;
	uint8_t level; /* of last-stage flows, 1 is the most urgent; 0: none */
	uint8_t tier;  /* enum mfs_tier */
};
_Static_assert(sizeof(struct mfs_event) == 64, "an event is a cache line");

/* Attaches a ring of `slots` events, a power of two of at most MFS_EVENT_SLOTS_MAX. -EBUSY: a ring is
 * attached already; -EINVAL; -ENOMEM. */
int mfs_arbiter_trace_attach(struct mfs_arbiter *arbiter, uint32_t slots);
int mfs_arbiter_trace_detach(struct mfs_arbiter *arbiter); /* -ENOENT: none is attached */
/* Takes up to n events out, oldest first, and returns how many. *lost is the number of events since the
 * attachment that found the ring full. Does not involve the arbiter's thread. There may be one reader at a
 * time, and only that reader may detach. -ENOENT: no ring is attached. */
int mfs_arbiter_trace_read(struct mfs_arbiter *arbiter, struct mfs_event *events, int n, uint64_t *lost);

/* Copies how often the arbiter has failed open since it started, by reason. */
int mfs_arbiter_opened(struct mfs_arbiter *arbiter, uint64_t counts[MFS_OPEN_REASONS]);

#endif
