/* What the engine announces about its bytes: a context of the posting thread, address ranges, lanes. See
 * mfs/api.h.
 *
 * Ranges are an array, sorted by address, that is never changed once readers can see it: it is replaced as
 * a whole through one pointer. A reader counts itself in, reads the pointer, searches, and counts itself
 * out. That is a fixed number of steps, whatever writers do. The counters are spread over READERS cache
 * lines by thread. A writer frees a replaced array once it has seen every counter at zero after the
 * replacement: a later reader can only find the new array. A counter that is busy whenever it is read
 * delays this. When RETIRED_MAX arrays wait, the writer gives up for now instead of waiting. */
#include "metadata.h"

#include "../../csrc/base/pause.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define READERS 64
#define RETIRED_MAX 16
#define READS_MAX 1000 /* reads of a busy counter, before it is left for the next writer */

struct range {
	uint64_t first, last; /* first and last address, both inclusive */
	struct shim_tag tag;
};

struct shim_ranges {
	uint32_t count;
	struct range range[];
};

struct reader {
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t inside;
};

const struct shim_tag shim_untagged = {.batch = MFS_NONE_U32};
_Atomic(struct shim_ranges *) shim_ranges;

static __thread struct shim_tag context_tag __attribute__((tls_model("initial-exec")));
static __thread int lane_plus_one __attribute__((tls_model("initial-exec")));
static struct reader readers[READERS];
static pthread_mutex_t writer_lock = PTHREAD_MUTEX_INITIALIZER;
static struct retired {
	struct shim_ranges *ranges;
	uint64_t busy; /* counters not yet seen at zero, one bit each */
} retired[RETIRED_MAX];
_Static_assert(READERS == 64, "one bit for each counter");

/* ---- the thread's own -------------------------------------------------------------------------------------------------- */

/* An unknown stage counts as not given: the rules decide. */
static struct shim_tag tag_of(const struct mfs_context *context)
{
	return (struct shim_tag){
		.request_id = context->request_id,
		.deadline_ns = context->deadline_ns,
		.batch = context->batch < MFS_BATCHES_MAX ? context->batch : MFS_NONE_U32,
		.layer = context->layer,
		.stage = context->stage < MFS_STAGES_MAX ? context->stage : 0,
		.hold_until_ns = context->hold_until_ns,
	};
}

int shim_context_set(const struct mfs_context *context)
{
	shim_plain_id = SHIM_THREAD_NONE;
	shim_context_given = false;
	/* a signal handler that posts sees the whole context or none */
	atomic_signal_fence(memory_order_seq_cst);
	if (context) {
		context_tag = tag_of(context);
		atomic_signal_fence(memory_order_seq_cst);
		shim_context_given = true;
	}
	shim_plain_set();
	return 0;
}

int shim_lane_set(int wire_class)
{
	if (wire_class < -1 || wire_class >= MFS_CLASSES_MAX)
		return -EINVAL;
	lane_plus_one = wire_class + 1;
	return 0;
}

int shim_lane_now(void)
{
	return lane_plus_one - 1;
}

/* ---- reading ranges ---------------------------------------------------------------------------------------------------- */

static const struct range *search(const struct shim_ranges *ranges, uint64_t address)
{
	uint32_t low = 0, high = ranges->count;

	while (low < high) { /* find the first range that begins behind the address */
		uint32_t middle = low + (high - low) / 2;

		if (ranges->range[middle].first <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low && address <= ranges->range[low - 1].last ? &ranges->range[low - 1] : NULL;
}

static _Atomic uint32_t *own_counter(void)
{
	return &readers[(uint64_t)pthread_self() * 0x9E3779B97F4A7C15u >> 58].inside;
}

/* Returns the tag of a work request of this thread whose local data begins at `address`. `any` is false if
 * it has no local data. */
struct shim_tag shim_tag_find(bool any, uint64_t address)
{
	const struct shim_ranges *ranges;
	const struct range *found = NULL;
	struct shim_tag tag = shim_untagged;
	_Atomic uint32_t *counter;

	if (shim_context_given)
		return context_tag;
	if (!any || !atomic_load_explicit(&shim_ranges, memory_order_relaxed))
		return tag;
	counter = own_counter();
	/* sequentially consistent with the writer: it sees this count, or this thread sees its new array */
	atomic_fetch_add(counter, 1);
	ranges = atomic_load(&shim_ranges);
	if (ranges)
		found = search(ranges, address);
	if (found)
		tag = found->tag;
	atomic_fetch_sub_explicit(counter, 1, memory_order_release);
	return tag;
}

/* ---- changing them (writer_lock held) ------------------------------------------------------------------------------------ */

static uint64_t still_busy(uint64_t busy)
{
	for (uint64_t left = busy; left; left &= left - 1) {
		unsigned i = (unsigned)__builtin_ctzll(left);

		for (unsigned reads = 0; busy >> i & 1 && reads < READS_MAX; reads++) {
			if (!atomic_load(&readers[i].inside))
				busy &= ~(1ull << i);
			else
				mfs_pause();
		}
	}
	return busy;
}

/* Frees arrays that no reader can have any more. Returns a place for one more replaced array, or NULL. */
static struct retired *place(void)
{
	struct retired *free_place = NULL;

	for (unsigned i = 0; i < RETIRED_MAX; i++) {
		if (retired[i].ranges) {
			retired[i].busy = still_busy(retired[i].busy);
			if (!retired[i].busy) {
				free(retired[i].ranges);
				retired[i].ranges = NULL;
			}
		}
		if (!retired[i].ranges)
			free_place = &retired[i];
	}
	return free_place;
}

static void publish(struct shim_ranges *fresh, struct retired *to)
{
	struct shim_ranges *old = atomic_exchange(&shim_ranges, fresh);

	if (!old)
		return;
	*to = (struct retired){.ranges = old, .busy = still_busy(~0ull)};
	if (!to->busy) {
		free(old);
		to->ranges = NULL;
	}
}

/* Copies the ranges into an array of `count` places: the first `at` stay in front, those from `at` +
 * `skip` on go to the end. */
static struct shim_ranges *copy(const struct shim_ranges *old, uint32_t count, uint32_t at, uint32_t skip)
{
	struct shim_ranges *fresh = malloc(sizeof(*fresh) + count * sizeof(fresh->range[0]));
	uint32_t had = old ? old->count : 0, behind = had - at - skip;

	if (!fresh)
		return NULL;
	fresh->count = count;
	if (at)
		memcpy(fresh->range, old->range, at * sizeof(fresh->range[0]));
	if (behind)
		memcpy(fresh->range + count - behind, old->range + at + skip,
		       behind * sizeof(fresh->range[0]));
	return fresh;
}

/* Returns the number of ranges that begin before `address`. */
static uint32_t before(const struct shim_ranges *ranges, uint64_t address)
{
	uint32_t low = 0, high = ranges ? ranges->count : 0;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (ranges->range[middle].first < address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int add(const struct range *wanted)
{
	const struct shim_ranges *old = atomic_load(&shim_ranges);
	uint32_t count = old ? old->count : 0, at = before(old, wanted->first), same = 0;
	const struct range *next = at < count ? &old->range[at] : NULL;
	struct shim_ranges *fresh;
	struct retired *to;

	if (next && next->first == wanted->first && next->last == wanted->last)
		same = 1;
	else if ((next && next->first <= wanted->last) || (at && old->range[at - 1].last >= wanted->first))
		return -EEXIST;
	if (!same && count == MFS_RANGES_MAX)
		return -ENOSPC;
	to = place();
	if (!to)
		return -EAGAIN;
	fresh = copy(old, count + 1 - same, at, same);
	if (!fresh)
		return -ENOMEM;
	fresh->range[at] = *wanted;
	publish(fresh, to);
	return 0;
}

static int drop(uint64_t address)
{
	const struct shim_ranges *old = atomic_load(&shim_ranges);
	uint32_t at = before(old, address);
	struct shim_ranges *fresh = NULL;
	struct retired *to;

	if (!old || at == old->count || old->range[at].first != address)
		return -ENOENT;
	to = place();
	if (!to)
		return -EAGAIN;
	if (old->count > 1) {
		fresh = copy(old, old->count - 1, at, 1);
		if (!fresh)
			return -ENOMEM;
	}
	publish(fresh, to);
	return 0;
}

int shim_range_add(uint64_t address, uint64_t bytes, const struct mfs_context *context)
{
	struct range wanted = {.first = address, .last = address + bytes - 1};
	int rc;

	if (!bytes || wanted.last < address || !context)
		return -EINVAL;
	wanted.tag = tag_of(context);
	pthread_mutex_lock(&writer_lock);
	rc = add(&wanted);
	pthread_mutex_unlock(&writer_lock);
	return rc;
}

int shim_range_remove(uint64_t address)
{
	int rc;

	pthread_mutex_lock(&writer_lock);
	rc = drop(address);
	pthread_mutex_unlock(&writer_lock);
	return rc;
}

/* The child's memory is its own, and so are its ranges. What was allocated is not freed: free() could find
 * a lock that was held by a thread of the parent. */
void shim_metadata_after_fork(void)
{
	shim_context_given = false;
	shim_plain_set();
	lane_plus_one = 0;
	atomic_store(&shim_ranges, NULL);
	memset(retired, 0, sizeof(retired));
	memset(readers, 0, sizeof(readers));
	pthread_mutex_init(&writer_lock, NULL);
}
