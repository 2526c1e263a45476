/* One line for each reason, once, on stderr, prefix "mfs: ". */
#ifndef MFS_NIXL_LOG_H
#define MFS_NIXL_LOG_H

enum nixl_reason {
	NIXL_REASON_REAL,   /* the real plugin cannot be loaded */
	NIXL_REASON_SLOTS,  /* its functions are different */
	NIXL_REASON_ATTACH, /* the daemon refuses the program */
	NIXL_REASON_NIC,    /* the daemon has no place for the network card */
	NIXL_REASON_SHIM,   /* the preloaded library is of another version */
	NIXL_REASON_THREAD,
	NIXL_REASON_MODE,
	NIXL_REASONS
};

void nixl_log(enum nixl_reason reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
