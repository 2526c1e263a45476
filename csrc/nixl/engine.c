/* An engine's virtual functions: those of the real plugin, except for the ones that a transfer passes
 * through. The engine is the real one, so everything else of it (its members, what it inherits, what it
 * does in threads of its own) works as it would without MFS. Each engine has a table of its own, which is
 * stored in its struct nixl_engine. */
#include "engine.h"

#include "log.h"
#include "slots.h"
#include "transfer.h"

#include <stdlib.h>
#include <string.h>

static struct nixl_engine *engine_of(const struct nixl_object *engine)
{
	return (struct nixl_engine *)(void *)((char *)(engine->table - NIXL_TABLE_HEAD) -
					      offsetof(struct nixl_engine, table));
}

static int prepare(const struct nixl_object *engine, const int *operation,
		   const struct nixl_descriptors *local, const struct nixl_descriptors *remote,
		   const struct nixl_string *peer, struct nixl_object **request,
		   const struct nixl_options *options)
{
	struct nixl_engine *own = engine_of(engine);
	struct nixl_arguments arguments = {*operation, local, remote, peer};
	struct nixl_transfer *transfer;
	int status = ((nixl_post)own->real[NIXL_SLOT_PREPARE])(engine, operation, local, remote, peer,
							       request, options);

	if (status < 0 || !*request)
		return status;
	transfer = nixl_transfer_new(own, *request, &arguments);
	if (transfer)
		*request = nixl_transfer_request(transfer);
	return status;
}

static int post(const struct nixl_object *engine, const int *operation, const struct nixl_descriptors *local,
		const struct nixl_descriptors *remote, const struct nixl_string *peer,
		struct nixl_object **request, const struct nixl_options *options)
{
	struct nixl_arguments arguments = {*operation, local, remote, peer};
	struct nixl_transfer *transfer = nixl_transfer_of(*request);

	if (transfer)
		return nixl_transfer_post(engine, transfer, &arguments, options);
	return ((nixl_post)engine_of(engine)->real[NIXL_SLOT_POST])(engine, operation, local, remote, peer,
								    request, options);
}

static int check(const struct nixl_object *engine, struct nixl_object *request)
{
	struct nixl_transfer *transfer = nixl_transfer_of(request);

	if (transfer)
		return nixl_transfer_check(engine, transfer);
	return ((nixl_request)engine_of(engine)->real[NIXL_SLOT_CHECK])(engine, request);
}

static int release(const struct nixl_object *engine, struct nixl_object *request)
{
	struct nixl_transfer *transfer = nixl_transfer_of(request);

	if (transfer)
		return nixl_transfer_release(engine, transfer);
	return ((nixl_request)engine_of(engine)->real[NIXL_SLOT_RELEASE])(engine, request);
}

static int estimate(const struct nixl_object *engine, const int *operation,
		    const struct nixl_descriptors *local, const struct nixl_descriptors *remote,
		    const struct nixl_string *peer, struct nixl_object *const *request, void *duration,
		    void *margin, void *method, const void *extra)
{
	nixl_estimate function = (nixl_estimate)engine_of(engine)->real[NIXL_SLOT_ESTIMATE];
	struct nixl_transfer *transfer = nixl_transfer_of(*request);

	return function(engine, operation, local, remote, peer,
			transfer ? nixl_transfer_real(transfer) : request, duration, margin, method, extra);
}

static int disconnect(struct nixl_object *engine, const struct nixl_string *peer)
{
	struct nixl_engine *own = engine_of(engine);

	nixl_transfer_peer_gone(own, peer);
	return ((nixl_disconnect)own->real[NIXL_SLOT_DISCONNECT])(engine, peer);
}

static void destroy(struct nixl_object *engine)
{
	struct nixl_engine *own = engine_of(engine);
	void **real = own->real;

	nixl_transfer_peer_gone(own, NULL);
	engine->table = real;
	((nixl_delete)real[NIXL_SLOT_DELETE])(engine);
	pthread_mutex_destroy(&own->lock);
	free(own->agent);
	free(own);
}

bool nixl_engine_wrap(struct nixl_object *engine, const struct nixl_engine_params *params)
{
	struct nixl_engine *own;
	char why[160];
	size_t words = nixl_slots_known(engine, why, sizeof(why));
	void **functions;

	if (!words) {
		nixl_log(
			NIXL_REASON_SLOTS,
			"this NIXL's backends are not as those that were tested (%s); its transfers run unscheduled",
			why);
		return false;
	}
	own = calloc(1, sizeof(*own) + words * sizeof(own->table[0]));
	if (own)
		own->agent = malloc(params->agent.bytes + 1);
	if (!own || !own->agent) {
		free(own);
		return false;
	}
	memcpy(own->agent, params->agent.data, params->agent.bytes);
	own->agent_bytes = params->agent.bytes;
	own->real = engine->table;
	pthread_mutex_init(&own->lock, NULL);
	memcpy(own->table, engine->table - NIXL_TABLE_HEAD, words * sizeof(own->table[0]));
	functions = own->table + NIXL_TABLE_HEAD;
	functions[NIXL_SLOT_DELETE] = (void *)destroy;
	functions[NIXL_SLOT_DISCONNECT] = (void *)disconnect;
	functions[NIXL_SLOT_PREPARE] = (void *)prepare;
	functions[NIXL_SLOT_POST] = (void *)post;
	functions[NIXL_SLOT_CHECK] = (void *)check;
	functions[NIXL_SLOT_RELEASE] = (void *)release;
	functions[NIXL_SLOT_ESTIMATE] = (void *)estimate;
	/* its own threads may be running already */
	__atomic_store_n(&engine->table, functions, __ATOMIC_RELEASE);
	return true;
}
