/* Records of open devices and completion queues. */
#ifndef MFS_SHIM_DEVICES_H
#define MFS_SHIM_DEVICES_H

#include "records.h"

#define SHIM_DEVICES_MAX 1024 /* devices open at once; further ones pass through */

struct shim_context *shim_context_find(const struct ibv_context *context);
struct shim_context *shim_context_each(unsigned *cursor);
struct shim_cq *shim_cq_find(const struct ibv_cq *cq);
bool shim_cq_add(struct ibv_cq *cq, const struct ibv_context *context, bool channel,
		 struct shim_cq_ex *extended);
/* Hides a completion queue: it is no longer found. Its queue pairs still have the record, which remains
 * until it is put back. */
void shim_cq_hide(struct shim_cq *record);
void shim_cq_show(struct shim_cq *record, struct shim_cq_ex *extended);
void shim_cq_put(struct shim_cq *record);
void shim_context_after_fork(void);

/* Callers hold shim_table_lock. */
struct shim_context *shim_context_get(void);
void shim_context_insert(struct shim_context *c, struct ibv_context *context);
void shim_context_drop(struct shim_context *c);
/* Removes the device's completion queues from the table. `release` is called with the extension of each of
 * them that has one. */
void shim_context_drop_cqs(const struct ibv_context *context, void (*release)(struct shim_cq_ex *));

#endif
