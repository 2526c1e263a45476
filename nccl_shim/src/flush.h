/* Posts what is held now, without permits. */
#ifndef MFS_SHIM_FLUSH_H
#define MFS_SHIM_FLUSH_H

#include "records.h"

void shim_flush(struct shim_qp *q);
void shim_flush_all(void);
void shim_flush_key(const struct shim_context *context, uint32_t lkey);

#endif
