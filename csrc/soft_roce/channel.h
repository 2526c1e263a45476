/* Completion channels and asynchronous events. */
#ifndef MFS_SOFT_ROCE_CHANNEL_H
#define MFS_SOFT_ROCE_CHANNEL_H

#include "objects.h"

int mfs_channel_install(void *libibverbs);
struct mfs_channel *mfs_channel_find(struct mfs_context *context, int read_fd);
void mfs_channel_close_all(struct mfs_context *context);
void mfs_channel_notify(struct mfs_channel *channel, struct mfs_cq *cq);
void mfs_channel_forget(struct mfs_context *context, struct mfs_cq *cq);
uint32_t mfs_async_raise(struct mfs_context *context, enum ibv_event_type type, void *element);
void mfs_async_forget(struct mfs_context *context, const void *element, uint32_t *raised,
		      uint32_t read_before);
void mfs_async_event(struct ibv_context *context, struct ibv_async_event *event);

#endif
