/* Where the segment keeps what it has of a NIC.
 *
 * The tables of the first MFS_NICS_FIRST have been where they are since minor 0; those of the others lie at the segment's end,
 * together for each NIC. At a daemon before minor 6 no NIC has an index so high. `nic` is below MFS_NICS_MAX.
 */
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

/* MFS_USAGE_SHARDS of them. */
static inline struct mfs_usage_shard *mfs_shards_of(const struct mfs_segment *segment, uint32_t nic)
{
	return nic < MFS_NICS_FIRST ? ((struct mfs_segment *)segment)->posted_shard[nic]
				    : mfs_nic_tables_of(segment, nic)->posted_shard;
}

#endif
