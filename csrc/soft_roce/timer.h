/* Work for the next turn or for a later time. */
#ifndef MFS_SOFT_ROCE_TIMER_H
#define MFS_SOFT_ROCE_TIMER_H

#include "objects.h"

/* Makes the queue pair send with the next turn. */
void mfs_defer(struct mfs_qp *qp);
/* Asks for a turn at `due_ns`. */
void mfs_timer_set(struct mfs_context *context, uint64_t due_ns);
void mfs_timer_arm(struct mfs_context *context, uint64_t due_ns);
void mfs_timer_start(struct mfs_qp *qp, enum mfs_qp_timer timer, uint64_t due_ns);
void mfs_timer_stop(struct mfs_qp *qp);

#endif
