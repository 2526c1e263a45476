/* What is to be done later: with the next turn, or at a time. */
#ifndef MFS_SOFT_ROCE_TIMER_H
#define MFS_SOFT_ROCE_TIMER_H

#include "objects.h"

/* The queue pair sends with the next turn. */
void mfs_defer(struct mfs_qp *qp);
/* Asks for a turn at that time. */
void mfs_timer_set(struct mfs_context *context, uint64_t due_ns);
void mfs_timer_arm(struct mfs_context *context, uint64_t due_ns);
void mfs_timer_start(struct mfs_qp *qp, enum mfs_qp_timer timer, uint64_t due_ns);
void mfs_timer_stop(struct mfs_qp *qp);

#endif
