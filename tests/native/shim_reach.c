/* A program that is not linked with libibverbs: it opens it by name, as NCCL (dlvsym) and TENT (dlsym) do.
 * argv: test, library files. Each copy of the library is used beside the others, and all of them are scheduled. */
#define _GNU_SOURCE
#include "shim_test.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Opens a device of this copy of the library and sends. With this one, `n` copies have done so. */
static void reach(struct daemon *d, const char *file, bool versioned, unsigned n)
{
	void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
#define GET(name) __typeof__(&name) p_##name = versioned ? dlvsym(library, #name, "IBVERBS_1.1") : dlsym(library, #name)
	GET(ibv_get_device_list);
	GET(ibv_open_device);
	GET(ibv_close_device);
	GET(ibv_alloc_pd);
	GET(ibv_create_cq);
	GET(ibv_create_qp);
	GET(ibv_modify_qp);
	GET(ibv_destroy_qp);
	CHECK(p_ibv_open_device && p_ibv_create_qp && p_ibv_modify_qp);
	/* a missing symbol stays missing, with its error */
	dlerror();
	CHECK(!dlsym(library, "ibv_no_such_function") && dlerror());
	CHECK(!dlvsym(library, "ibv_open_device", "IBVERBS_9.9") && dlerror());
	CHECK(dlsym(RTLD_DEFAULT, "printf") == dlsym(RTLD_NEXT, "printf"));
	CHECK(dlsym(RTLD_DEFAULT, "main") == NULL || dlsym(RTLD_NEXT, "main") == NULL);

	struct ibv_context *context = p_ibv_open_device(p_ibv_get_device_list(NULL)[0]);
	struct ibv_pd *pd = p_ibv_alloc_pd(context);
	struct ibv_cq *cq = p_ibv_create_cq(context, 64, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 16, .max_send_sge = 1}};
	struct ibv_qp *qp = p_ibv_create_qp(pd, &attr);
	struct ibv_qp_attr state = {.qp_state = IBV_QPS_RTS};
	struct ibv_sge sge = {.addr = 4096, .length = 8};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;

	CHECK(p_ibv_modify_qp(qp, &state, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	WAIT(daemon_counts(d).submitted == n);
	dlclose(library); /* it stays: the shim still has something to post through it */
	daemon_grant(d, 1);
	WAIT(daemon_segment(d)->report.permits == n);
	CHECK(p_ibv_destroy_qp(qp) == 0);
	CHECK(p_ibv_close_device(context) == 0);
}

int main(int argc, char **argv)
{
	struct daemon_options options = {
		.path = getenv("MFS_SOCKET"), .mode = MFS_MODE_ENFORCE, .gate = 1u << MFS_STAGE_P2D, .rules_count = 1,
		.rules = {{.action = MFS_RULE_HOLD, .stage = MFS_STAGE_P2D, .dscp = MFS_DSCP_KEEP}}};
	struct daemon *d = daemon_start(&options);

	CHECK(argc >= 3);
	for (int i = 2; i < argc; i++)
		reach(d, argv[i], !strcmp(argv[1], "dlvsym"), (unsigned)i - 1);
	return 0;
}
