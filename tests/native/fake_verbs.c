#define _GNU_SOURCE
#include "fake_verbs_state.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_reg_mr
#undef ibv_query_port

#define LOG_MAX 4096
#define EXPORT __attribute__((visibility("default")))

struct fake_context {
	struct verbs_context v;
	int events[2];
};

EXPORT void (*fake_observer)(struct ibv_qp *qp, const struct ibv_send_wr *wr);
static struct ibv_device device = {.name = "fake0", .dev_name = "uverbs0", .node_type = IBV_NODE_CA,
				   .transport_type = IBV_TRANSPORT_IB};
static struct fake_qp *all_qps;
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t numbers = 0x100, keys = 1, overruns;
static _Atomic int at_once;

static struct fake_context *context_of(struct ibv_context *context)
{
	return (struct fake_context *)((char *)context - offsetof(struct verbs_context, context));
}

/* ---- completions ------------------------------------------------------------------------------------------------- */

static enum ibv_wc_opcode opcode_of(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	default:
		return IBV_WC_SEND;
	}
}

/* vendor_err carries the number of slots that the completion gives back, for when it is polled */
static void complete_one(struct fake_qp *f, enum ibv_wc_status status)
{
	struct pending *p = &f->sq[f->finished % f->attr.cap.max_send_wr];
	struct fake_cq *cq = (struct fake_cq *)f->attr.send_cq;

	f->finished++;
	if (!p->signaled && status == IBV_WC_SUCCESS)
		return;
	pthread_mutex_lock(&cq->lock);
	if (cq->head - cq->tail == cq->size) {
		atomic_fetch_add(&overruns, 1);
	} else {
		cq->ring[cq->head++ % cq->size] = (struct ibv_wc){
			.wr_id = p->wr_id,
			.status = status,
			.opcode = status == IBV_WC_SUCCESS ? opcode_of(p->opcode) : 0x55,
			.qp_num = f->qpx.qp_base.qp_num,
			.vendor_err = (uint32_t)f->finished,
		};
	}
	pthread_mutex_unlock(&cq->lock);
}

bool fake_poll_locked(struct fake_cq *c, struct ibv_wc *wc)
{
	if (c->tail == c->head)
		return false;
	*wc = c->ring[c->tail++ % c->size];
	pthread_mutex_lock(&all_lock);
	for (struct fake_qp *f = all_qps; f; f = f->next)
		if (f->qpx.qp_base.qp_num == wc->qp_num)
			__atomic_store_n(&f->freed, wc->vendor_err, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&all_lock);
	wc->vendor_err = 0;
	return true;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct fake_cq *c = (struct fake_cq *)cq;
	int taken = 0;

	pthread_mutex_lock(&c->lock);
	while (taken < n && fake_poll_locked(c, &wc[taken]))
		taken++;
	pthread_mutex_unlock(&c->lock);
	return taken;
}

EXPORT unsigned fake_complete(struct ibv_qp *qp, unsigned n)
{
	struct fake_qp *f = (struct fake_qp *)qp;
	unsigned done = 0;

	pthread_mutex_lock(&f->lock);
	for (; done < n && f->finished != f->posted; done++)
		complete_one(f, IBV_WC_SUCCESS);
	pthread_mutex_unlock(&f->lock);
	return done;
}

/* ---- posting ------------------------------------------------------------------------------------------------------ */

static void record(struct fake_qp *f, const struct ibv_send_wr *wr, bool by_builder)
{
	struct fake_record *r = &f->log[f->logged];

	if (f->logged == LOG_MAX)
		return;
	f->logged++;
	*r = (struct fake_record){.wr_id = wr->wr_id, .opcode = wr->opcode, .send_flags = wr->send_flags,
				  .num_sge = (uint32_t)wr->num_sge, .imm_data = wr->imm_data, .by_builder = by_builder};
	if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		r->remote_addr = wr->wr.atomic.remote_addr;
		r->rkey = wr->wr.atomic.rkey;
		r->compare_add = wr->wr.atomic.compare_add;
		r->swap = wr->wr.atomic.swap;
	} else {
		r->remote_addr = wr->wr.rdma.remote_addr;
		r->rkey = wr->wr.rdma.rkey;
	}
	for (int i = 0; i < wr->num_sge && i < 4; i++) {
		r->sge[i] = wr->sg_list[i];
		if (wr->send_flags & IBV_SEND_INLINE && r->inline_bytes + wr->sg_list[i].length <= FAKE_PAYLOAD_MAX) {
			memcpy(r->payload + r->inline_bytes, (void *)(uintptr_t)wr->sg_list[i].addr,
			       wr->sg_list[i].length);
			r->inline_bytes += wr->sg_list[i].length;
		}
	}
}

int fake_post_locked(struct fake_qp *f, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool by_builder)
{
	enum ibv_qp_state state = f->qpx.qp_base.state;

	for (; wr; wr = wr->next) {
		uint64_t inline_bytes = 0;
		int error = 0;

		for (int i = 0; i < wr->num_sge; i++)
			inline_bytes += wr->send_flags & IBV_SEND_INLINE ? wr->sg_list[i].length : 0;
		if (f->refuse_times) {
			f->refuse_times--;
			error = f->refuse_error;
		} else if (state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_ERR) {
			error = EINVAL;
		} else if (wr->opcode > IBV_WR_ATOMIC_FETCH_AND_ADD) {
			error = EOPNOTSUPP;
		} else if (wr->num_sge < 0 || (uint32_t)wr->num_sge > f->attr.cap.max_send_sge) {
			error = E2BIG;
		} else if (inline_bytes > f->attr.cap.max_inline_data) {
			error = EMSGSIZE;
		} else if (f->posted - __atomic_load_n(&f->freed, __ATOMIC_ACQUIRE) >= f->attr.cap.max_send_wr) {
			error = ENOMEM;
		}
		if (error) {
			*bad = wr;
			return error;
		}
		if (fake_observer)
			fake_observer(&f->qpx.qp_base, wr);
		record(f, wr, by_builder);
		f->sq[f->posted++ % f->attr.cap.max_send_wr] = (struct pending){
			wr->wr_id, wr->opcode, f->attr.sq_sig_all || wr->send_flags & IBV_SEND_SIGNALED};
		if (state == IBV_QPS_ERR)
			complete_one(f, IBV_WC_WR_FLUSH_ERR);
		else if (at_once)
			complete_one(f, IBV_WC_SUCCESS);
	}
	return 0;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *f = (struct fake_qp *)qp;
	int rc;

	pthread_mutex_lock(&f->lock);
	rc = fake_post_locked(f, wr, bad, false);
	pthread_mutex_unlock(&f->lock);
	return rc;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	(void)qp, (void)wr, (void)bad;
	return 0;
}

/* ---- objects -------------------------------------------------------------------------------------------------------- */

static struct ibv_qp *new_qp(struct ibv_context *context, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct fake_qp *f = calloc(1, sizeof(*f));
	pthread_mutexattr_t recursive;

	attr->cap.max_inline_data = attr->cap.max_inline_data > FAKE_PAYLOAD_MAX ? FAKE_PAYLOAD_MAX
										   : attr->cap.max_inline_data;
	f->attr = *attr;
	f->sq = calloc(attr->cap.max_send_wr, sizeof(*f->sq));
	f->log = calloc(LOG_MAX, sizeof(*f->log));
	/* recursive: the state may be changed while a batch is built, and this device builds under its
	 * lock */
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&f->lock, &recursive);
	pthread_mutexattr_destroy(&recursive);
	f->qpx.qp_base = (struct ibv_qp){.context = context, .pd = pd, .qp_num = atomic_fetch_add(&numbers, 1),
					 .qp_type = attr->qp_type, .send_cq = attr->send_cq,
					 .recv_cq = attr->recv_cq, .state = IBV_QPS_RESET};
	pthread_mutex_lock(&all_lock);
	f->next = all_qps;
	all_qps = f;
	pthread_mutex_unlock(&all_lock);
	return &f->qpx.qp_base;
}

EXPORT struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return new_qp(pd->context, pd, attr);
}

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct ibv_qp *qp = new_qp(context, attr->pd, (struct ibv_qp_init_attr *)attr);
	struct ibv_qp_ex *x = (struct ibv_qp_ex *)qp;

	if (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		fake_builders_set(x);
	return qp;
}

EXPORT struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return (struct ibv_qp_ex *)qp;
}

EXPORT int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *f = (struct fake_qp *)qp;

	pthread_mutex_lock(&f->lock);
	if (mask & IBV_QP_AV)
		f->traffic_class = attr->ah_attr.grh.traffic_class, f->service_level = attr->ah_attr.sl;
	if (mask & IBV_QP_STATE) {
		qp->state = attr->qp_state;
		if (attr->qp_state == IBV_QPS_ERR)
			while (f->finished != f->posted)
				complete_one(f, IBV_WC_WR_FLUSH_ERR);
		if (attr->qp_state == IBV_QPS_RESET)
			f->posted = f->finished = f->freed = 0;
	}
	pthread_mutex_unlock(&f->lock);
	return 0;
}

EXPORT int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct fake_qp *f = (struct fake_qp *)qp, **link = &all_qps;

	pthread_mutex_lock(&all_lock);
	while (*link != f)
		link = &(*link)->next;
	*link = f->next;
	pthread_mutex_unlock(&all_lock);
	free(f->log);
	free(f->sq);
	memset(f, 0xee, sizeof(*f)); /* so that a thread that posts to it now crashes */
	free(f);
	return 0;
}

EXPORT struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
				    struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *c = calloc(1, sizeof(*c));

	(void)vector;
	c->cq.context = context;
	c->cq.cq_context = cq_context;
	c->cq.channel = channel;
	c->cq.cqe = cqe;
	c->size = (uint32_t)cqe;
	c->ring = calloc(c->size, sizeof(*c->ring));
	pthread_mutex_init(&c->lock, NULL);
	return &c->cq;
}

EXPORT int ibv_destroy_cq(struct ibv_cq *cq)
{
	bool used = false;

	pthread_mutex_lock(&all_lock);
	for (struct fake_qp *f = all_qps; f; f = f->next)
		used |= f->attr.send_cq == cq || f->attr.recv_cq == cq;
	pthread_mutex_unlock(&all_lock);
	if (used)
		return EBUSY;
	free(((struct fake_cq *)cq)->ring);
	free(cq);
	return 0;
}

EXPORT struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

EXPORT int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

EXPORT struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	(void)access;
	*mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = length,
			      .lkey = atomic_fetch_add(&keys, 1)};
	return mr;
}

EXPORT int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

EXPORT int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	(void)flags, (void)pd, (void)access;
	mr->addr = addr;
	mr->length = length;
	return 0;
}

/* ---- the device ------------------------------------------------------------------------------------------------------ */

EXPORT struct ibv_device **ibv_get_device_list(int *n)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	list[0] = &device;
	if (n)
		*n = 1;
	return list;
}

EXPORT void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

EXPORT const char *ibv_get_device_name(struct ibv_device *d)
{
	return d->name;
}

EXPORT __be64 ibv_get_device_guid(struct ibv_device *d)
{
	(void)d;
	return 0x1234;
}

EXPORT int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr *a = (struct ibv_port_attr *)attr;

	(void)context, (void)port;
	a->active_width = getenv("FAKE_SLOW_PORT") ? 1 : 2;
	a->active_speed = getenv("FAKE_SLOW_PORT") ? 1 : 32; /* 2.5 Gbit/s, or 100 */
	a->link_layer = getenv("FAKE_INFINIBAND") ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
	return 0;
}

EXPORT struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	struct fake_context *c = calloc(1, sizeof(*c));

	c->v.sz = sizeof(c->v);
	c->v.create_qp_ex = create_qp_ex;
	c->v.create_cq_ex = fake_create_cq_ex;
	c->v.context.device = d;
	c->v.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	c->v.context.ops.post_send = post_send;
	c->v.context.ops.post_recv = post_recv;
	c->v.context.ops.poll_cq = poll_cq;
	if (pipe(c->events)) {
		free(c);
		return NULL;
	}
	return &c->v.context;
}

EXPORT int ibv_close_device(struct ibv_context *context)
{
	struct fake_context *c = context_of(context);

	close(c->events[0]);
	close(c->events[1]);
	free(c);
	return 0;
}

EXPORT int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	return read(context_of(context)->events[0], event, sizeof(*event)) == sizeof(*event) ? 0 : -1;
}

/* ---- control --------------------------------------------------------------------------------------------------------- */

EXPORT const struct fake_record *fake_log(struct ibv_qp *qp, unsigned *count)
{
	struct fake_qp *f = (struct fake_qp *)qp;

	pthread_mutex_lock(&f->lock);
	*count = f->logged;
	pthread_mutex_unlock(&f->lock);
	return f->log;
}

EXPORT unsigned fake_outstanding(struct ibv_qp *qp)
{
	struct fake_qp *f = (struct fake_qp *)qp;
	unsigned n;

	pthread_mutex_lock(&f->lock);
	n = (unsigned)(f->posted - f->finished);
	pthread_mutex_unlock(&f->lock);
	return n;
}

EXPORT void fake_complete_at_once(bool yes)
{
	at_once = yes;
}

EXPORT void fake_refuse_posts(struct ibv_qp *qp, int error, unsigned times)
{
	struct fake_qp *f = (struct fake_qp *)qp;

	pthread_mutex_lock(&f->lock);
	f->refuse_error = error;
	f->refuse_times = times;
	pthread_mutex_unlock(&f->lock);
}

EXPORT void fake_raise(struct ibv_context *context, struct ibv_qp *qp, enum ibv_event_type type)
{
	struct ibv_async_event event = {.element.qp = qp, .event_type = type};

	if (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_ACCESS_ERR)
		qp->state = IBV_QPS_ERR;
	if (write(context_of(context)->events[1], &event, sizeof(event)) != sizeof(event))
		abort();
}

EXPORT void fake_fail(struct ibv_qp *qp)
{
	struct fake_qp *f = (struct fake_qp *)qp;

	pthread_mutex_lock(&f->lock);
	qp->state = IBV_QPS_ERR;
	while (f->finished != f->posted)
		complete_one(f, IBV_WC_WR_FLUSH_ERR);
	pthread_mutex_unlock(&f->lock);
}

EXPORT unsigned fake_cq_pending(struct ibv_cq *cq)
{
	struct fake_cq *c = (struct fake_cq *)cq;
	unsigned n;

	pthread_mutex_lock(&c->lock);
	n = c->head - c->tail;
	pthread_mutex_unlock(&c->lock);
	return n;
}

EXPORT uint64_t fake_posted(struct ibv_qp *qp)
{
	struct fake_qp *f = (struct fake_qp *)qp;
	uint64_t n;

	pthread_mutex_lock(&f->lock);
	n = f->posted;
	pthread_mutex_unlock(&f->lock);
	return n;
}

EXPORT unsigned fake_traffic_class(struct ibv_qp *qp)
{
	return ((struct fake_qp *)qp)->traffic_class;
}

EXPORT unsigned fake_service_level(struct ibv_qp *qp)
{
	return ((struct fake_qp *)qp)->service_level;
}

EXPORT unsigned fake_cq_overruns(void)
{
	return overruns;
}
