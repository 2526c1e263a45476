/* Receive queues: of one queue pair, or shared. */
#include "receive_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "channel.h"

int mfs_recv_queue_init(struct mfs_recv_queue *queue, uint32_t max_wr, uint32_t max_sge)
{
	queue->limit = max_wr;
	queue->max_sge = max_sge ? max_sge : 1;
	queue->size = mfs_power_of_two(max_wr);
	queue->wqes = calloc(queue->size, sizeof(*queue->wqes));
	queue->sges = calloc((size_t)queue->size * queue->max_sge, sizeof(*queue->sges));
	if (queue->wqes && queue->sges)
		return 0;
	mfs_recv_queue_free(queue);
	return -ENOMEM;
}

void mfs_recv_queue_free(struct mfs_recv_queue *queue)
{
	free(queue->wqes);
	free(queue->sges);
	memset(queue, 0, sizeof(*queue));
}

int mfs_recv_queue_post(struct mfs_recv_queue *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	for (; wr; wr = wr->next) {
		uint32_t slot = queue->tail & (queue->size - 1);
		int ret = 0;

		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > queue->max_sge)
			ret = EINVAL;
		else if (queue->tail - queue->head >= queue->limit)
			ret = ENOMEM;
		if (ret) {
			*bad_wr = wr;
			return ret;
		}
		queue->wqes[slot].wr_id = wr->wr_id;
		queue->wqes[slot].num_sge = (uint32_t)wr->num_sge;
		if (wr->num_sge)
			memcpy(&queue->sges[(size_t)slot * queue->max_sge], wr->sg_list,
			       (size_t)wr->num_sge * sizeof(*wr->sg_list));
		queue->tail++;
	}
	return 0;
}

bool mfs_recv_queue_take(struct mfs_recv_queue *queue, struct mfs_recv_wqe *wqe, struct ibv_sge *sges)
{
	uint32_t slot = queue->head & (queue->size - 1);

	if (queue->head == queue->tail)
		return false;
	*wqe = queue->wqes[slot];
	memcpy(sges, &queue->sges[(size_t)slot * queue->max_sge], wqe->num_sge * sizeof(*sges));
	queue->head++;
	return true;
}

void mfs_srq_check(struct mfs_context *context, struct mfs_srq *srq)
{
	if (!srq->watermark || srq->queue.tail - srq->queue.head >= srq->watermark)
		return;
	srq->watermark = 0; /* one event each time it is set */
	srq->async_events_raised += mfs_async_raise(context, IBV_EVENT_SRQ_LIMIT_REACHED, &srq->verbs.srq);
}
