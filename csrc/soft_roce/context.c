/* Opening and closing a device; what it says about itself. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "context.h"

#include "ah.h"
#include "channel.h"
#include "connection.h"
#include "cq.h"
#include "cq_ex.h"
#include "descriptors.h"
#include "library.h"
#include "mr.h"
#include "poll.h"
#include "port.h"
#include "post.h"
#include "progress.h"
#include "qp.h"
#include "qp_state.h"
#include "registry.h"
#include "srq.h"

static int query_device(struct ibv_context *ibv, const struct ibv_query_device_ex_input *input,
			struct ibv_device_attr_ex *attr, size_t attr_size)
{
	struct ibv_device_attr *base = &attr->orig_attr;

	if (input && input->comp_mask)
		return EINVAL;
	memset(attr, 0, attr_size);
	snprintf(base->fw_ver, sizeof(base->fw_ver), "mfs-1");
	base->node_guid = base->sys_image_guid = ibv_get_device_guid(ibv->device);
	base->max_mr_size = UINT64_MAX;
	base->page_size_cap = 0xfffff000;
	base->vendor_id = 0x6d6673; /* "mfs": no vendor has it */
	base->vendor_part_id = 1;
	base->max_qp = MFS_MAX_PORTS * MFS_QPS_PER_PORT;
	base->max_qp_wr = MFS_MAX_QP_WR;
	base->device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
	base->max_sge = base->max_sge_rd = MFS_MAX_SGE;
	base->max_cq = 1 << 16;
	base->max_cqe = MFS_MAX_CQE;
	base->max_mr = MFS_MAX_MR;
	base->max_pd = 1 << 16;
	base->max_ah = MFS_MAX_AH;
	base->max_qp_rd_atom = base->max_qp_init_rd_atom = MFS_MAX_READS;
	base->max_res_rd_atom = base->max_qp * MFS_MAX_READS;
	base->atomic_cap = IBV_ATOMIC_GLOB;
	base->max_srq = 1 << 16;
	base->max_srq_wr = MFS_MAX_SRQ_WR;
	base->max_srq_sge = MFS_MAX_SGE;
	base->max_pkeys = 1;
	base->local_ca_ack_delay = 15;
	base->phys_port_cnt = 1;
	if (attr_size >=
	    offsetof(struct ibv_device_attr_ex, phys_port_cnt_ex) + sizeof(attr->phys_port_cnt_ex))
		attr->phys_port_cnt_ex = 1;
	return 0;
}

static int query_port(struct ibv_context *ibv, uint8_t port, struct ibv_port_attr *attr)
{
	(void)ibv;
	if (port != 1)
		return EINVAL;
	memset(attr, 0, mfs_rdma_core.port_attr_size);
	attr->state = IBV_PORT_ACTIVE;
	attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
	attr->gid_tbl_len = 1;
	attr->pkey_tbl_len = 1;
	attr->port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
	attr->max_msg_sz = MFS_MAX_MESSAGE;
	attr->max_vl_num = 1;
	attr->active_width = 2;  /* 4X */
	attr->active_speed = 32; /* EDR: 100 Gbit/s with 4X */
	attr->phys_state = 5;    /* link up */
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	attr->flags = IBV_QPF_GRH_REQUIRED;
	return 0;
}

static void release(struct mfs_context *context)
{
	for (uint32_t i = 0; i < context->port_count; i++) {
		mfs_descriptor_close(context->ports[i]->source.fd);
		if (context->ports[i]->datagrams.fd >= 0)
			mfs_descriptor_close(context->ports[i]->datagrams.fd);
		free(context->ports[i]);
	}
	if (context->wake.fd >= 0)
		mfs_descriptor_close(context->wake.fd);
	if (context->timer.fd >= 0)
		mfs_descriptor_close(context->timer.fd);
	if (context->epoll_fd >= 0)
		mfs_descriptor_close(context->epoll_fd);
	if (context->async_write_fd >= 0)
		mfs_descriptor_close(context->async_write_fd);
	if (context->moving_write_fd >= 0) {
		mfs_descriptor_close(context->moving_write_fd);
		mfs_descriptor_close(context->moving_read_fd);
	}
	pthread_mutex_destroy(&context->lock);
}

/* Of a context that is zero but for what libibverbs has filled in. */
void mfs_context_init(struct mfs_context *context)
{
	pthread_mutex_init(&context->lock, NULL);
	context->epoll_fd = context->async_write_fd = context->timer.fd = context->wake.fd = -1;
	context->moving_read_fd = context->moving_write_fd = -1;
	LIST_INIT(&context->channels);
	TAILQ_INIT(&context->qps);
	TAILQ_INIT(&context->deferred);
	TAILQ_INIT(&context->timed);
	TAILQ_INIT(&context->strangers);
	TAILQ_INIT(&context->paced);
	TAILQ_INIT(&context->closed);
	context->verbs.context.num_comp_vectors = 1;
	context->forks = mfs_forks;
}

/* Its descriptors, first port and thread. What was opened before a failure `release` gives back. */
int mfs_context_start(struct mfs_context *context)
{
	struct mfs_port *port;
	int async[2], moving[2], ret;

	if (pipe2(async, O_CLOEXEC))
		return -errno;
	context->verbs.context.async_fd = async[0]; /* libibverbs closes it */
	context->async_write_fd = mfs_descriptor_own(async[1]);
	fcntl(async[1], F_SETFL, O_NONBLOCK);
	if (pipe2(moving, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	context->moving_read_fd = mfs_descriptor_own(moving[0]);
	context->moving_write_fd = mfs_descriptor_own(moving[1]);
	context->epoll_fd = mfs_descriptor_own(epoll_create1(EPOLL_CLOEXEC));
	if (context->epoll_fd < 0)
		return -errno;
	ret = mfs_port_open(context, &port);
	return ret ? ret : mfs_progress_start(context);
}

/* Ends what moves and gives back what it held; keys and the context itself stay. */
void mfs_context_stop(struct mfs_context *context)
{
	mfs_progress_stop(context);
	mfs_connection_close_strangers(context);
	mfs_channel_close_all(context);
	release(context);
}

static void free_context(struct ibv_context *ibv)
{
	struct mfs_context *context = mfs_context_of(ibv);

	if (!mfs_context_inherited(context)) {
		mfs_registry_remove(context);
		mfs_context_stop(context);
	}
	mfs_rate_close(&context->rate);
	mfs_counters_close(&context->counters);
	free(context->mrs);
	mfs_rdma_core.uninit_context(&context->verbs);
	free(context);
}

static const struct verbs_context_ops operations = {
	.alloc_pd = mfs_alloc_pd,
	.async_event = mfs_async_event,
	.cq_event = mfs_cq_event,
	.create_ah = mfs_create_ah,
	.create_cq = mfs_create_cq,
	.create_cq_ex = mfs_create_cq_ex,
	.create_qp = mfs_create_qp,
	.create_qp_ex = mfs_create_qp_ex,
	.create_srq = mfs_create_srq,
	.create_srq_ex = mfs_create_srq_ex,
	.dealloc_pd = mfs_dealloc_pd,
	.dereg_mr = mfs_dereg_mr,
	.destroy_ah = mfs_destroy_ah,
	.destroy_cq = mfs_destroy_cq,
	.destroy_qp = mfs_destroy_qp,
	.destroy_srq = mfs_destroy_srq,
	.free_context = free_context,
	.modify_qp = mfs_modify_qp,
	.modify_srq = mfs_modify_srq,
	.poll_cq = mfs_poll_cq,
	.post_recv = mfs_post_recv,
	.post_send = mfs_post_send,
	.post_srq_recv = mfs_post_srq_recv,
	.query_device_ex = query_device,
	.query_port = query_port,
	.query_qp = mfs_query_qp,
	.query_srq = mfs_query_srq,
	.reg_mr = mfs_reg_mr,
	.req_notify_cq = mfs_req_notify_cq,
	.rereg_mr = mfs_rereg_mr,
	.resize_cq = mfs_resize_cq,
};

/* The device's address is its first GID, IPv4-mapped. */
static int read_address(const struct ibv_device *device, struct in_addr *address)
{
	char path[IBV_SYSFS_PATH_MAX + 32], text[64] = "";
	struct in6_addr gid;
	FILE *file;

	snprintf(path, sizeof(path), "%s/ports/1/gids/0", device->ibdev_path);
	file = fopen(path, "re");
	if (!file)
		return -errno;
	if (!fgets(text, sizeof(text), file))
		text[0] = '\0';
	fclose(file);
	text[strcspn(text, "\n")] = '\0';
	if (inet_pton(AF_INET6, text, &gid) != 1 || !IN6_IS_ADDR_V4MAPPED(&gid)) {
		fprintf(stderr, "mfs soft RoCE: %s: '%s' is not an IPv4-mapped GID\n", path, text);
		return -EINVAL;
	}
	memcpy(address, &gid.s6_addr[12], sizeof(*address));
	return 0;
}

static int start(struct mfs_context *context, struct ibv_device *device)
{
	int ret = read_address(device, &context->address);

	if (!ret)
		ret = mfs_rate_open(&context->rate, device->ibdev_path);
	if (!ret)
		ret = mfs_counters_open(&context->counters, device->ibdev_path);
	return ret ? ret : mfs_context_start(context);
}

struct verbs_context *mfs_context_open(struct ibv_device *device, int cmd_fd, void *private_data)
{
	struct mfs_context *context;
	int ret;

	(void)private_data;
	mfs_registry_start();
	context = mfs_rdma_core.alloc_context(device, cmd_fd, sizeof(*context),
					      &((struct mfs_context *)NULL)->verbs, 0);
	if (!context)
		return NULL;
	mfs_context_init(context);
	mfs_rdma_core.set_ops(&context->verbs, &operations);

	ret = start(context, device);
	if (ret) {
		fprintf(stderr, "mfs soft RoCE: cannot open %s: %s\n", device->name, strerror(-ret));
		release(context);
		mfs_rate_close(&context->rate);
		mfs_counters_close(&context->counters);
		mfs_rdma_core.uninit_context(&context->verbs);
		free(context);
		errno = -ret;
		return NULL;
	}
	mfs_registry_add(context);
	return &context->verbs;
}
