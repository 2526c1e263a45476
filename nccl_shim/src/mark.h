/* Marking without a daemon. */
#ifndef MFS_SHIM_MARK_H
#define MFS_SHIM_MARK_H

#include <stdbool.h>

/* Reads MFS_MARK and sets the rules in it. Returns false, and has logged the reason, if it cannot be used. */
bool shim_mark_load(void);

/* True if the process only marks: its queue pairs are followed until they are connected, and nothing else is done. */
bool shim_marking(void);

#endif
