/* Built as libraries of several names: the caller of ibv_create_qp tells what a queue pair is for. */
#include <infiniband/verbs.h>

__attribute__((visibility("default"))) struct ibv_qp *call_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp *volatile qp = ibv_create_qp(pd, attr); /* not as a tail call: the caller would be ours */

	return qp;
}
