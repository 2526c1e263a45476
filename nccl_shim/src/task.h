/* Tasks: consecutive held work requests that need one permit. */
#ifndef MFS_SHIM_TASK_H
#define MFS_SHIM_TASK_H

#include "records.h"

/* Owner flag held. Makes tasks of what is held, and asks the daemon for their permits. */
void shim_tasks_form(struct shim_qp *q);
/* Tasks are numbered from 1. True if the next task may go after the first `posted` have gone. */
bool shim_task_may_go(struct shim_qp *q, uint64_t posted);
/* True when held work requests could become a task, or a task could go. */
bool shim_tasks_ready(struct shim_qp *q);
void shim_task_permit(struct shim_qp *q, struct shim_task *t);

/* True when the provider has no room or has refused a post: nothing more is posted for now. */
static inline bool shim_stuck(struct shim_qp *q)
{
	return atomic_load(&q->blocked) || atomic_load(&q->failed);
}

#endif
