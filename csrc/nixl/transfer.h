/* One request of NIXL's: a transfer that is asked for, held, posted, and given back. */
#ifndef MFS_NIXL_TRANSFER_H
#define MFS_NIXL_TRANSFER_H

#include "nixl.h"

struct nixl_transfer;

/* What NIXL hands over with a request. */
struct nixl_arguments {
	int operation;
	const struct nixl_descriptors *local, *remote;
	const struct nixl_string *peer;
};

/* NULL: no memory; the request then stays the real engine's own. */
struct nixl_transfer *nixl_transfer_new(struct nixl_engine *engine, struct nixl_object *real,
					const struct nixl_arguments *arguments);
/* The transfer behind a request; NULL: the request is the real engine's own. */
struct nixl_transfer *nixl_transfer_of(struct nixl_object *request);
struct nixl_object *nixl_transfer_request(struct nixl_transfer *transfer);
/* The real engine's request. */
struct nixl_object **nixl_transfer_real(struct nixl_transfer *transfer);

/* As the real engine's postXfer, checkXfer and releaseReqH. */
int nixl_transfer_post(const struct nixl_object *engine, struct nixl_transfer *transfer,
		       const struct nixl_arguments *arguments, const struct nixl_options *options);
int nixl_transfer_check(const struct nixl_object *engine, struct nixl_transfer *transfer);
int nixl_transfer_release(const struct nixl_object *engine, struct nixl_transfer *transfer);

/* The peer has gone, or with NULL the engine goes: what is held for it is never posted. */
void nixl_transfer_peer_gone(struct nixl_engine *engine, const struct nixl_string *peer);

#endif
