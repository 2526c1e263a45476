/* Marking without a daemon: mark.c. */
#ifndef MFS_SHIM_MARK_H
#define MFS_SHIM_MARK_H

#include "shim.h"

/* Reads MFS_MARK, and gives its rules to classify.c. False: it cannot be used, which has been said. */
bool shim_mark_load(void);

/* Whether the process only marks: its queue pairs are followed until they are connected, and nothing else is done. */
bool shim_marking(void);

#endif
