/* TCP connections of queue pairs. */
#ifndef MFS_SOFT_ROCE_CONNECTION_H
#define MFS_SOFT_ROCE_CONNECTION_H

#include "objects.h"

typedef void mfs_resume(struct mfs_pacer *pacer);

/* `resume` is called to go on sending when the connection's turn on the link begins. Returns NULL on
 * failure; `fd` is then closed. */
struct mfs_connection *mfs_connection_new(struct mfs_context *context, int fd, uint32_t events,
					  mfs_resume *resume);
void mfs_connection_open(struct mfs_qp *qp, mfs_resume *resume);
void mfs_connection_close(struct mfs_connection *connection);
void mfs_connection_close_qp(struct mfs_qp *qp);
void mfs_connection_close_strangers(struct mfs_context *context);
void mfs_connection_free_closed(struct mfs_context *context);
void mfs_connection_drain(struct mfs_connection *connection);
void mfs_connection_update(struct mfs_connection *connection);
void mfs_connection_set_class(struct mfs_connection *connection, uint8_t traffic_class);
void mfs_connection_count(struct mfs_connection *connection, enum mfs_counter direction, uint64_t bytes);
uint32_t mfs_connection_pace(struct mfs_connection *connection, uint32_t wanted_bytes);
void mfs_stranger_add(struct mfs_connection *connection, enum mfs_connection_state state);
void mfs_stranger_remove(struct mfs_connection *connection);

#endif
