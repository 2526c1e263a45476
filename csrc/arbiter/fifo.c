/* Queue pairs are FIFO: a permit for a task would release all tasks that its program posted to that queue
 * pair before. So the first task of the queue pair is permitted in place of the chosen one. In effect it
 * has the best key of all tasks behind it.
 *
 * Tasks of one queue pair may be read in another order than they were sent, since threads have rings of
 * their own. They are ordered by the time at which they were sent. A task's place is searched from the end,
 * where it nearly always belongs. A client that sends thousands in another order is charged for the steps. */
#include "state.h"

static uint32_t *bucket_of(struct session *session, uint32_t queue)
{
	return &session->fifo_bucket[key_mix(session->key_salt, queue) % FIFO_BUCKETS];
}

static uint32_t fifo_find_or_make(struct session *session, uint32_t queue)
{
	uint32_t *bucket = bucket_of(session, queue), f;

	for (f = *bucket; f; f = session->fifo[f - 1].next)
		if (session->fifo[f - 1].queue == queue)
			return f;
	f = session->fifo_free;
	if (f)
		session->fifo_free = session->fifo[f - 1].next;
	else
		f = ++session->fifos_used; /* cannot run out: there are as many as tasks */
	session->fifo[f - 1] = (struct task_fifo){.queue = queue, .next = *bucket};
	*bucket = f;
	return f;
}

static void fifo_release(struct session *session, uint32_t f)
{
	uint32_t *link = bucket_of(session, session->fifo[f - 1].queue);

	while (*link != f)
		link = &session->fifo[*link - 1].next;
	*link = session->fifo[f - 1].next;
	session->fifo[f - 1].queue = 0;
	session->fifo[f - 1].next = session->fifo_free;
	session->fifo_free = f;
}

void fifo_add(struct session *session, struct task *task, uint32_t queue)
{
	uint16_t slot = (uint16_t)(task - session->task + 1), after;
	struct task_fifo *fifo;

	task->fifo = 0;
	if (!queue)
		return;
	task->fifo = fifo_find_or_make(session, queue);
	fifo = &session->fifo[task->fifo - 1];
	for (after = fifo->tail; after; after = session->task[after - 1].fifo_prev) {
		if (session->task[after - 1].submit_ns <= task->submit_ns)
			break;
		session->work_ns += WORK_STEP_NS;
	}
	task->fifo_prev = after;
	task->fifo_next = after ? session->task[after - 1].fifo_next : fifo->head;
	*(after ? &session->task[after - 1].fifo_next : &fifo->head) = slot;
	*(task->fifo_next ? &session->task[task->fifo_next - 1].fifo_prev : &fifo->tail) = slot;
}

void fifo_remove(struct session *session, struct task *task)
{
	struct task_fifo *fifo;

	if (!task->fifo)
		return;
	fifo = &session->fifo[task->fifo - 1];
	*(task->fifo_prev ? &session->task[task->fifo_prev - 1].fifo_next : &fifo->head) = task->fifo_next;
	*(task->fifo_next ? &session->task[task->fifo_next - 1].fifo_prev : &fifo->tail) = task->fifo_prev;
	if (!fifo->head)
		fifo_release(session, task->fifo);
	task->fifo = 0;
}

struct task *fifo_first(struct session *session, struct task *task)
{
	return task->fifo ? &session->task[session->fifo[task->fifo - 1].head - 1] : task;
}
