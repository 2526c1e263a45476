/* One line for each reason, once, on stderr, prefix "mfs: ". */
#ifndef MFS_SHIM_LOG_H
#define MFS_SHIM_LOG_H

enum shim_reason {
	SHIM_REASON_ATTACH,
	SHIM_REASON_LOST,
	SHIM_REASON_HUNG,
	SHIM_REASON_BACK,
	SHIM_REASON_MODE,
	SHIM_REASON_SECURE,
	SHIM_REASON_MEMORY,
	SHIM_REASON_THREAD,
	SHIM_REASON_NIC,
	SHIM_REASON_NIC_LATE,
	SHIM_REASON_POST,
	SHIM_REASON_COMMUNICATORS,
	SHIM_REASON_CLASS,
	SHIM_REASON_VERSION,
	SHIM_REASON_STORE_LEASE,
	SHIM_REASON_MAX
};

void shim_log_load(void);
void shim_log(enum shim_reason reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
