/* The answering half of a queue pair. */
#ifndef MFS_SOFT_ROCE_RESPONDER_H
#define MFS_SOFT_ROCE_RESPONDER_H

#include "objects.h"

void mfs_responder_send(struct mfs_connection *connection);
enum mfs_verdict mfs_responder_frame(struct mfs_connection *connection);
enum mfs_verdict mfs_responder_payload_done(struct mfs_connection *connection);
enum mfs_verdict mfs_responder_revalidate(struct mfs_connection *connection);
void mfs_responder_batch_done(struct mfs_connection *connection);
void mfs_responder_lost(struct mfs_connection *connection);
void mfs_responder_resume(struct mfs_pacer *pacer);

#endif
