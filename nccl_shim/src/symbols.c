/* The real functions behind ours: libc's dlsym and dlvsym, and every copy of libibverbs in the process.
 *
 * We define dlsym ourselves, so the real one is looked up in libc's own symbol table. A process may hold
 * several copies of libibverbs, since wheels bring their own. Each copy is one record here, found by the
 * object that called us or by the handle given to dlsym. A copy is never unloaded again, since our thread
 * may post through it. */
#define _GNU_SOURCE
#include "symbols.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

void *(*mfs_real_dlsym)(void *, const char *);
void *(*mfs_real_dlvsym)(void *, const char *, const char *);

/* ---- libc's dlsym ----------------------------------------------------------------------------------------------------- */

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

static void *find_in_object(const struct link_map *map, const char *name)
{
	const ElfW(Sym) *symbols = NULL;
	const uint32_t *hash = NULL;
	const char *strings = NULL;

	for (const ElfW(Dyn) *d = map->l_ld; d && d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
		else if (d->d_tag == DT_STRTAB)
			strings = (const char *)d->d_un.d_ptr;
		else if (d->d_tag == DT_GNU_HASH)
			hash = (const uint32_t *)d->d_un.d_ptr;
	}
	if (!symbols || !strings || !hash)
		return NULL;

	uint32_t buckets = hash[0], first = hash[1], bloom_words = hash[2], wanted = gnu_hash(name);
	const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(hash + 4) + bloom_words);
	const uint32_t *chain = bucket + buckets;
	uint32_t i = buckets ? bucket[wanted % buckets] : 0;

	if (i < first)
		return NULL;
	for (;; i++) {
		uint32_t found = chain[i - first];

		if ((found | 1) == (wanted | 1) && symbols[i].st_shndx != SHN_UNDEF && symbols[i].st_value &&
		    same(strings + symbols[i].st_name, name))
			return (void *)(map->l_addr + symbols[i].st_value);
		if (found & 1)
			return NULL;
	}
}

static bool is_libc(const char *path)
{
	const char *name = path;

	for (; *path; path++)
		if (*path == '/')
			name = path + 1;
	return same(name, "libc.so.6") || same(name, "libdl.so.2");
}

/* Calls no library function: a sanitizer's runtime calls dlsym before its own wrappers of libc work. */
void mfs_symbols_load(void)
{
	if (mfs_real_dlsym && mfs_real_dlvsym)
		return;
	for (const struct link_map *map = _r_debug.r_map; map; map = map->l_next) {
		if (!is_libc(map->l_name))
			continue;
		if (!mfs_real_dlsym)
			mfs_real_dlsym = (void *(*)(void *, const char *))find_in_object(map, "dlsym");
		if (!mfs_real_dlvsym)
			mfs_real_dlvsym =
				(void *(*)(void *, const char *, const char *))find_in_object(map, "dlvsym");
	}
}

bool shim_symbol_is_ours(const void *address)
{
	Dl_info ours, its;

	return dladdr((const void *)&shim_symbol_is_ours, &ours) && dladdr(address, &its) &&
	       ours.dli_fbase == its.dli_fbase;
}

/* ---- copies of libibverbs ---------------------------------------------------------------------------------------------- */

#define VERBS_MAX 8
static struct shim_verbs verbs_copies[VERBS_MAX];
static _Atomic unsigned verbs_count;
static pthread_mutex_t verbs_lock = PTHREAD_MUTEX_INITIALIZER;

void mfs_symbols_after_fork(void)
{
	pthread_mutex_init(&verbs_lock, NULL);
}

static void *lookup(void *handle, const char *name)
{
	static const char *const versions[] = {"IBVERBS_1.1", "IBVERBS_1.6", "IBVERBS_1.10"};
	void *address = NULL;

	mfs_symbols_load();
	for (unsigned i = 0; !address && i < sizeof(versions) / sizeof(versions[0]); i++)
		address = mfs_real_dlvsym(handle, name, versions[i]);
	if (!address)
		address = mfs_real_dlsym(handle, name); /* a replacement library without symbol versions */
	return address && !shim_symbol_is_ours(address) ? address : NULL;
}

/* Returns the record of the copy that `open_device` belongs to; makes it from `handle` if it is new. */
static const struct shim_verbs *verbs_record(void *handle, void *open_device)
{
	struct shim_verbs *found = NULL;
	Dl_info object;

	pthread_mutex_lock(&verbs_lock);
	for (unsigned i = 0; i < verbs_count && !found; i++)
		if ((void *)verbs_copies[i].open_device == open_device)
			found = &verbs_copies[i];
	if (!found && verbs_count < VERBS_MAX) {
		found = &verbs_copies[verbs_count];
#define FIND(name) found->name = (__typeof__(found->name))lookup(handle, "ibv_" #name)
		FIND(open_device);
		FIND(import_device);
		FIND(close_device);
		FIND(create_cq);
		FIND(destroy_cq);
		FIND(create_qp);
		FIND(modify_qp);
		FIND(destroy_qp);
		FIND(dereg_mr);
		FIND(rereg_mr);
		FIND(get_async_event);
		FIND(qp_to_qp_ex);
		FIND(get_device_guid);
		FIND(query_port);
#undef FIND
		if (found->close_device && found->create_cq && found->destroy_cq && found->create_qp &&
		    found->modify_qp && found->destroy_qp) {
			if (dladdr(open_device, &object) && object.dli_fname)
				dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
			atomic_fetch_add(&verbs_count, 1);
		} else {
			found = NULL;
		}
	}
	pthread_mutex_unlock(&verbs_lock);
	return found;
}

const struct shim_verbs *shim_verbs_of_handle(void *handle)
{
	void *open_device = lookup(handle, "ibv_open_device");

	return open_device ? verbs_record(handle, open_device) : NULL;
}

/* Finds what the caller would have got without us: first in the global scope behind us, then in its own
 * dependencies, then in any copy. */
const struct shim_verbs *shim_verbs_of_caller(const void *return_address)
{
	const struct shim_verbs *verbs = shim_verbs_of_handle(RTLD_NEXT);
	Dl_info object;
	void *handle;

	if (verbs)
		return verbs;
	if (dladdr(return_address, &object) && object.dli_fname) {
		handle = dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
		if (handle) {
			verbs = shim_verbs_of_handle(handle);
			dlclose(handle);
		}
	}
	if (!verbs) {
		handle = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
		if (handle) {
			verbs = shim_verbs_of_handle(handle);
			dlclose(handle);
		}
	}
	return verbs ? verbs : atomic_load(&verbs_count) ? &verbs_copies[0] : NULL;
}
