/* A backend plugin of NIXL's that moves nothing and notes what it is asked: tests/native/nixl_backend.c. */
#ifndef NIXL_BACKEND_H
#define NIXL_BACKEND_H

#include "../../csrc/nixl/abi.h"

#define BACKEND_TEXT_MAX 4096

struct backend {
	int engines, prepared, posted, checked, released, estimated, disconnected;
	int status; /* of what is posted, and of what is checked */
	int last_operation;
	bool notifies;
	char notification[BACKEND_TEXT_MAX];
	const void *last_request; /* that a call was given */
	const void *own_request;  /* that was made last */
	void *table;		  /* of its engines */
};

#endif
