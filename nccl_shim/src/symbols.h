/* The real functions behind ours: libc's dlsym and dlvsym, found without calling either, and those of
 * every copy of libibverbs. */
#ifndef MFS_SHIM_SYMBOLS_H
#define MFS_SHIM_SYMBOLS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

/* One copy of libibverbs. A process may have several, since wheels bring their own. */
struct shim_verbs {
	struct ibv_context *(*open_device)(struct ibv_device *);
	struct ibv_context *(*import_device)(int);
	int (*close_device)(struct ibv_context *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	int (*dereg_mr)(struct ibv_mr *);
	int (*rereg_mr)(struct ibv_mr *, int, struct ibv_pd *, void *, size_t, int);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	struct ibv_qp_ex *(*qp_to_qp_ex)(struct ibv_qp *);
	uint64_t (*get_device_guid)(struct ibv_device *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
};

extern void *(*mfs_real_dlsym)(void *, const char *);
extern void *(*mfs_real_dlvsym)(void *, const char *, const char *);

void mfs_symbols_load(void);
void mfs_symbols_after_fork(void);
const struct shim_verbs *shim_verbs_of_caller(const void *return_address);
const struct shim_verbs *shim_verbs_of_handle(void *handle);
bool shim_symbol_is_ours(const void *address);

#endif
