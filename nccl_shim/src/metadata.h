/* What the engine announces about its bytes: mfs/api.h. */
#ifndef MFS_SHIM_METADATA_H
#define MFS_SHIM_METADATA_H

#include "records.h"
#include "thread.h"

struct shim_ranges;
extern _Atomic(struct shim_ranges *) shim_ranges __attribute__((visibility("hidden")));
extern const struct shim_tag shim_untagged;

int shim_context_set(const struct mfs_context *context);
int shim_range_add(uint64_t address, uint64_t bytes, const struct mfs_context *context);
int shim_range_remove(uint64_t address);
int shim_lane_set(int wire_class);
int shim_lane_now(void);
struct shim_tag shim_tag_find(bool any, uint64_t address);
void shim_metadata_after_fork(void);

/* True when a work request of this thread may have a tag. Three loads. */
static inline bool shim_tags_exist(void)
{
	return shim_context_given || shim_collective.given ||
	       atomic_load_explicit(&shim_ranges, memory_order_relaxed);
}

#endif
