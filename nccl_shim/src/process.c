/* The state of the process. See process.h. */
#include "process.h"

struct shim shim;
struct shim_detached shim_detached;
