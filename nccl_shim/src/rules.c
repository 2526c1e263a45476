/* The rules: where they come from, and which of them applies to a queue pair. The first rule that matches
 * library, process, role, communicator and peer decides. If none matches, the role alone decides. */
#define _GNU_SOURCE
#include "rules.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static struct mfs_rule rules[MFS_RULES_MAX];
static int rules_count;
static uint32_t rules_version;
static uint8_t class_dscp[MFS_CLASSES_MAX]; /* DSCP of each wire class, for lanes */
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;

static bool contains(const char *text, const char *part, size_t size)
{
	char bounded[33] = {0};

	memcpy(bounded, part, size < 32 ? size : 32);
	return !bounded[0] || strstr(text, bounded);
}

static bool same_prefix(const uint8_t *a, const uint8_t *b, unsigned bits)
{
	unsigned whole = bits / 8, rest = bits % 8;

	if (bits > 128 || memcmp(a, b, whole))
		return false;
	return !rest || !((a[whole] ^ b[whole]) & (0xff << (8 - rest)));
}

static const struct mfs_rule *match(const struct shim_qp *q, const char *communicator)
{
	for (int i = 0; i < rules_count; i++) {
		const struct mfs_rule *rule = &rules[i];

		if ((!rule->role || rule->role == q->found_role) &&
		    contains(q->library, rule->library, sizeof(rule->library)) &&
		    contains(program_invocation_short_name, rule->process, sizeof(rule->process)) &&
		    (!rule->communicator[0] || (communicator && contains(communicator, rule->communicator,
									 sizeof(rule->communicator)))) &&
		    same_prefix(q->peer.raw, rule->peer, rule->peer_prefix_bits))
			return rule;
	}
	return NULL;
}

static uint8_t stage_of_role(uint8_t role)
{
	switch (role) {
	case MFS_ROLE_NCCL_DATA:
		return MFS_STAGE_COLLECTIVE;
	case MFS_ROLE_KV:
		return MFS_STAGE_P2D;
	case MFS_ROLE_BULK:
		return MFS_STAGE_BACKGROUND;
	default:
		return MFS_STAGE_CONTROL;
	}
}

struct shim_decision shim_rules_decide(const struct shim_qp *q, const char *communicator)
{
	struct shim_decision decision = {.dscp = MFS_DSCP_KEEP};
	const struct mfs_rule *rule;

	pthread_mutex_lock(&rules_lock);
	rule = match(q, communicator);
	decision.role =
		rule && rule->set_role && rule->set_role < MFS_ROLES_MAX ? rule->set_role : q->found_role;
	decision.stage = stage_of_role(decision.role);
	if (rule) {
		decision.stage = rule->stage < MFS_STAGES_MAX ? rule->stage : MFS_STAGE_BACKGROUND;
		decision.hold =
			rule->action == MFS_RULE_HOLD && !(MFS_STAGES_UNSCHEDULED >> decision.stage & 1);
		decision.dscp = rule->dscp;
	}
	if (q->lane >= 0) { /* the code that made it asks for permits itself */
		decision.hold = false;
		decision.dscp = class_dscp[q->lane];
	}
	pthread_mutex_unlock(&rules_lock);
	return decision;
}

static uint8_t dscp_of_class(struct mfs_client *client, int wire_class)
{
	return atomic_load_explicit(&mfs_client_segment(client)->header.dscp[wire_class],
				    memory_order_relaxed);
}

/* Reads the daemon's rules. Returns their number, or -EAGAIN. */
int shim_rules_load(struct mfs_client *client)
{
	struct mfs_rule fresh[MFS_RULES_MAX];
	uint32_t version = UINT32_MAX;
	int n = mfs_client_rules(client, fresh, MFS_RULES_MAX, &version);

	if (n < 0 || version == UINT32_MAX) /* the daemon is writing: keep the old rules for now */
		return -EAGAIN;
	pthread_mutex_lock(&rules_lock);
	memcpy(rules, fresh, (size_t)n * sizeof(*rules));
	for (int i = 0; i < MFS_CLASSES_MAX; i++)
		class_dscp[i] = dscp_of_class(client, i);
	rules_count = n;
	rules_version = version;
	pthread_mutex_unlock(&rules_lock);
	return n;
}

/* Sets rules that never change, with the DSCP of MFS_CLASSES_MAX classes: see mark.c. */
void shim_rules_set(const struct mfs_rule *given, int count, const uint8_t *dscp)
{
	pthread_mutex_lock(&rules_lock);
	memcpy(rules, given, (size_t)count * sizeof(*rules));
	memcpy(class_dscp, dscp, sizeof(class_dscp));
	rules_count = count;
	pthread_mutex_unlock(&rules_lock);
}

bool shim_rules_changed(struct mfs_client *client)
{
	struct mfs_segment *segment = mfs_client_segment(client);
	bool changed = atomic_load_explicit(&segment->rules.version, memory_order_relaxed) != rules_version;

	for (int i = 0; i < MFS_CLASSES_MAX; i++)
		changed |= class_dscp[i] != dscp_of_class(client, i);
	return changed;
}

void shim_rules_after_fork(void)
{
	pthread_mutex_init(&rules_lock, NULL);
}
