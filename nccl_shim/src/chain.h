/* Chains of a hash table that are read without a lock and changed under one (shim_table_lock).
 *
 * Records are never given back to the system, so a reader may stand on a record while it is removed. It
 * can then miss what it searches, or run in a circle through a chain in which it did not begin; its steps
 * are therefore bounded. A reader that found nothing tries again when the table's version is odd or has
 * changed: writers add one before a change and one after it. */
#ifndef MFS_SHIM_CHAIN_H
#define MFS_SHIM_CHAIN_H

#include "compiler.h"

#include <stdatomic.h>

#define SHIM_CHAIN_TRIES_MAX 1000

/* Returns from the enclosing function: with the first record `found` for which the expression `matches` is
 * true, else with NULL. */
#define SHIM_CHAIN_FIND(type, bucket, next, matches, version, steps_max)                          \
	do {                                                                                      \
		uint32_t before;                                                                  \
		unsigned tries = 0;                                                               \
		do {                                                                              \
			before = atomic_load_explicit(&(version), memory_order_acquire);          \
			type *found = atomic_load_explicit(bucket, memory_order_acquire);         \
			for (unsigned steps = 0; found && steps < (steps_max); steps++) {         \
				if (likely(matches))                                              \
					return found;                                             \
				found = atomic_load_explicit(&found->next, memory_order_acquire); \
			}                                                                         \
			atomic_thread_fence(memory_order_acquire);                                \
		} while (((before & 1) ||                                                         \
			  before != atomic_load_explicit(&(version), memory_order_relaxed)) &&    \
			 ++tries < SHIM_CHAIN_TRIES_MAX);                                         \
		return NULL;                                                                      \
	} while (0)

#define SHIM_CHAIN_ADD(record, bucket, next)                                                       \
	do {                                                                                       \
		atomic_store_explicit(&(record)->next, atomic_load(bucket), memory_order_relaxed); \
		atomic_store_explicit(bucket, record, memory_order_release);                       \
	} while (0)

#define SHIM_CHAIN_REMOVE(type, record, bucket, next)                      \
	do {                                                               \
		_Atomic(type *) *link = bucket;                            \
		while (atomic_load(link) && atomic_load(link) != (record)) \
			link = &atomic_load(link)->next;                   \
		if (atomic_load(link))                                     \
			atomic_store(link, atomic_load(&(record)->next));  \
	} while (0)

#endif
