/* How much may be under way in one direction of a NIC: in total, and to each destination (a far port).
 *
 * There are two limits because bytes wait in two places.
 *
 *  - The NIC's own window limits what the NIC still has to send. Bytes that enter are assumed to leave at the
 *    rate that the link has for them (mfs_window_set_drain), and completed bytes have left. Bytes that wait
 *    beyond the NIC, in a congested path or at a receiver that is slow or dead, therefore stop counting once the
 *    NIC has had the time to send them. For a destination that is known to be slow only the share of the link
 *    that it can take is counted, since other traffic goes by meanwhile.
 *  - A destination's window limits bytes that entered and are not complete. It holds up flows to that
 *    destination only. It starts as large as the NIC's own window. Its size is found by trial: the smallest that
 *    keeps the rate at which the destination completes. Programs share it. But a program with nothing under way
 *    there may always send one task, so no program can keep a destination from others by completing late.
 *
 * The arbiter runs it on the monotonic clock, the simulator on a virtual one: it has no clock, thread, lock or
 * I/O of its own. All memory is taken at creation; what is never used is never touched. Every call is O(1),
 * except that a new destination may evict an old one, which walks the programs that share that. One owner. */
#ifndef MFS_WINDOW_H
#define MFS_WINDOW_H

#include <mfs/abi.h>
#include <mfs/rmlq.h>
#include <stdbool.h>

#define MFS_WINDOW_PATIENCE_NS 50000000ull /* the shortest time after which a task may be overdue */
#define MFS_DESTINATION_SHARED 0           /* shared by all that found no place in the table */
#define MFS_DESTINATION_NONE UINT16_MAX

struct mfs_window;

struct mfs_window_config {
	uint64_t rate_bytes_per_s;
	/* the NIC's window, as time at its rate: the backlog that a collective may find ahead of it */
	uint64_t window_ns;
	uint64_t window_bytes_min; /* but at least this much */
};

/* One task between enter and complete or leave. */
struct mfs_passage {
	uint64_t entered_ns;
	uint64_t due_ns; /* a task that is not complete by then is no longer waited for */
	/* bytes counted: at most what the NIC sends in 2 ms, however large the task claims to be */
	uint64_t bytes;
	uint16_t destination;
};

enum mfs_room {
	MFS_ROOM = 0,
	MFS_ROOM_NIC_FULL = 1,         /* ask again at the returned time, or after a completion */
	MFS_ROOM_DESTINATION_FULL = 2, /* ask again after a completion to this destination */
};

/* -EINVAL: a rate or window of 0; -ENOMEM. */
int mfs_window_create(const struct mfs_window_config *config, struct mfs_window **window);
void mfs_window_destroy(struct mfs_window *window); /* NULL is allowed */

/* Sets another rate. The windows of destinations are then found anew. -EINVAL: 0. */
int mfs_window_set_rate(struct mfs_window *window, uint64_t rate_bytes_per_s, uint64_t now_ns);
/* Sets the rate, in bytes per second, that the link has for these bytes. At least a twentieth of the
 * link's rate is assumed. */
void mfs_window_set_drain(struct mfs_window *window, double bytes_per_s, uint64_t now_ns);

/* Returns the number of what one program sends to one destination, found by `key` or newly made. The
 * caller must give it back as often as it asked for it. Keys are not 0. All numbers with the same
 * `destination_key` share a window. MFS_DESTINATION_SHARED: the table is full of numbers in use. */
uint16_t mfs_window_destination(struct mfs_window *window, uint64_t key, uint64_t destination_key,
				uint64_t now_ns);
/* Gives a number back. True: it is no longer in use. */
bool mfs_window_destination_give(struct mfs_window *window, uint16_t destination);
uint32_t mfs_window_destination_users(const struct mfs_window *window, uint16_t destination);

/* Tells whether a task of a flow of this tier may enter. Any task may enter an empty window, however large
 * it is. A task larger than the window may enter a full one, unless something of a better tier waits.
 * `at_ns` is written with MFS_ROOM_NIC_FULL. After MFS_ROOM_DESTINATION_FULL the number is on the list of
 * those that wait for this destination. */
enum mfs_room mfs_window_room(struct mfs_window *window, uint16_t destination, uint64_t bytes,
			      enum mfs_tier tier, uint64_t now_ns, uint64_t *at_ns);
/* Takes one number off the list of those that wait for the same destination; MFS_DESTINATION_NONE when the
 * list is empty. When a task has left, there may be room for each of them: call it until the list is empty. */
uint16_t mfs_window_waiting_take(struct mfs_window *window, uint16_t destination);
/* The task enters, whether or not there is room. */
void mfs_window_enter(struct mfs_window *window, uint16_t destination, uint64_t bytes, uint64_t now_ns,
		      struct mfs_passage *passage);
void mfs_window_complete(struct mfs_window *window, const struct mfs_passage *passage, uint64_t now_ns);
/* The task will not be reported complete, or not in time. Its bytes leave the windows and do not count for
 * the destination's rate. `overdue`: the destination gets more time for its tasks from now on. */
void mfs_window_leave(struct mfs_window *window, const struct mfs_passage *passage, bool overdue,
		      uint64_t now_ns);

uint64_t mfs_window_bytes(const struct mfs_window *window);              /* the NIC's own window */
uint64_t mfs_window_backlog(struct mfs_window *window, uint64_t now_ns); /* what the NIC still has to send */
uint64_t mfs_window_in_flight(const struct mfs_window *window); /* entered, and neither complete nor left */

/* Returns the rate at which the destination with `destination_key`, shared by all programs, last completed
 * bytes. 0: unknown, or forgotten after a second without a task. */
uint64_t mfs_window_rate_to(const struct mfs_window *window, uint64_t destination_key, uint64_t now_ns);

struct mfs_destination_window {
	uint64_t key;
	uint64_t window_bytes;
	uint64_t in_flight_bytes;
	uint64_t rate_bytes_per_s; /* rate at which it last completed bytes; 0: unknown */
};
void mfs_window_snapshot(const struct mfs_window *window, uint16_t destination,
			 struct mfs_destination_window *snapshot);

#endif
