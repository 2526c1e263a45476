/* What a queue pair is for: a role found by its shape and by who made it, then the daemon's rules.
 *
 * NCCL's queue pairs by capabilities (measured, notes in docs/internals/shim.md): clear-to-send has receives, data has
 * none; the flush queue pair is connected to itself, which is seen at the transition to RTR.
 */
#define _GNU_SOURCE
#include "owner.h"

#include <errno.h>
#include <string.h>

static struct mfs_rule rules[MFS_RULES_MAX];
static int rules_count;
static uint32_t rules_version;
static uint8_t class_dscp[MFS_CLASSES_MAX]; /* of the classes on the wire, for lanes */
static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;

/* NCCL may be linked statically into any library, so its defaults are known by shape, too: 2 x 256 send requests on both
 * ends of a connection, and 256 receives on the receiving one. */
uint8_t shim_role_at_create(const char *library, const struct ibv_qp_cap *asked)
{
	const char *slash = strrchr(library, '/');
	const char *name = slash ? slash + 1 : library;
	bool shaped = asked->max_send_wr == 512 && asked->max_send_sge == 1 && asked->max_recv_sge == 1;

	if (strstr(name, "libnccl"))
		return asked->max_recv_wr ? MFS_ROLE_NCCL_CTS : MFS_ROLE_NCCL_DATA;
	if (strstr(library, "mooncake") || strstr(library, "libtransfer_engine") || strstr(library, "nixl"))
		return MFS_ROLE_KV;
	if (shaped && asked->max_recv_wr == 0)
		return MFS_ROLE_NCCL_DATA;
	if (shaped && asked->max_recv_wr == 256)
		return MFS_ROLE_NCCL_CTS;
	return MFS_ROLE_UNKNOWN;
}

/* NCCL says nothing when it connects a queue pair: see profiler.c for whose it is then thought to be. */
void shim_communicator_at_connect(struct shim_qp *q)
{
	if (q->found_role == MFS_ROLE_NCCL_DATA || q->found_role == MFS_ROLE_NCCL_CTS)
		q->communicator = shim_communicator_connecting();
}

/* Until 2.28 NCCL gives both ends of a connection the same shape. The first post tells them apart: data ends with an
 * immediate, clear-to-send is a plain write. It tells the communicator, too, where NCCL has said what it sends. The DSCP
 * stays as it was given at RTR, before anything was posted. */
void shim_role_at_post(struct shim_qp *q, const struct ibv_send_wr *wr)
{
	uint8_t dscp = q->dscp, role = q->found_role;
	int communicator = q->communicator;

	if (!atomic_exchange(&q->unsure, 0))
		return;
	while (wr->next)
		wr = wr->next;
	if (wr->opcode != IBV_WR_RDMA_WRITE_WITH_IMM)
		return;
	q->found_role = MFS_ROLE_NCCL_DATA;
	if (shim_collective.given)
		q->communicator = shim_collective.communicator;
	if (q->found_role == role && q->communicator == communicator)
		return;
	if (!shim_classify(q)) /* busy: the next post tries again */
		atomic_store(&q->unsure, 1);
	else if (q->communicator != communicator && q->dscp != dscp)
		shim_log(SHIM_REASON_CLASS,
			 "a queue pair of NCCL communicator \"%s\" was connected while it was not clear whose it is: it keeps "
			 "the DSCP that it has",
			 shim_communicator_name(q->communicator));
}

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

static const struct mfs_rule *match(const struct shim_qp *q)
{
	int communicator = atomic_load(&q->communicator);
	const char *name = communicator >= 0 ? shim_communicator_name(communicator) : NULL;

	for (int i = 0; i < rules_count; i++) {
		const struct mfs_rule *rule = &rules[i];

		if ((!rule->role || rule->role == q->found_role) &&
		    contains(q->library, rule->library, sizeof(rule->library)) &&
		    contains(program_invocation_short_name, rule->process, sizeof(rule->process)) &&
		    (!rule->communicator[0] || (name && contains(name, rule->communicator, sizeof(rule->communicator)))) &&
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

/* Applies the rules to a queue pair, at creation, when its peer is known, and when the rules change. False when it stayed
 * busy for too long. */
bool shim_classify(struct shim_qp *q)
{
	uint8_t role, stage, lane_dscp, dscp = MFS_DSCP_KEEP;
	const struct mfs_rule *rule;
	bool hold = false;

	pthread_mutex_lock(&rules_lock);
	lane_dscp = q->lane >= 0 ? class_dscp[q->lane] : MFS_DSCP_KEEP;
	rule = match(q);
	role = rule && rule->set_role && rule->set_role < MFS_ROLES_MAX ? rule->set_role : q->found_role;
	stage = stage_of_role(role);
	if (rule) {
		stage = rule->stage < MFS_STAGES_MAX ? rule->stage : MFS_STAGE_BACKGROUND;
		hold = rule->action == MFS_RULE_HOLD && stage != MFS_STAGE_CONTROL && stage != MFS_STAGE_COLLECTIVE;
		dscp = rule->dscp;
	}
	pthread_mutex_unlock(&rules_lock);
	if (q->lane >= 0) { /* its maker asks for permits */
		hold = false;
		dscp = lane_dscp;
	}

	if (!shim_owner_acquire_for(q, 100000000))
		return false;
	if (!shim_acquire_for(&q->polling, 100000000)) {
		shim_owner_leave(q);
		return false;
	}
	if (atomic_load(&q->live)) {
		q->dscp = dscp;
		if (q->client && role != q->role) {
			atomic_fetch_add_explicit(&q->report->queue_pairs[q->role], -1, memory_order_relaxed);
			atomic_fetch_add_explicit(&q->report->queue_pairs[role], 1, memory_order_relaxed);
		}
		q->role = role;
		q->stage = stage; /* what is in flight completes under the old one: see struct shim_signal */
		if (!atomic_load(&q->holds) && hold && q->may_hold && shim_hold_allocate(q)) {
			atomic_store(&q->wr_formed, atomic_load(&q->wr_posted));
			shim_owner_share(q);
			atomic_store_explicit(&q->holds, 1, memory_order_release);
		}
		atomic_store(&q->passes, !hold);
	}
	shim_release(&q->polling);
	shim_owner_leave(q);
	return true;
}

static uint8_t dscp_of_class(struct mfs_client *client, int wire_class)
{
	return atomic_load_explicit(&mfs_client_segment(client)->header.dscp[wire_class], memory_order_relaxed);
}

/* Reads the daemon's rules; answers their number, or -EAGAIN. */
int shim_rules_load(struct mfs_client *client)
{
	struct mfs_rule fresh[MFS_RULES_MAX];
	uint32_t version = UINT32_MAX;
	int n = mfs_client_rules(client, fresh, MFS_RULES_MAX, &version);

	if (n < 0 || version == UINT32_MAX) /* the daemon is just writing: the old rules stay for now */
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

/* Rules that stay, with the DSCP of MFS_CLASSES_MAX classes: see mark.c. */
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
