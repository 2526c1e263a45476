/* The rules that classify queue pairs: those of the daemon, or those of the environment (mark.c). */
#ifndef MFS_SHIM_RULES_H
#define MFS_SHIM_RULES_H

#include "records.h"

/* What the rules decide about a queue pair. */
struct shim_decision {
	uint8_t role, stage, dscp;
	bool hold;
};

/* `communicator` is the name of its NCCL communicator, or NULL. */
struct shim_decision shim_rules_decide(const struct shim_qp *q, const char *communicator);
int shim_rules_load(struct mfs_client *client);
void shim_rules_set(const struct mfs_rule *given, int count, const uint8_t *dscp);
bool shim_rules_changed(struct mfs_client *client);
void shim_rules_after_fork(void);

#endif
