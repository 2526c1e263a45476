/* What NIXL's plugin interface (version 1) looks like from C. It is declared here because wheels contain
 * no headers: the order of virtual functions, their arguments, and the members that are read. This was
 * taken from NIXL's public sources (ai-dynamo/nixl, Apache-2.0: src/api/cpp/backend, release 1.4.0). It
 * holds in the wheels 1.4.1 and 1.5.1, whose tables are the same. slots.c compares it with the plugin at
 * hand, by the names of the functions and their arguments. Nothing is declared that is not used.
 *
 * The C++ in it is that of GCC and Clang on Linux (Itanium ABI, libstdc++). An object begins with the
 * address of its class's virtual functions, in front of which there are two words. A reference is an
 * address. std::string begins with address and size, std::vector with the addresses of its begin and end. */
#ifndef MFS_NIXL_ABI_H
#define MFS_NIXL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NIXL_PLUGIN_API_VERSION 1
#define NIXL_TABLE_HEAD 2 /* words in front of the first virtual function */

/* Virtual functions of nixlBackendEngine, by their index. */
enum nixl_slot {
	NIXL_SLOT_DELETE = 1,
	NIXL_SLOT_DISCONNECT = 9,
	NIXL_SLOT_PREPARE = 11,
	NIXL_SLOT_POST = 12,
	NIXL_SLOT_CHECK = 13,
	NIXL_SLOT_RELEASE = 14,
	NIXL_SLOT_ESTIMATE = 26,
	NIXL_SLOTS_LEAST = 27,
};

/* nixl_status_t */
enum { NIXL_SUCCESS = 0, NIXL_IN_PROGRESS = 1, NIXL_ERR_REMOTE_DISCONNECT = -10 };

/* nixl_xfer_op_t */
enum { NIXL_READ = 0, NIXL_WRITE = 1 };

struct nixl_string {
	const char *data;
	size_t bytes;
	char rest[16]; /* short text, or the capacity of long text */
};

/* nixlMetaDesc */
struct nixl_descriptor {
	uintptr_t address;
	size_t bytes;
	uint64_t device;
	void *metadata;
};

/* nixlDescList<nixlMetaDesc> */
struct nixl_descriptors {
	void *table;
	int memory; /* nixl_mem_t */
	const struct nixl_descriptor *begin, *end, *room;
};

/* nixlBackendOptionalArgs */
struct nixl_options {
	struct nixl_string notification;
	bool notifies;
	struct nixl_string custom;
};

/* nixlBackendInitParams, only the part that is read */
struct nixl_engine_params {
	struct nixl_string agent;
};

/* An object with virtual functions. */
struct nixl_object {
	void **table;
};

/* nixlBackendPlugin. Functions that return a C++ object are passed on and never called here. */
struct nixl_plugin {
	int api_version;
	struct nixl_object *(*create_engine)(const struct nixl_engine_params *params);
	void (*destroy_engine)(struct nixl_object *engine);
	const char *(*name)(void);
	const char *(*version)(void);
	void *options;
	void *memories;
};

typedef void (*nixl_delete)(struct nixl_object *engine);
typedef int (*nixl_disconnect)(struct nixl_object *engine, const struct nixl_string *peer);
/* for prepXfer, too */
typedef int (*nixl_post)(const struct nixl_object *engine, const int *operation,
			 const struct nixl_descriptors *local, const struct nixl_descriptors *remote,
			 const struct nixl_string *peer, struct nixl_object **request,
			 const struct nixl_options *options);
typedef int (*nixl_request)(const struct nixl_object *engine, struct nixl_object *request);
typedef int (*nixl_estimate)(const struct nixl_object *engine, const int *operation,
			     const struct nixl_descriptors *local, const struct nixl_descriptors *remote,
			     const struct nixl_string *peer, struct nixl_object *const *request,
			     void *duration, void *margin, void *method, const void *extra);

/* What the real plugin's library exports. */
typedef struct nixl_plugin *(*nixl_plugin_init_function)(void);

_Static_assert(sizeof(void *) != 8 || sizeof(struct nixl_string) == 32, "std::string of libstdc++");
_Static_assert(sizeof(void *) != 8 || sizeof(struct nixl_descriptor) == 32, "nixlMetaDesc");
_Static_assert(sizeof(void *) != 8 || offsetof(struct nixl_descriptors, begin) == 16, "nixlDescList");
_Static_assert(sizeof(void *) != 8 || sizeof(struct nixl_options) == 72, "nixlBackendOptionalArgs");

#endif
