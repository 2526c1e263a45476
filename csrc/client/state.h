/* What the parts of the client share:
 *
 *   attach.c   the daemon's socket, the segment
 *   client.c          tasks: submit, complete, cancel
 *   credit.c   what goes without asking
 *   permit.c   permits that have arrived
 *   ask.c      submit and wait in one
 *   usage.c    counters of bytes
 *   peer.c     a number for each port
 *   context.c  batches and requests
 *
 * All are linked into the preloaded shim and into the Python binding: libc only, no printing, no exit, and errno is left
 * as it was found on every call of the data path. System calls there are made with syscall(): no cancellation points.
 */
#ifndef MFS_CLIENT_STATE_H
#define MFS_CLIENT_STATE_H

#include <mfs/client.h>
#include <mfs/usage.h>
#include <time.h>

#define MFS_WORD_BITS 64

/* The minor version from which on a daemon knows it. */
#define MINOR_REQUESTS 1 /* tables of requests and demands, and the message about them */
#define MINOR_CREDIT 2	 /* tasks that go on credit */
#define MINOR_GROUPS 4	 /* where a task goes: peer and queue pair */

/* The low half of a task's state. */
enum phase {
	PHASE_FREE = 0,
	PHASE_WAITING = 1,
	PHASE_GRANTED = 2,
	/* finished; the message could not be sent yet */
	PHASE_OWES_COMPLETE = 3,
	PHASE_OWES_CANCEL = 4,
	PHASE_OWES_BYPASS = 5,
};
#define CLASS_SHIFT 8 /* the class of a granted task without a cookie */
#define CLASS_MASK 0xff00ull

struct task_slot {
	_Atomic uint64_t state; /* generation << 32 | class << CLASS_SHIFT | phase */
	_Atomic(void *) cookie; /* stored before state turns WAITING, stable until the task ends */
	_Atomic uint32_t next_free;
	/* written before the state, read by whoever ends the task */
	uint32_t direction;	/* whose credit it took, MFS_NONE_U32: none */
	uint64_t bytes; /* of that credit */
};

/* A ring's own part of the task table, and whose ring it is. Slots return to the ring they came from. */
struct ring {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t free_head; /* a stack: slot + 1 or 0 low, a tag against ABA high */
	_Atomic uint32_t waiting;			     /* its tasks in PHASE_WAITING */
	_Atomic uint32_t owner;				     /* thread id, 0: none */
	/* A message is being written: who comes now is a signal handler of this very thread. Here and not in the thread's
	 * own memory, because the shim and the Python binding may share a client and each has its copy of this code. */
	volatile uint32_t sending;
};

static inline uint32_t task_ring(uint32_t slot)
{
	return slot / (MFS_TASKS_MAX / MFS_SUBMIT_RINGS);
}

struct mfs_client {
	struct mfs_segment *segment;
	uint64_t stale_after_ns;
	uint64_t serial; /* differs for every client of this process, never 0 */
	uint32_t epoch;
	uint32_t minor; /* the lower of both sides' */
	int socket;
	int doorbell;
	unsigned timeout_ms;
	bool few_cores; /* whoever spins here may keep the arbiter from its core */
	_Atomic uint32_t socket_busy;
	_Atomic uint32_t request_hint, demand_hint; /* where a free slot may be */
	_Atomic uint64_t taken_bytes[MFS_NICS_MAX * MFS_DIRECTIONS]; /* in flight on credit */
	_Atomic uint32_t owed; /* bits set in the maps below */
	_Atomic uint64_t owed_batches;
	_Atomic uint64_t owed_requests[MFS_REQUESTS_MAX / MFS_WORD_BITS];
	_Atomic uint64_t owed_tasks[MFS_TASKS_MAX / MFS_WORD_BITS];
	struct ring ring[MFS_SUBMIT_RINGS];
	struct task_slot task[MFS_TASKS_MAX];
};

/* Counts the tasks of a ring that wait. */
static inline void waiting_add(struct mfs_client *client, uint32_t slot, uint32_t change)
{
	atomic_fetch_add_explicit(&client->ring[task_ring(slot)].waiting, change, memory_order_relaxed);
}

/* client.c */
/* Call after what the arbiter should see was stored: wakes it if it sleeps and this is `urgent`, or something waits. */
void client_doorbell_ring(struct mfs_client *client, bool urgent);
/* False: the rings are full. The arbiter reads what is not `urgent` when it gets to it. */
bool client_message_send(struct mfs_client *client, const struct mfs_message *message, bool urgent);
void client_owed_flush(struct mfs_client *client);

static inline void client_owed_check(struct mfs_client *client)
{
	if (__builtin_expect(atomic_load_explicit(&client->owed, memory_order_relaxed) != 0, 0))
		client_owed_flush(client);
}

/* credit.c */
/* The class in which the task may go without a permit, or -EAGAIN. On success credit_give is owed. */
int credit_take(struct mfs_client *client, const struct mfs_task *task);

static inline void credit_give(struct mfs_client *client, uint32_t direction, uint64_t bytes)
{
	atomic_fetch_sub_explicit(&client->taken_bytes[direction], bytes, memory_order_relaxed);
}

/* context.c: says that the slot changed; false: the rings are full. */
bool client_batch_send(struct mfs_client *client, uint32_t batch);
bool client_request_send(struct mfs_client *client, uint32_t request);

static inline uint64_t client_clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
