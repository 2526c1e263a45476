/* Built as libraries of several names: the caller of ibv_create_qp shows what a queue pair is for. */
#include <infiniband/verbs.h>

__attribute__((visibility("default"))) struct ibv_qp *call_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *volatile qp = ibv_create_qp(pd, attr); /* no tail call: the caller would be the test */

	return qp;
}
