/* One NIXL request: a transfer that asks for a permit, is held, posted, and completed. */
#ifndef MFS_NIXL_TRANSFER_H
#define MFS_NIXL_TRANSFER_H

#include "nixl.h"

struct nixl_transfer;

/* The arguments of NIXL's calls that concern a request. */
struct nixl_arguments {
	int operation;
	const struct nixl_descriptors *local, *remote;
	const struct nixl_string *peer;
};

/* Returns NULL if there is no memory; the request then stays the real engine's own. */
struct nixl_transfer *nixl_transfer_new(struct nixl_engine *engine, struct nixl_object *real,
					const struct nixl_arguments *arguments);
/* Returns the transfer behind a request. NULL: the request is the real engine's own. */
struct nixl_transfer *nixl_transfer_of(struct nixl_object *request);
struct nixl_object *nixl_transfer_request(struct nixl_transfer *transfer);
/* Returns where the real engine's request is stored. */
struct nixl_object **nixl_transfer_real(struct nixl_transfer *transfer);

/* These three stand for the real engine's postXfer, checkXfer and releaseReqH. */
int nixl_transfer_post(const struct nixl_object *engine, struct nixl_transfer *transfer,
		       const struct nixl_arguments *arguments, const struct nixl_options *options);
int nixl_transfer_check(const struct nixl_object *engine, struct nixl_transfer *transfer);
int nixl_transfer_release(const struct nixl_object *engine, struct nixl_transfer *transfer);

/* The peer has gone or, with NULL, the engine is being deleted: what is held for it is never posted. */
void nixl_transfer_peer_gone(struct nixl_engine *engine, const struct nixl_string *peer);

#endif
