/* Tasks: consecutive held work requests that need one permit. */
#ifndef MFS_SHIM_TASK_H
#define MFS_SHIM_TASK_H

#include "records.h"

/* Owner held. Makes tasks of what is held and asks the daemon for their permits. */
void shim_tasks_form(struct shim_qp *q);
/* Tasks are numbered from 1, and `posted` of them have gone: whether the next one may go. */
bool shim_task_may_go(struct shim_qp *q, uint64_t posted);
/* True when a held work request could be made a task, or a task could go. */
bool shim_tasks_ready(struct shim_qp *q);
void shim_task_permit(struct shim_qp *q, struct shim_task *t);

/* The provider has no room, or has refused: nothing more is posted for now. */
static inline bool shim_stuck(struct shim_qp *q)
{
	return atomic_load(&q->blocked) || atomic_load(&q->failed);
}

#endif
