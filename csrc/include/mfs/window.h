/* How much may be under way in one direction of a NIC: in all, and to each destination (a far port).
 *
 * Two limits, because bytes wait in two places.
 *
 *  - The NIC's own: what it still has to send. Bytes that enter are taken to leave at the rate that the link has for them
 *    (mfs_window_set_drain), and what is complete has left. So what waits beyond the NIC, in a congested path or at a
 *    receiver that is slow or dead, stops counting as soon as the NIC has had the time to send it; and of what goes to a
 *    destination that is known to be slow only the share counts that it can take, since others go by meanwhile.
 *  - The destination's: bytes that entered and are not complete. It holds up flows to that destination only. It starts at
 *    the NIC's own window, and is found by trial: the smallest that keeps the rate at which the destination completes.
 *    Programs share it; but one that has nothing under way there may always send one task, so that none can keep a
 *    destination from others by completing late.
 *
 * The arbiter runs it on the monotonic clock, the simulator on a virtual one: it has no clock, thread, lock or I/O of
 * its own. All memory is taken at creation; what is never used is never touched. Every call is O(1),
 * but that a new destination may have an old one forgotten, which walks the programs that share it. One owner.
 */
#ifndef MFS_WINDOW_H
#define MFS_WINDOW_H

#include <mfs/abi.h>
#include <mfs/rmlq.h>
#include <stdbool.h>

#define MFS_WINDOW_PATIENCE_NS 50000000ull /* no task is overdue sooner */
#define MFS_DESTINATION_SHARED 0           /* of all that found no place in the table */
#define MFS_DESTINATION_NONE UINT16_MAX

struct mfs_window;

struct mfs_window_config {
	uint64_t rate_bytes_per_s;
	uint64_t window_ns; /* the NIC's window as time at its rate: what a collective may find ahead of it */
	uint64_t window_bytes_min; /* but at least this much */
};

/* One task between enter and complete or leave. */
struct mfs_passage {
	uint64_t entered_ns;
	uint64_t due_ns; /* a task that is not complete by then cannot be waited for */
	uint64_t bytes;  /* that count: a task has the NIC for 2 ms at most, however large it says it is */
	uint16_t destination;
};

enum mfs_room {
	MFS_ROOM = 0,
	MFS_ROOM_NIC_FULL = 1,         /* ask again at the time answered, or after a completion */
	MFS_ROOM_DESTINATION_FULL = 2, /* ask again after a completion there */
};

/* -EINVAL: a rate or window of 0; -ENOMEM. */
int mfs_window_create(const struct mfs_window_config *config, struct mfs_window **window);
void mfs_window_destroy(struct mfs_window *window); /* NULL is allowed */

/* Another rate: the windows of destinations are found anew. -EINVAL: 0. */
int mfs_window_set_rate(struct mfs_window *window, uint64_t rate_bytes_per_s, uint64_t now_ns);
/* What the link has left for these bytes, in bytes a second; at least a twentieth of the rate is assumed. */
void mfs_window_set_drain(struct mfs_window *window, double bytes_per_s, uint64_t now_ns);

/* The number of what one program sends to one destination, found by `key` or made; the caller gives it back as often as it
 * asked. Keys are not 0. All with one `destination_key` share a window. MFS_DESTINATION_SHARED when the table is full of
 * those in use. */
uint16_t mfs_window_destination(struct mfs_window *window, uint64_t key, uint64_t destination_key,
				uint64_t now_ns);
/* True: it is not used any more. */
bool mfs_window_destination_give(struct mfs_window *window, uint16_t destination);
uint32_t mfs_window_destination_users(const struct mfs_window *window, uint16_t destination);

/* Whether a task of a flow of this tier may enter. Something may always enter an empty window, however large. What is
 * larger than the window may enter a full one, unless something of a better tier waits. `at_ns` is written with
 * MFS_ROOM_NIC_FULL. After MFS_ROOM_DESTINATION_FULL the number is on its destination's list of those that wait. */
enum mfs_room mfs_window_room(struct mfs_window *window, uint16_t destination, uint64_t bytes,
			      enum mfs_tier tier, uint64_t now_ns, uint64_t *at_ns);
/* Takes a number off the list of those that wait for the same destination; MFS_DESTINATION_NONE when it is empty. When a
 * task has left, there may be room for each of them: call it until the list is empty. */
uint16_t mfs_window_waiting_take(struct mfs_window *window, uint16_t destination);
/* The task enters, whether or not there is room. */
void mfs_window_enter(struct mfs_window *window, uint16_t destination, uint64_t bytes, uint64_t now_ns,
		      struct mfs_passage *passage);
void mfs_window_complete(struct mfs_window *window, const struct mfs_passage *passage, uint64_t now_ns);
/* It will not be reported complete, or not in time: its bytes leave the windows, and say nothing of the rate. `overdue`:
 * the destination is given more time from now on. */
void mfs_window_leave(struct mfs_window *window, const struct mfs_passage *passage, bool overdue,
		      uint64_t now_ns);

uint64_t mfs_window_bytes(const struct mfs_window *window);              /* the NIC's own window */
uint64_t mfs_window_backlog(struct mfs_window *window, uint64_t now_ns); /* what the NIC still has to send */
uint64_t mfs_window_in_flight(const struct mfs_window *window); /* entered and neither complete nor left */

/* The rate at which the destination that all programs share by `destination_key` completed last; 0: unknown, or forgotten
 * after a second without a task. */
uint64_t mfs_window_rate_to(const struct mfs_window *window, uint64_t destination_key, uint64_t now_ns);

struct mfs_destination_window {
	uint64_t key;
	uint64_t window_bytes;
	uint64_t in_flight_bytes;
	uint64_t rate_bytes_per_s; /* at which it completed last; 0: unknown */
};
void mfs_window_snapshot(const struct mfs_window *window, uint16_t destination,
			 struct mfs_destination_window *snapshot);

#endif
