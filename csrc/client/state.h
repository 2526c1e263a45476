/* What the parts of the client share.
 *
 * From top to bottom; no part includes or calls one above it (tests/unit/test_native_layers.py):
 *
 *   attach.c   the daemon's socket, the segment
 *   ask.c      submit and wait in one call
 *   outlook.c  the page that all clients of the node read
 *   permit.c   permits that have arrived
 *   context.c  batches and requests
 *   task.c     tasks: submit, complete, cancel
 *   credit.c   tasks that need not ask
 *   usage.c    counters of bytes
 *   message.c  messages to the arbiter
 *   peer.c     a number for each port
 *
 * All are linked into the preloaded shim and into the Python binding. They use libc only, never print or
 * exit, and calls of the data path leave errno unchanged. System calls there are made with syscall(),
 * which is no cancellation point. */
#ifndef MFS_CLIENT_STATE_H
#define MFS_CLIENT_STATE_H

#include <assert.h>
#include <mfs/client.h>
#include <mfs/usage.h>

#define MFS_WORD_BITS 64

/* The minor version from which on a daemon has: */
#define MINOR_REQUESTS 1 /* tables of requests and demands, and the message about them */
#define MINOR_CREDIT 2   /* tasks that go on credit */
#define MINOR_GROUPS 4   /* the peer and queue pair of a task */
#define MINOR_BEHIND 8   /* what the sender of a task will submit behind it */

/* The low half of a task's state. */
enum phase {
	PHASE_FREE = 0,
	PHASE_WAITING = 1,
	PHASE_PERMITTED = 2,
	/* finished, but its message is not sent yet */
	PHASE_OWES_COMPLETE = 3,
	PHASE_OWES_CANCEL = 4,
	PHASE_OWES_BYPASS = 5,
};
#define CLASS_SHIFT 8 /* the class of a permitted task that has no cookie */
#define CLASS_MASK 0xff00ull

struct task_slot {
	_Atomic uint64_t state; /* generation << 32 | class << CLASS_SHIFT | phase */
	_Atomic(void *) cookie; /* stored before state turns WAITING, stable until the task ends */
	_Atomic uint32_t next_free;
	/* written before the state; read by the thread that ends the task */
	uint32_t direction; /* the direction whose credit it took; MFS_NONE_U32: none */
	uint64_t bytes;     /* bytes of credit that it took */
};

/* The part of the task table that belongs to a ring, and the ring's owner. Slots return to the ring they came from. */
struct ring {
	/* a stack: low half slot + 1, or 0; high half a tag against ABA */
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t free_head;
	_Atomic uint32_t waiting; /* its tasks in PHASE_WAITING */
	_Atomic uint32_t owner;   /* thread id, 0: none */
	/* Set while a message is being written. A call that finds it set is a signal handler that has
	 * interrupted this very thread. It is here and not in the thread's own memory because the shim and
	 * the Python binding may share a client while each has its own copy of this code. */
	volatile uint32_t sending;
};

static inline uint32_t task_ring(uint32_t slot)
{
	return slot / (MFS_TASKS_MAX / MFS_SUBMIT_RINGS);
}

struct mfs_client {
	struct mfs_segment *segment;
	const struct mfs_outlook *outlook; /* NULL: there is no page */
	uint64_t stale_after_ns;
	uint64_t serial; /* differs for every client of this process, never 0 */
	uint32_t epoch;
	uint32_t minor; /* the lower of both sides' */
	int socket;
	int doorbell;
	uint64_t socket_device, socket_inode; /* identify the socket, see descriptors_own */
	unsigned timeout_ms;
	bool few_cores; /* a thread that spins may keep the arbiter off its core */
	_Atomic uint32_t socket_busy;
	_Atomic uint32_t request_hint, demand_hint; /* where to start the search for a free slot */
	/* replies still to come for NICs that were named, including calls that timed out; used only by the
	 * thread that has set socket_busy */
	uint32_t answers_due;
	_Atomic uint64_t taken_bytes[MFS_NICS_MAX * MFS_DIRECTIONS]; /* bytes in flight on credit */
	_Atomic uint32_t owed; /* number of bits set in the maps below */
	_Atomic uint64_t owed_batches;
	_Atomic uint64_t owed_requests[MFS_REQUESTS_MAX / MFS_WORD_BITS];
	_Atomic uint64_t owed_tasks[MFS_TASKS_MAX / MFS_WORD_BITS];
	struct ring ring[MFS_SUBMIT_RINGS];
	struct task_slot task[MFS_TASKS_MAX];
};
static_assert(sizeof(struct mfs_client) == 133376, "another size needs another MFS_CLIENT_LAYOUT");

/* The number of NICs in the mapped segment: a daemon of a lower minor version gave a shorter one. */
static inline unsigned client_nics(const struct mfs_client *client)
{
	return client->minor < MFS_NICS_MINOR ? MFS_NICS_FIRST : MFS_NICS_MAX;
}

/* Adds to the number of waiting tasks of the slot's ring. */
static inline void waiting_add(struct mfs_client *client, uint32_t slot, uint32_t change)
{
	atomic_fetch_add_explicit(&client->ring[task_ring(slot)].waiting, change, memory_order_relaxed);
}

#endif
