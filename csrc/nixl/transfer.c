/* One NIXL request. If its permit is there at once, the call that starts the request posts it. Otherwise
 * that call returns that the request is in progress, as NIXL does for anything that takes a while. The
 * program's next status check then posts it, once the permit has arrived or the hold is over. So
 * everything that is done with an engine is done by the program's own threads, under the locks that NIXL
 * takes for them. A request is used by one thread at a time, like NIXL's own. */
#include "transfer.h"

#include "name.h"
#include "permit.h"

#include <stdlib.h>
#include <string.h>

#define NOTIFICATION_BYTES 192 /* longest notification that is stored in the transfer itself */

enum state { IDLE, HELD, POSTED, LOST };

struct nixl_transfer {
	struct nixl_object request; /* what NIXL gets */
	struct nixl_engine *engine;
	struct nixl_object *real;
	struct nixl_permit permit;
	struct nixl_need need;
	bool local; /* it stays within this agent and passes no network card */
	enum state state;
	/* while it is held */
	struct nixl_arguments arguments;
	struct nixl_options options;
	struct nixl_transfer *next, **link;
	char *long_notification;
	char notification[NOTIFICATION_BYTES];
};

/* Virtual functions of the request. NIXL calls none of a request that it does not know, and these do nothing. */
static void leave(void)
{
}

static void *const nothing[] = {NULL, NULL, (void *)leave, (void *)leave};

struct nixl_transfer *nixl_transfer_of(struct nixl_object *request)
{
	if (!request || request->table != (void **)&nothing[NIXL_TABLE_HEAD])
		return NULL;
	return (struct nixl_transfer *)(void *)request;
}

struct nixl_object *nixl_transfer_request(struct nixl_transfer *transfer)
{
	return &transfer->request;
}

struct nixl_object **nixl_transfer_real(struct nixl_transfer *transfer)
{
	return &transfer->real;
}

struct nixl_transfer *nixl_transfer_new(struct nixl_engine *engine, struct nixl_object *real,
					const struct nixl_arguments *arguments)
{
	struct nixl_transfer *transfer = calloc(1, sizeof(*transfer));
	const struct nixl_descriptor *end = arguments->local->end;

	if (!transfer)
		return NULL;
	transfer->request.table = (void **)&nothing[NIXL_TABLE_HEAD];
	transfer->engine = engine;
	transfer->real = real;
	for (const struct nixl_descriptor *one = arguments->local->begin; one < end; one++)
		transfer->need.bytes += one->bytes;
	transfer->need.address = arguments->local->begin < end ? arguments->local->begin->address : 0;
	transfer->need.incoming = arguments->operation == NIXL_READ;
	transfer->need.peer = nixl_name_peer(arguments->peer);
	transfer->local = arguments->peer->bytes == engine->agent_bytes &&
			  !memcmp(arguments->peer->data, engine->agent, engine->agent_bytes);
	return transfer;
}

/* ---- held -------------------------------------------------------------------------------------------------------------- */

static void unlist(struct nixl_transfer *transfer)
{
	if (!transfer->link)
		return;
	*transfer->link = transfer->next;
	if (transfer->next)
		transfer->next->link = transfer->link;
	transfer->link = NULL;
}

static void forget(struct nixl_transfer *transfer)
{
	pthread_mutex_lock(&transfer->engine->lock);
	unlist(transfer);
	pthread_mutex_unlock(&transfer->engine->lock);
	free(transfer->long_notification);
	transfer->long_notification = NULL;
}

/* Keeps what the call has on its stack; NIXL itself keeps the lists and the peer's name with the request.
 * Returns false if there is no memory. */
static bool hold(struct nixl_transfer *transfer, const struct nixl_arguments *arguments,
		 const struct nixl_options *options)
{
	struct nixl_engine *engine = transfer->engine;
	const struct nixl_string *text = options && options->notifies ? &options->notification : NULL;
	char *kept = transfer->notification;

	if (text && text->bytes >= NOTIFICATION_BYTES)
		kept = transfer->long_notification = malloc(text->bytes + 1);
	if (!kept)
		return false;
	if (text) {
		memcpy(kept, text->data, text->bytes);
		kept[text->bytes] = 0;
	}
	transfer->options = (struct nixl_options){
		.notification = {.data = kept, .bytes = text ? text->bytes : 0},
		.notifies = text != NULL,
		.custom = {.data = ""},
	};
	transfer->arguments = *arguments;
	transfer->state = HELD;
	pthread_mutex_lock(&engine->lock);
	transfer->next = engine->held;
	transfer->link = &engine->held;
	if (engine->held)
		engine->held->link = &transfer->next;
	engine->held = transfer;
	pthread_mutex_unlock(&engine->lock);
	return true;
}

void nixl_transfer_peer_gone(struct nixl_engine *engine, const struct nixl_string *peer)
{
	struct nixl_transfer *next;

	pthread_mutex_lock(&engine->lock);
	for (struct nixl_transfer *one = engine->held; one; one = next) {
		next = one->next;
		if (peer && (one->arguments.peer->bytes != peer->bytes ||
			     memcmp(one->arguments.peer->data, peer->data, peer->bytes)))
			continue;
		unlist(one);
		nixl_permit_drop(&one->permit); /* the program may never ask for its status */
		one->state = LOST;
	}
	pthread_mutex_unlock(&engine->lock);
}

/* ---- posted ------------------------------------------------------------------------------------------------------------- */

static int ended(struct nixl_transfer *transfer, int status)
{
	if (status != NIXL_IN_PROGRESS) {
		transfer->state = IDLE;
		nixl_permit_end(&transfer->permit, status == NIXL_SUCCESS);
	}
	return status;
}

static int post(const struct nixl_object *engine, struct nixl_transfer *transfer,
		const struct nixl_arguments *arguments, const struct nixl_options *options)
{
	nixl_post function = (nixl_post)transfer->engine->real[NIXL_SLOT_POST];

	transfer->state = POSTED;
	nixl_permit_posted(&transfer->permit);
	return ended(transfer, function(engine, &arguments->operation, arguments->local, arguments->remote,
					arguments->peer, &transfer->real, options));
}

int nixl_transfer_post(const struct nixl_object *engine, struct nixl_transfer *transfer,
		       const struct nixl_arguments *arguments, const struct nixl_options *options)
{
	if (transfer->local)
		transfer->permit = (struct nixl_permit){0};
	else if (!nixl_permit_ask(&transfer->permit, &transfer->need) && hold(transfer, arguments, options))
		return NIXL_IN_PROGRESS;
	return post(engine, transfer, arguments, options);
}

int nixl_transfer_check(const struct nixl_object *engine, struct nixl_transfer *transfer)
{
	nixl_request function = (nixl_request)transfer->engine->real[NIXL_SLOT_CHECK];
	struct nixl_arguments arguments;
	int status;

	if (transfer->state == LOST) {
		forget(transfer);
		return NIXL_ERR_REMOTE_DISCONNECT;
	}
	if (transfer->state != HELD)
		return ended(transfer, function(engine, transfer->real));
	if (!nixl_permit_came(&transfer->permit))
		return NIXL_IN_PROGRESS;
	arguments = transfer->arguments;
	status = post(engine, transfer, &arguments, &transfer->options);
	forget(transfer);
	return status;
}

int nixl_transfer_release(const struct nixl_object *engine, struct nixl_transfer *transfer)
{
	nixl_request function = (nixl_request)transfer->engine->real[NIXL_SLOT_RELEASE];
	int status = function(engine, transfer->real);

	if (status < 0)
		return status; /* NIXL will try again */
	if (transfer->state == POSTED)
		nixl_permit_end(&transfer->permit, true);
	else
		nixl_permit_drop(&transfer->permit);
	forget(transfer);
	free(transfer);
	return status;
}
