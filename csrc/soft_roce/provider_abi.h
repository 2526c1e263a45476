/*
 * The part of rdma-core's private provider ABI that this provider relies on.
 *
 * No distribution installs rdma-core's provider header, so this file states the layouts in its own words.
 * They are those of private ABI 34, which rdma-core 36 to 56 use (Debian 12 and 13, Ubuntu 22.04 and
 * 24.04). libibverbs loads a file named libmfs-rdmav<ABI>.so, so a libibverbs with another private ABI
 * never loads this provider, and the launcher says so. The asserts check the offsets that libibverbs
 * reads.
 */
#ifndef MFS_SOFT_ROCE_PROVIDER_ABI_H
#define MFS_SOFT_ROCE_PROVIDER_ABI_H

#include <assert.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define MFS_PRIVATE_ABI "IBVERBS_PRIVATE_34"

struct verbs_list_node {
	struct verbs_list_node *next, *prev;
};

enum { VERBS_MATCH_BY_MODALIAS = 2 };

struct verbs_match_ent {
	void *driver_data;
	const char *modalias;
	uint16_t vendor;
	uint16_t device;
	uint8_t kind;
};

/* What libibverbs found in sysfs about one device. */
struct verbs_sysfs_dev {
	struct verbs_list_node entry;
	void *provider_data;
	const struct verbs_match_ent *match;
	unsigned int flags;
	char sysfs_name[IBV_SYSFS_NAME_MAX];
	dev_t sysfs_cdev;
	char ibdev_name[IBV_SYSFS_NAME_MAX];
	char ibdev_path[IBV_SYSFS_PATH_MAX];
};

struct verbs_device_ops {
	const char *name;
	uint32_t match_min_abi_version;
	uint32_t match_max_abi_version;
	const struct verbs_match_ent *match_table;
	const struct verbs_device_ops **static_providers;
	bool (*match_device)(struct verbs_sysfs_dev *sysfs_dev);
	struct verbs_context *(*alloc_context)(struct ibv_device *device, int cmd_fd, void *private_data);
	struct verbs_context *(*import_context)(struct ibv_device *device, int cmd_fd);
	struct verbs_device *(*alloc_device)(struct verbs_sysfs_dev *sysfs_dev);
	void (*uninit_device)(struct verbs_device *device);
};

struct verbs_device {
	struct ibv_device device;
	const struct verbs_device_ops *ops;
	int refcount;
	struct verbs_list_node entry;
	struct verbs_sysfs_dev *sysfs;
	uint64_t core_support;
};

struct verbs_mr {
	struct ibv_mr ibv_mr;
	int mr_type; /* 0: plain memory */
	int access;
};

struct verbs_srq {
	struct ibv_srq srq;
	enum ibv_srq_type srq_type;
	void *xrcd;
	struct ibv_cq *cq;
	uint32_t srq_num;
};

enum { VERBS_QP_HAS_EX = 1 << 1 };

/*
 * What libibverbs reads after ibv_qp_ex is the only layout that changed within ABI 34: a mask follows the
 * operations, of which rdma-core 44 added one and 46 another. So the mask is stored at all three places.
 * It overlays the new operations, but these are not offered and so never called.
 */
enum { VERBS_QP_MASK_PLACES = 3 };

struct verbs_qp_mask {
	uint32_t comp_mask;
	uint32_t padding;
};

struct verbs_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex qp_ex;
		struct {
			uint8_t operations[offsetof(struct ibv_qp_ex, wr_abort) + sizeof(void *)];
			struct verbs_qp_mask masks[VERBS_QP_MASK_PLACES];
		};
	};
	void *xrcd;
};

struct verbs_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex cq_ex;
	};
};

/* Untyped operations are not provided: libibverbs keeps its own "not supported" answer for them. */
struct verbs_context_ops {
	void *advise_mr, *alloc_dm, *alloc_mw, *alloc_null_mr, *alloc_parent_domain;
	struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
	void *alloc_td;
	void (*async_event)(struct ibv_context *context, struct ibv_async_event *event);
	void *attach_counters_point_flow, *attach_mcast, *bind_mw, *close_xrcd;
	void (*cq_event)(struct ibv_cq *cq);
	struct ibv_ah *(*create_ah)(struct ibv_pd *pd, struct ibv_ah_attr *attr);
	void *create_counters;
	struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, struct ibv_comp_channel *channel,
				    int comp_vector);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr);
	void *create_flow, *create_flow_action_esp;
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	struct ibv_qp *(*create_qp_ex)(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr);
	void *create_rwq_ind_table;
	struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
	struct ibv_srq *(*create_srq_ex)(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr);
	void *create_wq, *dealloc_mw;
	int (*dealloc_pd)(struct ibv_pd *pd);
	void *dealloc_td;
	int (*dereg_mr)(struct verbs_mr *mr);
	int (*destroy_ah)(struct ibv_ah *ah);
	void *destroy_counters;
	int (*destroy_cq)(struct ibv_cq *cq);
	void *destroy_flow, *destroy_flow_action;
	int (*destroy_qp)(struct ibv_qp *qp);
	void *destroy_rwq_ind_table;
	int (*destroy_srq)(struct ibv_srq *srq);
	void *destroy_wq, *detach_mcast;
	void (*free_context)(struct ibv_context *context);
	void *free_dm, *get_srq_num, *import_dm, *import_mr, *import_pd, *modify_cq, *modify_flow_action_esp;
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
	void *modify_qp_rate_limit;
	int (*modify_srq)(struct ibv_srq *srq, struct ibv_srq_attr *attr, int attr_mask);
	void *modify_wq, *open_qp, *open_xrcd;
	int (*poll_cq)(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
	int (*post_recv)(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
	void *post_srq_ops;
	int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
	int (*query_device_ex)(struct ibv_context *context, const struct ibv_query_device_ex_input *input,
			       struct ibv_device_attr_ex *attr, size_t attr_size);
	void *query_ece;
	int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
	int (*query_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
			struct ibv_qp_init_attr *init_attr);
	void *query_qp_data_in_order, *query_rt_values;
	int (*query_srq)(struct ibv_srq *srq, struct ibv_srq_attr *attr);
	void *read_counters, *reg_dm_mr, *reg_dmabuf_mr;
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*rereg_mr)(struct verbs_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length,
			int access);
	int (*resize_cq)(struct ibv_cq *cq, int cqe);
	void *set_ece, *unimport_dm, *unimport_mr, *unimport_pd;
};

#define MFS_ASSERT_SLOT(member, slot) \
	static_assert(offsetof(struct verbs_context_ops, member) == (slot) * sizeof(void *), #member)
static_assert(sizeof(struct verbs_context_ops) == 76 * sizeof(void *), "operation table of private ABI 34");
MFS_ASSERT_SLOT(alloc_pd, 5);
MFS_ASSERT_SLOT(async_event, 7);
MFS_ASSERT_SLOT(cq_event, 12);
MFS_ASSERT_SLOT(create_ah, 13);
MFS_ASSERT_SLOT(create_cq, 15);
MFS_ASSERT_SLOT(create_qp, 19);
MFS_ASSERT_SLOT(create_srq, 22);
MFS_ASSERT_SLOT(dealloc_pd, 26);
MFS_ASSERT_SLOT(dereg_mr, 28);
MFS_ASSERT_SLOT(destroy_ah, 29);
MFS_ASSERT_SLOT(destroy_cq, 31);
MFS_ASSERT_SLOT(destroy_qp, 34);
MFS_ASSERT_SLOT(destroy_srq, 36);
MFS_ASSERT_SLOT(free_context, 39);
MFS_ASSERT_SLOT(modify_qp, 47);
MFS_ASSERT_SLOT(modify_srq, 49);
MFS_ASSERT_SLOT(poll_cq, 53);
MFS_ASSERT_SLOT(post_send, 55);
MFS_ASSERT_SLOT(post_srq_recv, 57);
MFS_ASSERT_SLOT(query_device_ex, 58);
MFS_ASSERT_SLOT(query_qp, 61);
MFS_ASSERT_SLOT(query_srq, 64);
MFS_ASSERT_SLOT(reg_mr, 68);
MFS_ASSERT_SLOT(resize_cq, 71);
#undef MFS_ASSERT_SLOT

static_assert(offsetof(struct ibv_qp_ex, qp_base) == 0,
	      "queue pair and extended queue pair share their start");
static_assert(offsetof(struct verbs_device, ops) == sizeof(struct ibv_device),
	      "device operations follow the device");
static_assert(offsetof(struct verbs_mr, mr_type) == sizeof(struct ibv_mr),
	      "memory region type follows the region");
#if __SIZEOF_POINTER__ == 8
static_assert(sizeof(struct verbs_match_ent) == 24, "match entry");
static_assert(sizeof(struct verbs_device_ops) == 72, "device operations");
static_assert(offsetof(struct verbs_device_ops, alloc_context) == 40, "device operations");
static_assert(sizeof(struct ibv_device) == 664 && sizeof(struct verbs_device) == 712, "device");
static_assert(offsetof(struct verbs_sysfs_dev, sysfs_name) == 36, "sysfs name");
static_assert(offsetof(struct verbs_sysfs_dev, ibdev_path) == 36 + 64 + 4 + 8 + 64, "sysfs path");
static_assert(sizeof(struct verbs_qp_mask) == sizeof(void *), "one operation");
static_assert(sizeof(struct ibv_qp_ex) < offsetof(struct verbs_qp, xrcd), "all places of the mask");
#endif

/* The functions of libibverbs with the private symbol version. They are looked up when the provider is
 * loaded: linking against them would tie the build to the libibverbs of the build machine. */
struct mfs_rdma_core {
	void (*register_driver)(const struct verbs_device_ops *ops);
	void *(*alloc_context)(struct ibv_device *device, int cmd_fd, size_t size,
			       struct verbs_context *member, uint32_t driver_id);
	void (*uninit_context)(struct verbs_context *context);
	void (*set_ops)(struct verbs_context *context, const struct verbs_context_ops *ops);
	size_t port_attr_size; /* of this libibverbs: it grew in rdma-core 49 */
};
extern struct mfs_rdma_core mfs_rdma_core;

#endif
