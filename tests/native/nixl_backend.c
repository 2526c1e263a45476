/* A backend plugin that looks like NIXL's own to the loader: a class FakeEngine with a table of virtual
 * functions, named as a C++ compiler names them. With BACKEND_CHANGED=1 one of them takes other arguments.
 * BACKEND_VERSION is the version of the interface. */
#include "nixl_backend.h"

#include <stdlib.h>
#include <string.h>

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define LISTS "ERK14nixl_xfer_op_tRK12nixlDescListI12nixlMetaDescES7_RK" STRING
#define OPTIONS "PK23nixlBackendOptionalArgs"

struct backend backend = {.status = NIXL_IN_PROGRESS};
static struct nixl_object request;

static int note(const int *operation, struct nixl_object **made, const struct nixl_options *options)
{
	backend.last_operation = *operation;
	backend.last_request = *made;
	backend.notifies = options && options->notifies;
	if (backend.notifies && options->notification.bytes < BACKEND_TEXT_MAX) {
		memcpy(backend.notification, options->notification.data, options->notification.bytes);
		backend.notification[options->notification.bytes] = 0;
	}
	return backend.status;
}

int fake_prepare(const struct nixl_object *, const int *, const struct nixl_descriptors *,
		 const struct nixl_descriptors *, const struct nixl_string *, struct nixl_object **,
		 const struct nixl_options *) __asm__("_ZNK10FakeEngine8prepXfer" LISTS "RP15nixlBackendReqH" OPTIONS);
int fake_prepare(const struct nixl_object *engine, const int *operation, const struct nixl_descriptors *local,
		 const struct nixl_descriptors *remote, const struct nixl_string *peer,
		 struct nixl_object **made, const struct nixl_options *options)
{
	(void)engine, (void)operation, (void)local, (void)remote, (void)peer, (void)options;
	backend.prepared++;
	*made = &request;
	backend.own_request = *made;
	return NIXL_SUCCESS;
}

int fake_post(const struct nixl_object *, const int *, const struct nixl_descriptors *,
	      const struct nixl_descriptors *, const struct nixl_string *, struct nixl_object **,
	      const struct nixl_options *) __asm__("_ZNK10FakeEngine8postXfer" LISTS "RP15nixlBackendReqH" OPTIONS);
int fake_post(const struct nixl_object *engine, const int *operation, const struct nixl_descriptors *local,
	      const struct nixl_descriptors *remote, const struct nixl_string *peer, struct nixl_object **made,
	      const struct nixl_options *options)
{
	(void)engine, (void)local, (void)remote, (void)peer;
	backend.posted++;
	return note(operation, made, options);
}

int fake_post_changed(void) __asm__("_ZNK10FakeEngine8postXferEi");
int fake_post_changed(void)
{
	abort();
}

int fake_check(const struct nixl_object *, struct nixl_object *) __asm__(
	"_ZNK10FakeEngine9checkXferEP15nixlBackendReqH");
int fake_check(const struct nixl_object *engine, struct nixl_object *asked)
{
	(void)engine;
	backend.checked++;
	backend.last_request = asked;
	return backend.status;
}

int fake_release(const struct nixl_object *, struct nixl_object *) __asm__(
	"_ZNK10FakeEngine11releaseReqHEP15nixlBackendReqH");
int fake_release(const struct nixl_object *engine, struct nixl_object *asked)
{
	(void)engine;
	backend.released++;
	backend.last_request = asked;
	return NIXL_SUCCESS;
}

int fake_disconnect(struct nixl_object *, const struct nixl_string *) __asm__(
	"_ZN10FakeEngine10disconnectERK" STRING);
int fake_disconnect(struct nixl_object *engine, const struct nixl_string *peer)
{
	(void)engine, (void)peer;
	backend.disconnected++;
	return NIXL_SUCCESS;
}

int fake_estimate(const struct nixl_object *, const int *, const struct nixl_descriptors *,
		  const struct nixl_descriptors *, const struct nixl_string *, struct nixl_object *const *, void *,
		  void *, void *, const void *) __asm__("_ZNK10FakeEngine16estimateXferCost" LISTS
							 "RKP15nixlBackendReqHRNSt6chrono8durationIlSt5ratioILl1ELl1000000"
							 "EEEESP_R11nixl_cost_tPK21nixlAgentOptionalArgs");
int fake_estimate(const struct nixl_object *engine, const int *operation, const struct nixl_descriptors *local,
		  const struct nixl_descriptors *remote, const struct nixl_string *peer,
		  struct nixl_object *const *asked, void *duration, void *margin, void *method, const void *extra)
{
	(void)engine, (void)operation, (void)local, (void)remote, (void)peer, (void)extra;
	backend.estimated++;
	backend.last_request = *asked;
	return duration && margin && method ? NIXL_SUCCESS : -1;
}

void fake_delete(struct nixl_object *) __asm__("_ZN10FakeEngineD0Ev");
void fake_delete(struct nixl_object *engine)
{
	backend.engines -= engine->table == backend.table;
	free(engine);
}

#define FUNCTIONS(post)                                                                                                \
	{                                                                                                              \
		[NIXL_TABLE_HEAD + NIXL_SLOT_DELETE] = (void *)fake_delete,                                            \
		[NIXL_TABLE_HEAD + NIXL_SLOT_DISCONNECT] = (void *)fake_disconnect,                                    \
		[NIXL_TABLE_HEAD + NIXL_SLOT_PREPARE] = (void *)fake_prepare,                                          \
		[NIXL_TABLE_HEAD + NIXL_SLOT_POST] = (void *)(post),                                                   \
		[NIXL_TABLE_HEAD + NIXL_SLOT_CHECK] = (void *)fake_check,                                              \
		[NIXL_TABLE_HEAD + NIXL_SLOT_RELEASE] = (void *)fake_release,                                          \
		[NIXL_TABLE_HEAD + NIXL_SLOT_ESTIMATE] = (void *)fake_estimate,                                        \
		[NIXL_TABLE_HEAD + NIXL_SLOTS_LEAST] = NULL,                                                           \
	}
extern void *fake_table[NIXL_TABLE_HEAD + NIXL_SLOTS_LEAST + 1] __asm__("_ZTV10FakeEngine");
void *fake_table[] = FUNCTIONS(fake_post);
extern void *fake_table_changed[NIXL_TABLE_HEAD + NIXL_SLOTS_LEAST + 1] __asm__("_ZTV13ChangedEngine");
void *fake_table_changed[] = FUNCTIONS(fake_post_changed);

static struct nixl_object *create(const struct nixl_engine_params *params)
{
	struct nixl_object *engine = malloc(sizeof(*engine));

	(void)params;
	engine->table = (getenv("BACKEND_CHANGED") ? fake_table_changed : fake_table) + NIXL_TABLE_HEAD;
	backend.table = engine->table;
	backend.engines++;
	return engine;
}

static void destroy(struct nixl_object *engine)
{
	((nixl_delete)engine->table[NIXL_SLOT_DELETE])(engine);
}

static const char *name(void)
{
	return "UCX";
}

struct nixl_plugin *nixl_plugin_init(void);
struct nixl_plugin *nixl_plugin_init(void)
{
	static struct nixl_plugin plugin;
	const char *version = getenv("BACKEND_VERSION");

	plugin = (struct nixl_plugin){.api_version = version ? atoi(version) : NIXL_PLUGIN_API_VERSION,
				      .create_engine = create,
				      .destroy_engine = destroy,
				      .name = name,
				      .version = name};
	return &plugin;
}
