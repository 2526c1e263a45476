/* Records of open devices and completion queues. */
#ifndef MFS_SHIM_DEVICES_H
#define MFS_SHIM_DEVICES_H

#include "records.h"

#define SHIM_DEVICES_MAX 1024 /* open at once; what is beyond passes through */

struct shim_context *shim_context_find(const struct ibv_context *context);
struct shim_context *shim_context_each(unsigned *cursor);
struct shim_cq *shim_cq_find(const struct ibv_cq *cq);
bool shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel,
		 struct shim_cq_ex *extended);
/* Not found any more; its queue pairs still have the record, which stays until it is put back. */
void shim_cq_hide(struct shim_cq *record);
void shim_cq_show(struct shim_cq *record, struct shim_cq_ex *extended);
void shim_cq_put(struct shim_cq *record);
void shim_context_after_fork(void);

/* Callers hold shim_table_lock. */
struct shim_context *shim_context_get(void);
void shim_context_insert(struct shim_context *c, struct ibv_context *context);
void shim_context_drop(struct shim_context *c);
/* Takes the records of the device's completion queues out of the table; `release` gets what each was extended with. */
void shim_context_drop_cqs(const struct ibv_context *context, void (*release)(struct shim_cq_ex *));

#endif
