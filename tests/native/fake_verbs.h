/* A verbs library with a device that sends nothing: it records what is posted and completes it when the
 * test asks for that.
 *
 * It keeps the rules that callers rely on: states, slots (ENOMEM), one completion for each signaled work
 * request, and flushed completions for everything after an error. Errors in which real providers differ
 * are fixed to one choice here. */
#ifndef FAKE_VERBS_H
#define FAKE_VERBS_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

#define FAKE_PAYLOAD_MAX 64

struct fake_record {
	uint64_t wr_id;
	uint32_t opcode, send_flags, num_sge, imm_data;
	uint64_t remote_addr, compare_add, swap;
	uint32_t rkey;
	struct ibv_sge sge[4];
	uint64_t inline_bytes;
	unsigned char payload[FAKE_PAYLOAD_MAX];
	bool by_builder;
};

/* What has been posted to the queue pair so far; only the first 4096 are kept. */
const struct fake_record *fake_log(struct ibv_qp *qp, unsigned *count);
unsigned fake_outstanding(struct ibv_qp *qp);
unsigned fake_complete(struct ibv_qp *qp, unsigned n); /* returns how many it completed */
void fake_complete_at_once(bool yes);		       /* every post completes immediately */
void fake_refuse_posts(struct ibv_qp *qp, int error, unsigned times);
void fake_raise(struct ibv_context *context, struct ibv_qp *qp, enum ibv_event_type type);
void fake_fail(struct ibv_qp *qp); /* the device moves it to the error state by itself */
unsigned fake_cq_pending(struct ibv_cq *cq);
uint64_t fake_posted(struct ibv_qp *qp); /* since creation or RESET */
unsigned fake_traffic_class(struct ibv_qp *qp);
unsigned fake_service_level(struct ibv_qp *qp);
unsigned fake_cq_overruns(void);
extern void (*fake_observer)(struct ibv_qp *qp, const struct ibv_send_wr *wr);

#endif
