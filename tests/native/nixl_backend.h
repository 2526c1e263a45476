/* A NIXL backend plugin that moves nothing and records its calls: tests/native/nixl_backend.c. */
#ifndef NIXL_BACKEND_H
#define NIXL_BACKEND_H

#include "../../csrc/nixl/abi.h"

#define BACKEND_TEXT_MAX 4096

struct backend {
	int engines, prepared, posted, checked, released, estimated, disconnected;
	int status; /* returned by post and check */
	int last_operation;
	bool notifies;
	char notification[BACKEND_TEXT_MAX];
	const void *last_request; /* passed to the last call */
	const void *own_request;  /* created last */
	void *table;		  /* function table of its engines */
};

#endif
