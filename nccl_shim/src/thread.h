/* What is known of the posting thread: its id, and whether anything was announced about its posts. */
#ifndef MFS_SHIM_THREAD_H
#define MFS_SHIM_THREAD_H

#include <stdbool.h>
#include <stdint.h>

#define SHIM_THREAD_NONE UINT32_MAX /* no id yet */

struct shim_collective { /* what this thread sends next, see profiler.c */
	bool given;
	uint8_t communicator;
	uint8_t operation; /* enum mfs_operation */
	uint16_t layer;
	uint32_t batch;
};

extern __thread uint32_t shim_thread_id __attribute__((tls_model("initial-exec"))); /* even, not 0 */
/* The thread's id while nothing was announced about its posts, otherwise SHIM_THREAD_NONE. One comparison
 * thus checks both. */
extern __thread uint32_t shim_plain_id __attribute__((tls_model("initial-exec")));
extern __thread bool shim_context_given __attribute__((tls_model("initial-exec")));
extern __thread struct shim_collective shim_collective __attribute__((tls_model("initial-exec")));

/* To be called after a change of a context, a collective or the id. */
static inline void shim_plain_set(void)
{
	shim_plain_id = shim_context_given || shim_collective.given ? SHIM_THREAD_NONE : shim_thread_id;
}

#endif
