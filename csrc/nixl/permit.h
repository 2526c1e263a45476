/* One permit. */
#ifndef MFS_NIXL_PERMIT_H
#define MFS_NIXL_PERMIT_H

#include "nixl.h"

/* What a transfer moves. */
struct nixl_need {
	uint64_t bytes;
	uint64_t address; /* of its first byte here */
	uint32_t peer;    /* nixl_name_peer of the other agent */
	bool incoming;
};

/* Asks. True: the transfer may go, with a permit or without; false: it is to wait, see nixl_permit_came. */
bool nixl_permit_ask(struct nixl_permit *permit, const struct nixl_need *need);

/* True: it may go, because the permit is there, or because it will not wait any longer. */
bool nixl_permit_came(struct nixl_permit *permit);

/* It was handed to the network. */
void nixl_permit_posted(const struct nixl_permit *permit);

/* Its bytes have arrived, or never will. */
void nixl_permit_end(struct nixl_permit *permit, bool arrived);

/* It is not sent at all; nixl_permit_posted was not called. */
void nixl_permit_drop(struct nixl_permit *permit);

#endif
