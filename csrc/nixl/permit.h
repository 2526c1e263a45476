/* One permit. */
#ifndef MFS_NIXL_PERMIT_H
#define MFS_NIXL_PERMIT_H

#include "nixl.h"

/* What a transfer moves. */
struct nixl_need {
	uint64_t bytes;
	uint64_t address; /* of the first local byte */
	uint32_t peer;    /* nixl_name_peer of the other agent */
	bool incoming;
};

/* Asks for a permit. True: the transfer may go, with or without one; false: it waits, see nixl_permit_came. */
bool nixl_permit_ask(struct nixl_permit *permit, const struct nixl_need *need);

/* True if the transfer may go: its permit has arrived, or its hold is over. */
bool nixl_permit_came(struct nixl_permit *permit);

/* The transfer was handed to the network. */
void nixl_permit_posted(const struct nixl_permit *permit);

/* The transfer's bytes have arrived, or never will. */
void nixl_permit_end(struct nixl_permit *permit, bool arrived);

/* The transfer is not sent at all; nixl_permit_posted was not called. */
void nixl_permit_drop(struct nixl_permit *permit);

#endif
