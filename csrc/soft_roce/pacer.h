/* Turns on a link of limited rate. */
#ifndef MFS_SOFT_ROCE_PACER_H
#define MFS_SOFT_ROCE_PACER_H

#include "objects.h"

uint32_t mfs_pacer_credit(struct mfs_context *context, struct mfs_pacer *pacer, uint32_t turn_bytes);
void mfs_pacer_spend(struct mfs_pacer *pacer, uint32_t bytes);
void mfs_pacer_stop(struct mfs_context *context, struct mfs_pacer *pacer);
void mfs_pacers_run(struct mfs_context *context, uint64_t now_ns);

#endif
