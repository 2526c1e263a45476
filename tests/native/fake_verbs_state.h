/* Shared by the files of the fake device. */
#ifndef FAKE_VERBS_STATE_H
#define FAKE_VERBS_STATE_H

#include "fake_verbs.h"

#include <pthread.h>

struct fake_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	struct ibv_wc current; /* between start_poll and end_poll, which hold the lock */
	pthread_mutex_t lock;
	struct ibv_wc *ring;
	uint32_t head, tail, size;
};

struct pending {
	uint64_t wr_id;
	enum ibv_wr_opcode opcode;
	bool signaled;
};

struct fake_qp {
	struct ibv_qp_ex qpx; /* first: struct ibv_qp */
	pthread_mutex_t lock;
	struct ibv_qp_init_attr attr;
	struct pending *sq;
	uint64_t posted, finished, freed; /* freed: slots given back by polled completions */
	struct fake_record *log;
	unsigned logged;
	int refuse_error;
	unsigned refuse_times, traffic_class, service_level;
	struct ibv_send_wr built[64];
	struct ibv_sge built_sge[64][4];
	unsigned char built_data[64][FAKE_PAYLOAD_MAX];
	unsigned building;
	int build_error;
	struct fake_qp *next;
};

/* fake_verbs.c: under the queue pair's lock */
int fake_post_locked(struct fake_qp *f, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool by_builder);

/* fake_verbs.c: under the completion queue's lock */
bool fake_poll_locked(struct fake_cq *c, struct ibv_wc *wc);

/* fake_verbs_cq_ex.c */
struct ibv_cq_ex *fake_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);

/* fake_verbs_builders.c */
void fake_builders_set(struct ibv_qp_ex *qpx);

#endif
