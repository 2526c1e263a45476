/* Finds out what a queue pair is for. */
#ifndef MFS_SHIM_CLASSIFY_H
#define MFS_SHIM_CLASSIFY_H

#include "records.h"

uint8_t shim_role_at_create(const char *library, const struct ibv_qp_cap *asked);
bool shim_mooncake_at_create(const char *library);
bool shim_store_at_create(const char *library);
void shim_communicator_at_connect(struct shim_qp *q);
void shim_role_at_post(struct shim_qp *q, const struct ibv_send_wr *wr);
bool shim_classify(struct shim_qp *q);

#endif
