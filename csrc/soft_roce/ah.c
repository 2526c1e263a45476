/* Address handles of UD queue pairs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ah.h"

#include "mr.h"
#include "registry.h"

/* True for the IPv4 address of one host: multicast groups are not supported. */
static bool address_allowed(const struct ibv_ah_attr *attr)
{
	const struct in6_addr *gid = (const struct in6_addr *)attr->grh.dgid.raw;

	return attr->is_global && attr->port_num == 1 && attr->grh.sgid_index == 0 &&
	       IN6_IS_ADDR_V4MAPPED(gid) && !IN_MULTICAST(ntohl(gid->s6_addr32[3]));
}

struct ibv_ah *mfs_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct mfs_ah *ah;

	if (mfs_context_inherited(mfs_context_of(pd->context)) || !address_allowed(attr)) {
		errno = EINVAL;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	memcpy(&ah->address, &attr->grh.dgid.raw[12], sizeof(ah->address));
	ah->traffic_class = attr->grh.traffic_class;
	mfs_pd_use(pd, 1);
	return &ah->ah;
}

int mfs_destroy_ah(struct ibv_ah *ibv)
{
	if (mfs_context_inherited(mfs_context_of(ibv->context)))
		return EINVAL;
	mfs_pd_use(ibv->pd, -1);
	free(mfs_container_of(ibv, struct mfs_ah, ah));
	return 0;
}

void mfs_ah_address(struct mfs_destination *to, const struct ibv_ah *ibv, uint32_t qp_num, uint32_t qkey)
{
	const struct mfs_ah *ah = (const struct mfs_ah *)ibv;

	static_assert(offsetof(struct mfs_ah, ah) == 0, "the handle begins with libibverbs' part");
	*to = (struct mfs_destination){.qp_num = qp_num, .qkey = qkey};
	if (!ibv)
		return;
	to->pd = ibv->pd;
	to->address = ah->address;
	to->traffic_class = ah->traffic_class;
}
