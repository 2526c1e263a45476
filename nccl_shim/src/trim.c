/* Gives memory in which something was held back to the system when nothing has been held for a while. */
#include "trim.h"

#include "hold.h"
#include "owner.h"
#include "pump.h"

#include <sys/mman.h>
#include <unistd.h>

/* Gives the whole pages of slots [from, to) back to the system; they read as zeros from then on. */
static void pages_give_back(char *memory, uint64_t from, uint64_t to)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t first = ((uintptr_t)memory + from + page - 1) & ~(page - 1),
		  last = ((uintptr_t)memory + to) & ~(page - 1);

	if (first < last)
		madvise((void *)first, last - first, MADV_DONTNEED);
}

/* Gives back the memory of a queue pair. While it holds the owner flag, other threads may reserve and fill
 * the next slots, at most cap.max_send_wr of them, so those are kept. Nothing is given back while
 * completions are still to come, since they may name a held copy. Returns false if the queue pair is busy. */
bool shim_trim(struct shim_qp *q)
{
	uint64_t slots = (uint64_t)q->ring_mask + 1, next, first, last;
	bool idle = false;

	if (!shim_owner_try(q))
		return false;
	if (shim_try(&q->polling)) {
		next = atomic_load(&q->wr_posted);
		idle = atomic_load(&q->live) && q->fifo && !atomic_load(&q->broken) &&
		       next == atomic_load(&q->wr_next) &&
		       atomic_load(&q->task_done) == atomic_load(&q->task_formed) &&
		       atomic_load(&q->signal_tail) == atomic_load(&q->signal_head);
		if (idle) {
			first = (next + q->cap.max_send_wr) & q->ring_mask;
			last = next & q->ring_mask;
			pages_give_back((char *)q->fifo, first * q->fifo_stride,
					(first < last ? last : slots) * q->fifo_stride);
			if (first >= last)
				pages_give_back((char *)q->fifo, 0, last * q->fifo_stride);
			pages_give_back((char *)q->tasks, 0, slots * sizeof(struct shim_task));
		}
		shim_release(&q->polling);
	}
	shim_owner_leave(q);
	return idle;
}
