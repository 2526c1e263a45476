/* Finds the tables of a NIC in the segment.
 *
 * The tables of the first MFS_NICS_FIRST NICs have kept their places since minor 0. The tables of the
 * others lie at the end of the segment, grouped by NIC. With a daemon before minor 6 no NIC has such an
 * index. `nic` must be below MFS_NICS_MAX. */
#ifndef MFS_NIC_TABLES_H
#define MFS_NIC_TABLES_H

#include <mfs/abi.h>

static inline struct mfs_nic_tables *mfs_nic_tables_of(const struct mfs_segment *segment, uint32_t nic)
{
	return &((struct mfs_segment *)segment)->nic_tables[nic - MFS_NICS_FIRST];
}

static inline struct mfs_gate *mfs_gate_of(const struct mfs_segment *segment, uint32_t nic)
{
	return nic < MFS_NICS_FIRST ? &((struct mfs_segment *)segment)->gate[nic]
				    : &mfs_nic_tables_of(segment, nic)->gate;
}

static inline struct mfs_nic *mfs_nic_of(const struct mfs_segment *segment, uint32_t nic)
{
	return nic < MFS_NICS_FIRST ? &((struct mfs_segment *)segment)->nic[nic]
				    : &mfs_nic_tables_of(segment, nic)->nic;
}

static inline struct mfs_usage *mfs_usage_of(const struct mfs_segment *segment, uint32_t nic)
{
	return nic < MFS_NICS_FIRST ? &((struct mfs_segment *)segment)->usage[nic]
				    : &mfs_nic_tables_of(segment, nic)->usage;
}

/* An array of MFS_USAGE_SHARDS. */
static inline struct mfs_usage_shard *mfs_shards_of(const struct mfs_segment *segment, uint32_t nic)
{
	return nic < MFS_NICS_FIRST ? ((struct mfs_segment *)segment)->posted_shard[nic]
				    : mfs_nic_tables_of(segment, nic)->posted_shard;
}

#endif
