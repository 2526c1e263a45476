/* Marking without a daemon. */
#ifndef MFS_SHIM_MARK_H
#define MFS_SHIM_MARK_H

#include <stdbool.h>

/* Reads MFS_MARK, and sets the rules that it has. False: it cannot be used, which has been logged. */
bool shim_mark_load(void);

/* Whether the process only marks: its queue pairs are followed until they are connected, and nothing else is done. */
bool shim_marking(void);

#endif
