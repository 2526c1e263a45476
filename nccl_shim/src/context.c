/* The operations that we patch in each open device.
 *
 * ibv_post_send and ibv_poll_cq are inline calls through context->ops, so every open device has its own table to
 * patch; create_qp_ex is called through struct verbs_context in the same way. Each field is patched separately
 * and only once: a provider may fill its table in several steps, and several libraries may open the same device.
 *
 * post_recv remains the provider's: receives put no bytes on the wire, need no permit and have no order with
 * sends. */
#include "context.h"

#include "cq_ex.h"
#include "devices.h"
#include "lifecycle.h"
#include "log.h"
#include "mark.h"
#include "metadata.h"
#include "poll.h"
#include "post.h"
#include "qp.h"
#include "symbols.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_qp *create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr)
{
	struct shim_context *c = shim_context_find(context);
	const void *caller = __builtin_extract_return_addr(__builtin_return_address(0));
	const struct ibv_qp_cap asked = attr->cap;
	struct ibv_qp *qp = c->create_qp_ex(context, attr);

	if (qp) /* the first fields of both attribute structures are the same */
		shim_qp_add(qp, (const struct ibv_qp_init_attr *)attr, &asked,
			    attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? attr->send_ops_flags : 0,
			    caller);
	return qp;
}

static void release(struct shim_cq_ex *extended)
{
	shim_cq_ex_unpatch(extended);
	free(extended);
}

/* Always asks for the queue pair number in completions, since it tells to which queue pair a completion belongs. */
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	struct shim_context *c = shim_context_find(context);
	struct ibv_cq_init_attr_ex asked = *attr;
	struct shim_cq_ex *extended = NULL;
	struct ibv_cq_ex *ex;

	if (c->inherited)
		return c->create_cq_ex(context, attr);
	asked.wc_flags |= IBV_WC_EX_WITH_QP_NUM;
	ex = c->create_cq_ex(context, &asked);
	if (!ex)
		return c->create_cq_ex(context, attr); /* the caller gets the provider's own error */
	extended = shim_cq_ex_patch(ex);
	if (extended && !shim_cq_add(ibv_cq_ex_to_cq(ex), context, attr->channel != NULL, extended))
		release(extended);
	return ex;
}

static struct ibv_pd *alloc_parent_domain(struct ibv_context *context,
					  struct ibv_parent_domain_init_attr *attr)
{
	struct shim_context *c = shim_context_find(context);

	if (attr->td)
		c->single_threaded = true;
	return c->alloc_parent_domain(context, attr);
}

static uint64_t port_rate_bytes_per_s(struct ibv_context *context, const struct shim_verbs *verbs)
{
	static const struct {
		uint8_t code;
		uint32_t mbit_per_s;
	} speeds[] = {{1, 2500},   {2, 5000},   {4, 10000},  {8, 10000},
		      {16, 14000}, {32, 25000}, {64, 50000}, {128, 100000}};
	struct verbs_context *v = verbs_get_ctx_op(context, query_port);
	struct ibv_port_attr attr;
	uint64_t lanes;

	memset(&attr, 0, sizeof(attr));
	if (v ? v->query_port(context, 1, &attr, sizeof(attr))
	      : !verbs->query_port || verbs->query_port(context, 1, &attr))
		return 0;
	lanes = attr.active_width == 1    ? 1
		: attr.active_width == 2  ? 4
		: attr.active_width == 4  ? 8
		: attr.active_width == 8  ? 12
		: attr.active_width == 16 ? 2
					  : 0;
	for (unsigned i = 0; i < sizeof(speeds) / sizeof(speeds[0]); i++)
		if (speeds[i].code == attr.active_speed)
			return lanes * speeds[i].mbit_per_s * 125000;
	return 0;
}

void shim_context_patch(struct ibv_context *context, const struct shim_verbs *verbs)
{
	const char *single = getenv("MLX5_SINGLE_THREADED");
	struct verbs_context *v;
	struct shim_context *c;

	if (context->ops.post_send == shim_post_send || (shim_marking() && shim_context_find(context)))
		return; /* opened by another copy of libibverbs that shares this object */
	pthread_mutex_lock(&shim_table_lock);
	c = shim_context_get();
	if (!c) {
		pthread_mutex_unlock(&shim_table_lock);
		shim_log(SHIM_REASON_MEMORY, "more than %d devices open: the later ones pass through",
			 SHIM_DEVICES_MAX);
		return;
	}
	c->verbs = verbs;
	c->poll_cq = context->ops.poll_cq;
	c->post_send = context->ops.post_send;
	c->bind_mw = context->ops.bind_mw;
	c->create_qp_ex = NULL;
	c->create_cq_ex = NULL;
	c->alloc_parent_domain = NULL;
	c->single_threaded = single && !strcmp(single, "1");
	c->inherited = false;
	c->nic = -1;
	c->unanswered = false;
	c->lane = shim_lane_now();
	shim_context_insert(c, context);
	if (!shim_marking()) {
		context->ops.poll_cq = shim_poll_cq;
		context->ops.post_send = shim_post_send;
		if (c->bind_mw)
			context->ops.bind_mw = shim_bind_mw;
	}
	v = verbs_get_ctx_op(context, create_qp_ex);
	if (v) {
		c->create_qp_ex = v->create_qp_ex;
		v->create_qp_ex = create_qp_ex;
	}
	v = shim_marking() ? NULL : verbs_get_ctx_op(context, create_cq_ex);
	if (v) {
		c->create_cq_ex = v->create_cq_ex;
		v->create_cq_ex = create_cq_ex;
	}
	v = shim_marking() ? NULL : verbs_get_ctx_op(context, alloc_parent_domain);
	if (v) {
		c->alloc_parent_domain = v->alloc_parent_domain;
		v->alloc_parent_domain = alloc_parent_domain;
	}
	pthread_mutex_unlock(&shim_table_lock);

	snprintf(c->name, sizeof(c->name), "%.31s", context->device ? context->device->name : "");
	c->guid = verbs->get_device_guid && context->device ? verbs->get_device_guid(context->device) : 0;
	c->rate_bytes_per_s = port_rate_bytes_per_s(context, verbs);
	shim_start(c);
}

void shim_context_remove(struct ibv_context *context)
{
	struct shim_context *c = shim_context_find(context);

	if (!c)
		return;
	shim_qp_forget_context(c);
	pthread_mutex_lock(&shim_table_lock);
	shim_context_drop_cqs(context, release);
	/* so that a device that refuses to close goes on without us */
	context->ops.poll_cq = c->poll_cq;
	context->ops.post_send = c->post_send;
	context->ops.bind_mw = c->bind_mw;
	if (c->create_qp_ex)
		verbs_get_ctx(context)->create_qp_ex = c->create_qp_ex;
	if (c->create_cq_ex)
		verbs_get_ctx(context)->create_cq_ex = c->create_cq_ex;
	if (c->alloc_parent_domain)
		verbs_get_ctx(context)->alloc_parent_domain = c->alloc_parent_domain;
	shim_context_drop(c);
	pthread_mutex_unlock(&shim_table_lock);
}
