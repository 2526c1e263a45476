/* What programs find instead of libibverbs' own functions.
 *
 * Linked programs (perftest, Mooncake) reach the definitions here because the library is preloaded.
 * Programs that dlopen libibverbs and call dlsym (TENT) or dlvsym (NCCL) get the same functions, because
 * those two are wrapped. dlopen needs no wrapper: the handle that it returns is later passed to dlsym. */
#define _GNU_SOURCE
#pragma GCC visibility push( \
	default) /* what verbs.h declares is what we define and export; see libmfs_shim.map */
#include <infiniband/verbs.h>
#pragma GCC visibility pop

#include "context.h"
#include "cq_ex.h"
#include "devices.h"
#include "flush.h"
#include "mode.h"
#include "qp.h"
#include "qp_state.h"
#include "symbols.h"
#include "table.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CALLER() __builtin_extract_return_addr(__builtin_return_address(0))

/* Returns the real functions for an object of `context`: those of the copy that opened it. */
static const struct shim_verbs *verbs_of(const struct ibv_context *context, const void *caller)
{
	struct shim_context *c = context ? shim_context_find(context) : NULL;

	return c ? c->verbs : shim_verbs_of_caller(caller);
}

/* ---- devices ----------------------------------------------------------------------------------------------------------- */

static struct ibv_context *opened(struct ibv_context *context, const struct shim_verbs *verbs)
{
	if (context && shim_mode() != MFS_MODE_OFF)
		shim_context_patch(context, verbs);
	return context;
}

static struct ibv_context *open_with(const struct shim_verbs *verbs, struct ibv_device *device)
{
	if (!verbs) {
		errno = ENOSYS;
		return NULL;
	}
	return opened(verbs->open_device(device), verbs);
}

static struct ibv_context *import_with(const struct shim_verbs *verbs, int fd)
{
	if (!verbs || !verbs->import_device) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	return opened(verbs->import_device(fd), verbs);
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	return open_with(shim_verbs_of_caller(CALLER()), device);
}

struct ibv_context *ibv_import_device(int fd)
{
	return import_with(shim_verbs_of_caller(CALLER()), fd);
}

/* A function that was looked up in a handle must open the device with that handle's copy, so there is one
 * small function for each copy. */
#define COPIES 4
static const struct shim_verbs *_Atomic copies[COPIES];
#define COPY(i)                                                               \
	static struct ibv_context *open_device_##i(struct ibv_device *device) \
	{                                                                     \
		return open_with(copies[i], device);                          \
	}                                                                     \
	static struct ibv_context *import_device_##i(int fd)                  \
	{                                                                     \
		return import_with(copies[i], fd);                            \
	}
COPY(0)
COPY(1)
COPY(2)
COPY(3)

static const struct {
	struct ibv_context *(*open_device)(struct ibv_device *);
	struct ibv_context *(*import_device)(int);
} of_copy[COPIES] = {
	{open_device_0, import_device_0},
	{open_device_1, import_device_1},
	{open_device_2, import_device_2},
	{open_device_3, import_device_3},
};

static int copy_index(void *handle)
{
	const struct shim_verbs *verbs = shim_verbs_of_handle(handle);

	for (int i = 0; verbs && i < COPIES; i++) {
		const struct shim_verbs *none = NULL;

		if (atomic_load(&copies[i]) == verbs ||
		    atomic_compare_exchange_strong(&copies[i], &none, verbs) || none == verbs)
			return i;
	}
	return -1;
}

int ibv_close_device(struct ibv_context *context)
{
	const struct shim_verbs *verbs = verbs_of(context, CALLER());

	if (!verbs)
		return ENOSYS;
	shim_context_remove(context);
	return verbs->close_device(context);
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	const struct shim_verbs *verbs = verbs_of(context, CALLER());
	int rc = verbs && verbs->get_async_event ? verbs->get_async_event(context, event) : -1;
	struct shim_qp *q;
	unsigned cursor = 0;

	if (rc)
		return rc;
	switch (event->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		q = shim_qp_find(event->element.qp);
		if (q)
			shim_qp_break(q);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		while ((q = shim_qp_each(&cursor)))
			if (atomic_load(&q->context) == shim_context_find(context))
				shim_qp_break(q);
		break;
	default:
		break;
	}
	return rc;
}

/* ---- completion queues ------------------------------------------------------------------------------------------------- */

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
			     struct ibv_comp_channel *channel, int comp_vector)
{
	const struct shim_verbs *verbs = verbs_of(context, CALLER());
	struct ibv_cq *cq;

	if (!verbs) {
		errno = ENOSYS;
		return NULL;
	}
	cq = verbs->create_cq(context, cqe, cq_context, channel, comp_vector);
	if (cq && shim_context_find(context))
		shim_cq_add(cq, context, channel != NULL, NULL);
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	const struct shim_verbs *verbs = verbs_of(cq->context, CALLER());
	struct shim_cq *known = shim_cq_find(cq);
	struct shim_cq_ex *extended = known ? known->extended : NULL;
	int rc;

	if (!verbs)
		return ENOSYS;
	if (extended)
		shim_cq_ex_unpatch(extended);
	/* before it is destroyed: another thread may get the same address at once */
	if (known)
		shim_cq_hide(known);
	rc = verbs->destroy_cq(cq);
	if (known && !rc)
		shim_cq_put(known);
	else if (known) /* it was not destroyed */
		shim_cq_show(known, extended ? shim_cq_ex_patch((struct ibv_cq_ex *)cq) : NULL);
	free(extended);
	return rc;
}

/* ---- queue pairs ------------------------------------------------------------------------------------------------------- */

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	const void *caller = CALLER();
	const struct shim_verbs *verbs = verbs_of(pd->context, caller);
	const struct ibv_qp_cap asked = attr->cap;
	struct ibv_qp *qp;

	if (!verbs) {
		errno = ENOSYS;
		return NULL;
	}
	qp = verbs->create_qp(pd, attr);
	if (qp)
		shim_qp_add(qp, attr, &asked, 0, caller);
	return qp;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	struct shim_qp *q = shim_qp_find(qp);
	const struct shim_verbs *verbs;

	if (q)
		return shim_qp_modify(q, attr, mask);
	verbs = verbs_of(qp->context, CALLER());
	return verbs ? verbs->modify_qp(qp, attr, mask) : ENOSYS;
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct shim_qp *q = shim_qp_find(qp);
	const struct shim_verbs *verbs;

	if (q)
		return shim_qp_destroy(q);
	verbs = verbs_of(qp->context, CALLER());
	return verbs ? verbs->destroy_qp(qp) : ENOSYS;
}

/* ---- memory regions ---------------------------------------------------------------------------------------------------- */

static void flush_key(const struct ibv_mr *mr)
{
	shim_flush_key(shim_context_find(mr->context), mr->lkey);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	const struct shim_verbs *verbs = verbs_of(mr->context, CALLER());

	flush_key(mr);
	return verbs && verbs->dereg_mr ? verbs->dereg_mr(mr) : ENOSYS;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *address, size_t length, int access)
{
	const struct shim_verbs *verbs = verbs_of(mr->context, CALLER());

	flush_key(mr);
	if (verbs && verbs->rereg_mr)
		return verbs->rereg_mr(mr, flags, pd, address, length, access);
	errno = ENOSYS;
	return IBV_REREG_MR_ERR_INPUT;
}

/* ---- dlsym, dlvsym ----------------------------------------------------------------------------------------------------- */

static void *replacement(void *handle, const char *name)
{
	static const struct {
		const char *name;
		void *address;
	} ours[] = {
		{"ibv_close_device", (void *)ibv_close_device},
		{"ibv_create_cq", (void *)ibv_create_cq},
		{"ibv_destroy_cq", (void *)ibv_destroy_cq},
		{"ibv_create_qp", (void *)ibv_create_qp},
		{"ibv_modify_qp", (void *)ibv_modify_qp},
		{"ibv_destroy_qp", (void *)ibv_destroy_qp},
		{"ibv_dereg_mr", (void *)ibv_dereg_mr},
		{"ibv_rereg_mr", (void *)ibv_rereg_mr},
		{"ibv_get_async_event", (void *)ibv_get_async_event},
	};
	bool open = !strcmp(name, "ibv_open_device"), import = !strcmp(name, "ibv_import_device");
	int copy;

	if (open || import) {
		copy = copy_index(handle);
		return copy < 0 ? NULL
		       : open   ? (void *)of_copy[copy].open_device
				: (void *)of_copy[copy].import_device;
	}
	for (unsigned i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strcmp(name, ours[i].name))
			return ours[i].address;
	return NULL;
}

static inline bool is_verbs(const char *name)
{
	return name && name[0] == 'i' && name[1] == 'b' && name[2] == 'v' && name[3] == '_';
}

/* Returns our function, or NULL if the caller must ask libc. The global scope (RTLD_DEFAULT) has ours
 * anyway. RTLD_NEXT has a meaning only to libc, which must see the true caller. */
__attribute__((used)) void *mfs_dlsym_choose(void *handle, const char *name)
{
	void *real;

	mfs_symbols_load();
	if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !is_verbs(name) || shim_mode() == MFS_MODE_OFF)
		return NULL;
	real = mfs_real_dlsym(handle, name);
	return real && !shim_symbol_is_ours(real) ? replacement(handle, name) : NULL;
}

__attribute__((used)) void *mfs_dlvsym_choose(void *handle, const char *name, const char *version)
{
	void *real;

	mfs_symbols_load();
	if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || !is_verbs(name) || !version ||
	    strncmp(version, "IBVERBS_", 8) || !strncmp(version, "IBVERBS_PRIVATE", 15) ||
	    shim_mode() == MFS_MODE_OFF)
		return NULL;
	real = mfs_real_dlvsym(handle, name, version);
	return real && !shim_symbol_is_ours(real) ? replacement(handle, name) : NULL;
}

/* libc reads the return address to find out whose RTLD_NEXT is meant. So its functions are jumped to, not called. */
/* clang-format off */
#if defined(__x86_64__)
#define ENTRY(name)                                                                                                    \
	__asm__(".text\n.globl " #name "\n.type " #name ",@function\n" #name ":\n"                                     \
		".cfi_startproc\n\tendbr64\n"                                                                          \
		"\tpush %rdi\n\tpush %rsi\n\tpush %rdx\n.cfi_adjust_cfa_offset 24\n"                                   \
		"\tcall mfs_" #name "_choose\n"                                                                        \
		"\tpop %rdx\n\tpop %rsi\n\tpop %rdi\n.cfi_adjust_cfa_offset -24\n"                                     \
		"\ttest %rax, %rax\n\tjnz 1f\n"                                                                        \
		"\tmov mfs_real_" #name "@GOTPCREL(%rip), %rax\n\tjmp *(%rax)\n"                                       \
		"1:\tret\n.cfi_endproc\n.size " #name ", .-" #name "\n")
ENTRY(dlsym);
ENTRY(dlvsym);
#elif defined(__aarch64__)
#define ENTRY(name)                                                                                                    \
	__asm__(".text\n.globl " #name "\n.type " #name ",%function\n" #name ":\n"                                     \
		".cfi_startproc\n"                                                                                     \
		"\tstp x29, x30, [sp, #-48]!\n.cfi_def_cfa_offset 48\n.cfi_offset 29, -48\n.cfi_offset 30, -40\n"      \
		"\tstp x0, x1, [sp, #16]\n\tstr x2, [sp, #32]\n"                                                       \
		"\tbl mfs_" #name "_choose\n"                                                                          \
		"\tmov x9, x0\n\tldp x0, x1, [sp, #16]\n\tldr x2, [sp, #32]\n"                                         \
		"\tldp x29, x30, [sp], #48\n.cfi_def_cfa_offset 0\n.cfi_restore 29\n.cfi_restore 30\n"                 \
		"\tcbnz x9, 1f\n"                                                                                      \
		"\tadrp x9, :got:mfs_real_" #name "\n\tldr x9, [x9, :got_lo12:mfs_real_" #name "]\n"                   \
		"\tldr x9, [x9]\n\tbr x9\n"                                                                            \
		"1:\tmov x0, x9\n\tret\n.cfi_endproc\n.size " #name ", .-" #name "\n")
ENTRY(dlsym);
ENTRY(dlvsym);
#else
#error "libmfs_shim: write the dlsym entry for this processor"
#endif
/* clang-format on */
