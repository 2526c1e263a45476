/* Protection domains and memory regions. A key is an index into the context's table and eight bits that
 * change with every use of the index, so that a key that has been given back is not taken for its successor.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "mr.h"

#include "registry.h"

struct ibv_pd *mfs_alloc_pd(struct ibv_context *ibv)
{
	struct mfs_pd *pd;

	if (mfs_context_inherited(mfs_context_of(ibv))) {
		errno = EINVAL;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	pd->pd.context = ibv;
	return &pd->pd;
}

int mfs_dealloc_pd(struct ibv_pd *ibv)
{
	struct mfs_pd *pd = mfs_container_of(ibv, struct mfs_pd, pd);

	if (atomic_load(&pd->users))
		return EBUSY;
	free(pd);
	return 0;
}

void mfs_pd_use(struct ibv_pd *pd, int change)
{
	atomic_fetch_add(&mfs_container_of(pd, struct mfs_pd, pd)->users, change);
}

static int grow_table(struct mfs_context *context)
{
	uint32_t slots = context->mr_slots ? context->mr_slots * 2 : 64;
	struct mfs_mr **mrs;

	if (slots > MFS_MAX_MR)
		return -ENOMEM;
	mrs = realloc(context->mrs, slots * sizeof(*mrs));
	if (!mrs)
		return -ENOMEM;
	memset(mrs + context->mr_slots, 0, (slots - context->mr_slots) * sizeof(*mrs));
	context->mrs = mrs;
	context->mr_slots = slots;
	return 0;
}

/* Goes round the table, so that an index rests as long as possible before it is used again. Index 0 is never
 * used: no key is 0. */
static int insert(struct mfs_context *context, struct mfs_mr *mr)
{
	if (context->mr_count + 1 >= context->mr_slots && grow_table(context))
		return -ENOMEM;
	do {
		context->mr_next++;
	} while (context->mr_next % context->mr_slots == 0 ||
		 context->mrs[context->mr_next % context->mr_slots]);
	mr->key =
		(context->mr_next % context->mr_slots) << 8 | ((context->mr_next / context->mr_slots) & 0xff);
	context->mrs[mr->key >> 8] = mr;
	context->mr_count++;
	return 0;
}

static bool access_allowed(int access)
{
	return !(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) ||
	       (access & IBV_ACCESS_LOCAL_WRITE);
}

static bool access_offered(int access)
{
	return !(access &
		 (IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB));
}

static bool range_allowed(uint64_t start, size_t length)
{
	return start + length >= start;
}

struct ibv_mr *mfs_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
	struct mfs_context *context = mfs_context_of(pd->context);
	struct mfs_mr *mr;
	int ret;

	if (mfs_context_inherited(context) || !access_allowed(access) || !access_offered(access) ||
	    !range_allowed((uintptr_t)addr, length) || !range_allowed(iova, length)) {
		errno = access_allowed(access) && !mfs_context_inherited(context) ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return NULL;
	mr->verbs.access = access;
	mr->verbs.ibv_mr.context = pd->context;
	mr->verbs.ibv_mr.pd = pd;
	mr->verbs.ibv_mr.addr = addr;
	mr->verbs.ibv_mr.length = length;
	mr->iova = iova;
	mfs_context_lock(context);
	ret = insert(context, mr);
	mfs_context_unlock(context);
	if (ret) {
		free(mr);
		errno = -ret;
		return NULL;
	}
	mr->verbs.ibv_mr.handle = mr->verbs.ibv_mr.lkey = mr->verbs.ibv_mr.rkey = mr->key;
	mfs_pd_use(pd, 1);
	return &mr->verbs.ibv_mr;
}

/* What is on its way into the region meanwhile is checked again and goes to the new place (check_target in receive.c). */
int mfs_rereg_mr(struct verbs_mr *verbs, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct mfs_mr *mr = mfs_container_of(verbs, struct mfs_mr, verbs);
	struct mfs_context *context = mfs_context_of(verbs->ibv_mr.context);

	if (mfs_context_inherited(context) ||
	    ((flags & IBV_REREG_MR_CHANGE_ACCESS) && !access_allowed(access)))
		return EINVAL;
	if (((flags & IBV_REREG_MR_CHANGE_ACCESS) && !access_offered(access)) ||
	    ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) && !range_allowed((uintptr_t)addr, length)))
		return EOPNOTSUPP;
	mfs_context_lock(context);
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		verbs->ibv_mr.addr = addr;
		verbs->ibv_mr.length = length;
		mr->iova = (uintptr_t)addr;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		verbs->access = access;
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		mfs_pd_use(verbs->ibv_mr.pd, -1);
		mfs_pd_use(pd, 1);
		verbs->ibv_mr.pd = pd;
	}
	context->key_epoch++;
	mfs_context_unlock(context);
	return 0;
}

int mfs_dereg_mr(struct verbs_mr *verbs)
{
	struct mfs_mr *mr = mfs_container_of(verbs, struct mfs_mr, verbs);
	struct mfs_context *context = mfs_context_of(verbs->ibv_mr.context);

	if (mfs_context_inherited(context))
		return EINVAL;
	mfs_context_lock(context);
	context->mrs[mr->key >> 8] = NULL;
	context->mr_count--;
	context->key_epoch++;
	mfs_context_unlock(context);
	mfs_pd_use(verbs->ibv_mr.pd, -1);
	free(mr);
	return 0;
}

/* The memory that a key gives access to, or NULL; with the context's lock held. */
void *mfs_mr_resolve(struct mfs_context *context, struct ibv_pd *pd, uint32_t key, uint64_t address,
		     uint64_t length, int access)
{
	struct mfs_mr *mr = key >> 8 < context->mr_slots ? context->mrs[key >> 8] : NULL;

	if (!mr || mr->key != key || mr->verbs.ibv_mr.pd != pd || (mr->verbs.access & access) != access)
		return NULL;
	if (address < mr->iova || address - mr->iova > mr->verbs.ibv_mr.length ||
	    length > mr->verbs.ibv_mr.length - (address - mr->iova))
		return NULL;
	return (uint8_t *)mr->verbs.ibv_mr.addr + (address - mr->iova);
}

/* The first `length` bytes of a gather or scatter list as memory. Returns the number of pieces, -EFAULT when
 * a key does not give access, -EMSGSIZE when the list is too short. Entries of length 0 are skipped
 * unchecked. */
int mfs_mr_resolve_sges(struct mfs_context *context, struct ibv_pd *pd, const struct ibv_sge *sges,
			uint32_t count, uint64_t length, int access, struct iovec *out)
{
	int pieces = 0;
	uint32_t i;

	for (i = 0; i < count && length; i++) {
		uint64_t part = mfs_min((uint64_t)sges[i].length, length);

		if (!part)
			continue;
		out[pieces].iov_base = mfs_mr_resolve(context, pd, sges[i].lkey, sges[i].addr, part, access);
		if (!out[pieces].iov_base)
			return -EFAULT;
		out[pieces++].iov_len = part;
		length -= part;
	}
	return length ? -EMSGSIZE : pieces;
}
