/* The shim as NCCL's profiler plugin: it learns for which communicator, operation and batch a send is.
 *
 * NCCL reports an operation on the thread that called it. Later it reports each step of that operation on
 * the proxy thread, immediately before it hands the step to the network. In between this file remembers
 * what the operation was, in a ring of slots that is overwritten and never freed. The handle that NCCL
 * gets is not a pointer but a number: communicator, slot, and how often the slot was used. An event that
 * is older than the ring finds its slot overwritten and counts only for its communicator. So nothing here
 * allocates, waits or can run out. What the proxy thread is about to send is left in a thread-local
 * variable for post.c.
 *
 * NCCL connects a queue pair without saying for which communicator. A queue pair being connected is taken
 * for that of the one communicator of the process that is inside a call or, before version 5, of the one
 * that has not sent yet. If there are several, it counts for no communicator. Its first send decides, but
 * the class on the wire was set before. */
#include "profiler.h"

#include "counter.h"
#include "log.h"
#include "metadata.h"
#include "mode.h"
#include "nccl_abi.h"
#include "session.h"

#include <string.h>
#include <unistd.h>

#define OPERATIONS 16384 /* operations remembered; a power of two */
#define GROUPS 1024
#define NOTHING 0 /* result of every call: ncclSuccess */
#define EVENTS (NCCL_EVENT_COLL | NCCL_EVENT_P2P | NCCL_EVENT_PROXY_OP | NCCL_EVENT_PROXY_STEP)

enum handle_kind { HANDLE_OPERATION = 1, HANDLE_GROUP = 2, HANDLE_CALL = 3 };

struct slot {
	_Atomic uint64_t use; /* 0 while the slot is written */
	_Atomic uint64_t what;
};

struct communicator {
	struct mfs_communicator seen; /* the shim's thread copies it into the segment */
	_Atomic uint32_t calls;       /* groups of calls that are under way */
	_Atomic uint32_t sent;
};

static struct communicator communicators[MFS_COMMUNICATORS_MAX];
static struct slot operations[OPERATIONS], groups[GROUPS];
static _Atomic uint64_t operations_seen, groups_seen;
static pid_t own_pid;
static pthread_mutex_t communicators_lock = PTHREAD_MUTEX_INITIALIZER;
_Static_assert(MFS_COMMUNICATORS_MAX <= 64, "a group's communicators are bits of a word");

/* ---- handles ----------------------------------------------------------------------------------------------------------- */

/* bits: kind 2, communicator 6, slot 14, use 42 (0: no slot) */
static void *handle_make(enum handle_kind kind, unsigned communicator, uint64_t use, unsigned size)
{
	return (void *)(uintptr_t)(kind | communicator << 2 | (use % size) << 8 | use << 22);
}

static enum handle_kind handle_kind(const void *handle)
{
	return (uintptr_t)handle & 3;
}

static unsigned handle_communicator(const void *handle)
{
	return (uintptr_t)handle >> 2 & 63;
}

static struct slot *handle_slot(const void *handle, struct slot *slots, unsigned size)
{
	return &slots[((uintptr_t)handle >> 8 & (OPERATIONS - 1)) % size];
}

static uint64_t handle_use(const void *handle)
{
	return (uintptr_t)handle >> 22;
}

static uint64_t slot_write(struct slot *slots, unsigned size, _Atomic uint64_t *seen, uint64_t what)
{
	uint64_t use = (atomic_fetch_add_explicit(seen, 1, memory_order_relaxed) + 1) & ((1ull << 42) - 1);
	struct slot *slot = &slots[use % size];

	atomic_store_explicit(&slot->use, 0, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&slot->what, what, memory_order_relaxed);
	atomic_store_explicit(&slot->use, use, memory_order_release);
	return use;
}

static bool slot_read(struct slot *slot, uint64_t use, uint64_t *what)
{
	if (!use || atomic_load_explicit(&slot->use, memory_order_acquire) != use)
		return false;
	*what = atomic_load_explicit(&slot->what, memory_order_relaxed);
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&slot->use, memory_order_relaxed) == use;
}

/* ---- what an operation is ------------------------------------------------------------------------------------------------ */

static enum mfs_operation operation_of(const char *function)
{
	static const struct {
		const char *name;
		enum mfs_operation operation;
	} known[] = {
		{"AllReduce", MFS_OPERATION_ALL_REDUCE},
		{"AllGather", MFS_OPERATION_ALL_GATHER},
		{"ReduceScatter", MFS_OPERATION_REDUCE_SCATTER},
		{"Broadcast", MFS_OPERATION_BROADCAST},
		{"Reduce", MFS_OPERATION_REDUCE},
		{"AlltoAll", MFS_OPERATION_ALL_TO_ALL},
		{"Send", MFS_OPERATION_SEND},
	};

	for (unsigned i = 0; function && i < sizeof(known) / sizeof(known[0]); i++)
		if (!strcmp(function, known[i].name))
			return known[i].operation;
	return MFS_OPERATION_OTHER;
}

/* The first number in the name of a type is its size in bits: ncclFloat32, ncclBfloat16, ncclFloat8e4m3. */
static uint64_t bytes_of(const char *datatype)
{
	uint64_t bits = 0;

	if (!datatype)
		return 0;
	datatype += strcspn(datatype, "0123456789");
	while (*datatype >= '0' && *datatype <= '9' && bits < 1000)
		bits = bits * 10 + (uint64_t)(*datatype++ - '0');
	return bits / 8;
}

/* word: operation 8 bits, layer 16, batch 32 */
static uint64_t word_of(enum mfs_operation operation, uint32_t batch, uint16_t layer)
{
	return (uint64_t)operation | (uint64_t)layer << 8 | (uint64_t)batch << 24;
}

static uint64_t operation_begin(unsigned c, const char *function, uint64_t bytes)
{
	enum mfs_operation operation = operation_of(function);
	struct mfs_communicator *seen = &communicators[c].seen;
	struct shim_tag tag = shim_tag_find(false, 0);

	if (tag.batch == MFS_NONE_U32)
		shim_batch_now(&tag.batch, &tag.layer);
	shim_count(&seen->operations, 1);
	shim_count(&seen->operation_bytes, bytes);
	return slot_write(operations, OPERATIONS, &operations_seen, word_of(operation, tag.batch, tag.layer));
}

/* ---- calls ----------------------------------------------------------------------------------------------------------------- */

/* A group of calls names its communicators one by one. All of them are inside a call until the group ends. */
static void group_join(void *handle, unsigned c)
{
	struct slot *slot = handle_slot(handle, groups, GROUPS);

	if (handle_kind(handle) != HANDLE_GROUP || atomic_load(&slot->use) != handle_use(handle))
		return;
	if (!(atomic_fetch_or(&slot->what, 1ull << c) >> c & 1))
		atomic_fetch_add(&communicators[c].calls, 1);
}

static void group_end(void *handle)
{
	struct slot *slot = handle_slot(handle, groups, GROUPS);

	if (atomic_load(&slot->use) != handle_use(handle))
		return;
	for (uint64_t left = atomic_exchange(&slot->what, 0); left; left &= left - 1)
		atomic_fetch_sub(&communicators[__builtin_ctzll(left)].calls, 1);
}

/* ---- events ---------------------------------------------------------------------------------------------------------------- */

static int start(void *context, void **handle, const struct nccl_event *event, uint64_t type)
{
	struct communicator *communicator = context;
	unsigned c;

	if (!handle)
		return NOTHING;
	*handle = NULL;
	if (!communicator || !event)
		return NOTHING;
	c = (unsigned)(communicator - communicators);
	switch (type) {
	case NCCL_EVENT_GROUP_API:
		*handle = handle_make(HANDLE_GROUP, c, slot_write(groups, GROUPS, &groups_seen, 0), GROUPS);
		group_join(*handle, c);
		break;
	case NCCL_EVENT_COLL_API:
	case NCCL_EVENT_P2P_API:
		group_join(event->parent, c);
		*handle = handle_make(HANDLE_CALL, c, 0, 1);
		break;
	case NCCL_EVENT_COLL:
		*handle = handle_make(HANDLE_OPERATION, c,
				      operation_begin(c, event->coll.function,
						      event->coll.count * bytes_of(event->coll.datatype)),
				      OPERATIONS);
		break;
	case NCCL_EVENT_P2P:
		*handle = handle_make(HANDLE_OPERATION, c,
				      operation_begin(c, event->p2p.function,
						      event->p2p.count * bytes_of(event->p2p.datatype)),
				      OPERATIONS);
		break;
	case NCCL_EVENT_PROXY_OP:
		if (!event->proxy_op.is_send)
			break;
		/* an operation of another process: only the communicator is known */
		*handle = handle_make(HANDLE_OPERATION, c, 0, 1);
		if (event->proxy_op.pid == own_pid && handle_kind(event->parent) == HANDLE_OPERATION &&
		    handle_communicator(event->parent) == c)
			*handle = event->parent;
		break;
	case NCCL_EVENT_PROXY_STEP:
		if (handle_kind(event->parent) == HANDLE_OPERATION)
			*handle = event->parent;
		break;
	default:
		break;
	}
	return NOTHING;
}

static int start_v4(void *context, void **handle, const struct nccl_event *event)
{
	return start(context, handle, event, event ? event->type & 0xff : 0);
}

static int start_v5(void *context, void **handle, const struct nccl_event *event)
{
	return start(context, handle, event, event ? event->type : 0);
}

static int stop(void *handle)
{
	if (handle_kind(handle) == HANDLE_GROUP)
		group_end(handle);
	return NOTHING;
}

static int state(void *handle, int state, const void *arguments)
{
	uint64_t what = word_of(MFS_OPERATION_OTHER, MFS_NONE_U32, 0);

	(void)arguments;
	if (handle_kind(handle) != HANDLE_OPERATION || handle_communicator(handle) >= MFS_COMMUNICATORS_MAX)
		return NOTHING;
	if (state == NCCL_STATE_SEND_WAIT) {
		shim_collective.given = false;
		shim_plain_set();
	} else if (state == NCCL_STATE_SEND_PEER_WAIT) {
		slot_read(handle_slot(handle, operations, OPERATIONS), handle_use(handle), &what);
		shim_collective.communicator = (uint8_t)handle_communicator(handle);
		shim_collective.operation = (uint8_t)what;
		shim_collective.layer = (uint16_t)(what >> 8);
		shim_collective.batch = (uint32_t)(what >> 24);
		shim_collective.given = true;
		shim_plain_set();
	}
	return NOTHING;
}

/* The send that NCCL has announced on this thread has been posted. */
void shim_collective_sent(uint64_t bytes, uint64_t requests)
{
	struct communicator *communicator = &communicators[shim_collective.communicator];
	struct mfs_communicator *seen = &communicator->seen;

	shim_count(&seen->bytes[shim_collective.operation % MFS_OPERATIONS_MAX], bytes);
	shim_count(&seen->work_requests, requests);
	if (shim_collective.batch != MFS_NONE_U32) {
		shim_count(&seen->batch_bytes, bytes);
		atomic_store_explicit(&seen->batch, shim_collective.batch, memory_order_relaxed);
		atomic_store_explicit(&seen->layer, shim_collective.layer, memory_order_relaxed);
	}
	if (!atomic_load_explicit(&communicator->sent, memory_order_relaxed))
		atomic_store_explicit(&communicator->sent, 1, memory_order_relaxed);
}

/* ---- communicators ----------------------------------------------------------------------------------------------------------- */

static int init(void **context, uint64_t id, int *mask, unsigned events, const char *name, int ranks,
		int rank)
{
	struct communicator *free_place = NULL;

	if (context)
		*context = NULL;
	if (!context || !mask || shim_mode() == MFS_MODE_OFF)
		return NOTHING;
	pthread_mutex_lock(&communicators_lock);
	own_pid = getpid();
	for (unsigned i = 0; i < MFS_COMMUNICATORS_MAX && !free_place; i++)
		if (!atomic_load(&communicators[i].seen.id))
			free_place = &communicators[i];
	if (free_place) {
		memset(free_place, 0, sizeof(*free_place));
		strncpy(free_place->seen.name, name ? name : "", sizeof(free_place->seen.name) - 1);
		free_place->seen.ranks = (uint32_t)ranks;
		free_place->seen.rank = (uint32_t)rank;
		free_place->seen.batch = MFS_NONE_U32;
		atomic_store(&free_place->seen.id, id ? id : 1);
		*context = free_place;
	}
	pthread_mutex_unlock(&communicators_lock);
	if (!free_place)
		shim_log(SHIM_REASON_COMMUNICATORS,
			 "more than %d NCCL communicators: the later ones are not distinguished",
			 MFS_COMMUNICATORS_MAX);
	*mask = (int)events; /* the mask is the same for all communicators */
	return NOTHING;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t id, int nodes, int ranks, int rank,
		   nccl_log *log)
{
	(void)nodes, (void)log;
	return init(context, id, mask, EVENTS, name, ranks, rank);
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
		   nccl_log *log)
{
	(void)nodes, (void)log;
	return init(context, id, mask,
		    EVENTS | NCCL_EVENT_GROUP_API | NCCL_EVENT_COLL_API | NCCL_EVENT_P2P_API, name, ranks,
		    rank);
}

static int finalize(void *context)
{
	struct communicator *communicator = context;

	if (communicator)
		atomic_store(&communicator->seen.id, 0);
	return NOTHING;
}

/* Returns the communicator whose queue pairs are being connected now, or -1 when that is ambiguous. */
int shim_communicator_connecting(void)
{
	int calling = -1, fresh = -1;
	unsigned calls = 0, unsent = 0;

	for (int i = 0; i < MFS_COMMUNICATORS_MAX; i++) {
		if (!atomic_load(&communicators[i].seen.id))
			continue;
		if (atomic_load(&communicators[i].calls)) {
			calling = i;
			calls++;
		}
		if (!atomic_load(&communicators[i].sent)) {
			fresh = i;
			unsent++;
		}
	}
	return calls == 1 ? calling : !calls && unsent == 1 ? fresh : -1;
}

const char *shim_communicator_name(int communicator)
{
	return communicators[communicator].seen.name;
}

/* Copies what was counted into the daemon's segment. Called by the shim's thread, now and then. */
void shim_communicators_report(struct mfs_segment *segment)
{
	for (int i = 0; i < MFS_COMMUNICATORS_MAX; i++) {
		struct mfs_communicator *from = &communicators[i].seen, *to = &segment->communicator[i];
		uint64_t id = atomic_load(&from->id);

		if (!id && !atomic_load_explicit(&to->id, memory_order_relaxed))
			continue;
		if (id != atomic_load_explicit(&to->id, memory_order_relaxed))
			memcpy(to->name, from->name, sizeof(to->name));
#define COPY(field) atomic_store_explicit(&to->field, atomic_load(&from->field), memory_order_relaxed)
		COPY(rank);
		COPY(ranks);
		COPY(operations);
		for (int o = 0; o < MFS_OPERATIONS_MAX; o++)
			COPY(bytes[o]);
		COPY(work_requests);
		COPY(operation_bytes);
		COPY(batch_bytes);
		COPY(batch);
		COPY(layer);
#undef COPY
		atomic_store_explicit(&to->id, id, memory_order_release);
	}
}

/* Calls of the parent's other threads never end in the child. */
void shim_profiler_after_fork(void)
{
	pthread_mutex_init(&communicators_lock, NULL);
	memset(communicators, 0, sizeof(communicators));
	shim_collective.given = false;
	shim_plain_set();
}

/* ---- what NCCL looks for ----------------------------------------------------------------------------------------------------- */

/* Not const: a release that writes to it must not crash the program. */
/* clang-format off */
#define PLUGIN(version, layout, start_event)                                                                           \
	__attribute__((visibility("default"))) extern struct nccl_profiler_v##layout ncclProfiler_v##version;          \
	struct nccl_profiler_v##layout ncclProfiler_v##version = {                                                     \
		.name = "MFS",                                                                                         \
		.init = init_v##layout,                                                                                \
		.start = start_event,                                                                                  \
		.stop = stop,                                                                                          \
		.state = state,                                                                                        \
		.finalize = finalize,                                                                                  \
	}

PLUGIN(4, 4, start_v4);
PLUGIN(5, 5, start_v5);
PLUGIN(6, 5, start_v5);
PLUGIN(7, 5, start_v5);
/* clang-format on */
