/* Queue pairs created by libraries of a given name, which are copies of shim_caller.c under `folder`. */
#ifndef SHIM_CALLERS_H
#define SHIM_CALLERS_H

#include "shim_test.h"

#include <dlfcn.h>

static const char *folder;

static struct ibv_qp *create_by(struct rig *r, const char *library, uint32_t send, uint32_t receive)
{
	struct ibv_qp_init_attr attr = {.send_cq = r->cq, .recv_cq = r->cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = send, .max_recv_wr = receive, .max_send_sge = 1}};
	struct ibv_qp *(*create)(struct ibv_pd *, struct ibv_qp_init_attr *);
	char path[512];
	void *handle;

	snprintf(path, sizeof(path), "%s/%s", folder, library);
	handle = dlopen(path, RTLD_NOW);
	CHECK(handle);
	create = (struct ibv_qp * (*)(struct ibv_pd *, struct ibv_qp_init_attr *)) dlsym(handle, "call_create_qp");
	CHECK(create);
	return create(r->pd, &attr);
}

#endif
