/* What a client has posted. It is the sum of the counters that all its threads share and of the shards that
 * single threads own.
 *
 * Where the client or the daemon is older than minor 4 the shards are zero, so the sum is right there, too. */
#ifndef MFS_USAGE_H
#define MFS_USAGE_H

#include <mfs/nic_tables.h>

#define MFS_USAGE_SHARDS_MINOR 4 /* a daemon of a lower minor version does not read them */

static inline uint64_t mfs_usage_posted(const struct mfs_segment *segment, uint32_t nic, unsigned stage)
{
	const struct mfs_usage_shard *shards = mfs_shards_of(segment, nic);
	uint64_t bytes =
		atomic_load_explicit(&mfs_usage_of(segment, nic)->posted.bytes[stage], memory_order_relaxed);

	for (unsigned shard = 0; shard < MFS_USAGE_SHARDS; shard++)
		bytes += atomic_load_explicit(&shards[shard].bytes[stage], memory_order_relaxed);
	return bytes;
}

static inline uint64_t mfs_usage_completed(const struct mfs_segment *segment, uint32_t nic, unsigned stage)
{
	return atomic_load_explicit(&mfs_usage_of(segment, nic)->completed.bytes[stage],
				    memory_order_relaxed);
}

#endif
