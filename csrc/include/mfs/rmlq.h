/* The reverse multi-level queue of one NIC (or of one sender in the simulator): which flow goes next.
 *
 * A flow starts as low as its slack allows and is only ever promoted; the scavenger is the one exception. The queue is
 * deterministic and has no clock: `now_ns` is passed in, so that the simulator runs this very file under virtual time.
 * All memory is taken at creation; no call allocates afterwards. Not thread-safe: one owner.
 *
 * Cost: submit, pick, promote, complete and cancel are O(log n). Promotion by time is driven by a heap of crossing
 * times (when MLU reaches the next threshold), never by a scan.
 *
 * Order (variant mfs / paper): see struct mfs_policy and docs/internals/policy.md. mfsd.policy is the executable
 * specification; tests compare both.
 */
#ifndef MFS_RMLQ_H
#define MFS_RMLQ_H

#include <mfs/abi.h>
#include <stdbool.h>

#define MFS_LEVELS_MAX 8

enum mfs_variant { MFS_VARIANT_MFS = 0, MFS_VARIANT_PAPER = 1 };

struct mfs_policy {
	enum mfs_variant variant;
	uint32_t classes; /* K on the wire, 2..MFS_CLASSES_MAX */
	uint32_t levels;  /* last-stage levels, 1..MFS_LEVELS_MAX */
	double threshold[MFS_LEVELS_MAX]; /* Q_i = U * E^-(i-1), falling */
	double rho_max;			  /* clip of the measured load, 0.95 */
	double critical_laxity_share;	  /* mfs: class 0 only when laxity is under this share of the budget, 0.05 */
	uint64_t promotion_interval_ns;	  /* shortest time between two looks at one flow's MLU */
};

/* A handle is an index into the queue's own table plus a generation; 0 is never one. */
typedef uint64_t mfs_flow_handle;

#define MFS_BATCH_NONE 0

#endif
