/* Variant mfs. Last stages go by deadline. Early stages, which block a unit, go by how long they block it.
 * It has no levels and needs no measured load. */
#include "rules.h"

#define LOAD_CLASSES 4
#define LAST_CLASSES 3

/* How the K wire classes are divided. Collectives and control have the highest alone; pruned requests and
 * background have the lowest alone. Between them are loads, the shortest first, and last stages, by when
 * they are due. The longest loads share a class with last stages (docs/results/studies.md). */
static const struct layout {
	uint8_t load[LOAD_CLASSES];
	uint8_t last[LAST_CLASSES];
} LAYOUT[MFS_CLASSES_MAX + 1] = {
	[2] = {{0, 0, 0, 0}, {1, 1, 1}}, /* last stages together with what is pruned */
	/* loads together with collectives: what may be deferred is below what may not */
	[3] = {{0, 0, 0, 0}, {1, 1, 1}},
	[4] = {{1, 1, 1, 2}, {2, 2, 2}},
	[5] = {{1, 1, 1, 2}, {2, 2, 3}},
	[6] = {{1, 2, 2, 3}, {3, 3, 4}},
	[7] = {{1, 2, 2, 4}, {3, 4, 5}},
	[8] = {{1, 2, 3, 5}, {4, 5, 6}},
};

/* ---- early stages -------------------------------------------------------------------------------------- */

/* True if what a request waits for before it runs cannot arrive in time any more, even alone on the port. */
static bool late(const struct mfs_early_facts *facts)
{
	return facts->needed_ns &&
	       facts->now_ns + policy_transfer_ns(facts->bytes, facts->rate_bytes_per_s) > facts->needed_ns;
}

static uint64_t key_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts)
{
	uint64_t second;

	if (!policy_by_size(policy))
		return facts->rank;
	if (facts->owner == MFS_OWNER_UNKNOWN)
		return (uint64_t)MFS_SIZE_NONE << 32 | MFS_RANK_NONE;
	second = policy_size_second(facts->bytes, facts->rank);
	if (facts->owner != MFS_OWNER_BATCH && late(facts))
		second += (uint64_t)MFS_LATE_SIZES << 32;
	return second;
}

/* How many limits a request's load exceeds: 0 for the shortest loads. */
static uint32_t load_step(const struct mfs_policy *policy, const struct mfs_early_facts *facts)
{
	const uint64_t load_ns = policy_transfer_ns(facts->bytes_class, facts->rate_bytes_per_s)
				 << (late(facts) ? MFS_LATE_SIZES : 0);

	return (uint32_t)(load_ns > policy->short_load_ns / MFS_LOAD_STEP) +
	       (uint32_t)(load_ns > policy->short_load_ns) +
	       (uint32_t)(load_ns > policy->short_load_ns * MFS_LOAD_STEP);
}

/* The last class is for loads that are known to take the port long. */
static uint8_t class_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts)
{
	const uint8_t *load = LAYOUT[policy->classes].load;

	if (facts->stage != MFS_STAGE_REUSE)
		return 0;
	if (facts->owner == MFS_OWNER_REQUEST && policy_by_size(policy) && policy->short_load_ns)
		return load[load_step(policy, facts)];
	return load[policy_lesser(facts->rli, LOAD_CLASSES - 2)];
}

/* ---- last stages --------------------------------------------------------------------------------------- */

/* Time to spare at the port's full rate. */
static int64_t laxity(const struct mfs_last_facts *facts, int64_t alone_ns)
{
	const int64_t now = (int64_t)facts->now_ns;
	const uint64_t tail = facts->bytes_tail < facts->bytes ? facts->bytes_tail : facts->bytes;
	const int64_t computed = policy_computes(facts) ? (int64_t)facts->compute_end_ns : now;
	const uint64_t tail_ns = tail ? policy_transfer_ns(tail, facts->rate_bytes_per_s) : 0;
	const int64_t after = computed + (int64_t)tail_ns;

	return (int64_t)facts->deadline_ns - (after > now + alone_ns ? after : now + alone_ns);
}

static int64_t alone(const struct mfs_last_facts *facts)
{
	return (int64_t)policy_transfer_ns(facts->bytes, facts->rate_bytes_per_s);
}

static int64_t guard(const struct mfs_policy *policy, const struct mfs_last_facts *facts)
{
	return policy_budget_share_ns(facts, policy->critical_laxity_share);
}

/* A lost request is due again some budgets after its deadline, so it delays no request that is due before then. */
static uint64_t due(const struct mfs_last_facts *facts)
{
	if (!facts->decision.lost)
		return facts->deadline_ns;
	if (!facts->budget_ns || facts->budget_ns > (MFS_TIME_MAX - facts->deadline_ns) / MFS_RENEWAL_BUDGETS)
		return MFS_TIME_MAX;
	return facts->deadline_ns + MFS_RENEWAL_BUDGETS * facts->budget_ns;
}

static enum mfs_tier tier_last(const struct mfs_decision *decision)
{
	return decision->critical && !decision->lost ? MFS_TIER_CRITICAL : MFS_TIER_LAST;
}

static uint64_t key_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			 enum mfs_tier tier)
{
	/* among the early flows, before batches of its size */
	if (tier == MFS_TIER_CRITICAL && policy_by_size(policy))
		return policy_early_key(0, policy_size_second(facts->bytes, 0), STAGE_LAST);
	return tier == MFS_TIER_LAST ? due(facts) : facts->deadline_ns;
}

/* A request becomes critical when it is nearly out of slack, and only if the unit that would have to wait
 * has at least as much slack left after the whole transfer. */
static bool admits(const struct mfs_last_facts *facts, int64_t laxity_ns, int64_t guard_ns, int64_t alone_ns)
{
	if (laxity_ns < 0 || laxity_ns >= guard_ns)
		return false;
	return facts->unit_slack_ns == INT64_MAX || facts->unit_slack_ns - alone_ns >= laxity_ns;
}

static uint64_t evaluate(const struct mfs_policy *policy, struct mfs_last_facts *facts)
{
	const int64_t alone_ns = alone(facts), guard_ns = guard(policy, facts);
	const int64_t laxity_ns = laxity(facts, alone_ns);
	const int64_t latest_start = (int64_t)facts->deadline_ns - alone_ns;
	struct mfs_decision *decision = &facts->decision;

	decision->lost = policy_lost(policy, facts, laxity_ns);
	if (decision->lost)
		return MFS_TIME_NEVER;
	if (!decision->critical)
		decision->critical = admits(facts, laxity_ns, guard_ns, alone_ns);
	return policy_evaluate_at_ns(policy, facts,
				     latest_start + 1 - (!decision->critical && guard_ns > 0 ? guard_ns : 0));
}

static void reasons(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
		    struct mfs_reasons *reasons)
{
	*reasons = (struct mfs_reasons){
		.laxity_ns = laxity(facts, alone(facts)),
		.guard_ns = guard(policy, facts),
		.due_ns = due(facts),
		.effective_rate_bytes_per_s = facts->rate_bytes_per_s,
		.level_ns = INT64_MAX,
	};
}

/* Several hosts may send to one port, which knows no deadlines. There the class tells which last stages
 * are due first. A flow without a deadline is never known to be due. */
static uint8_t class_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts)
{
	const struct layout *layout = &LAYOUT[policy->classes];
	const uint64_t now_ns = facts->now_ns, soon_ns = policy->soon_ns;
	uint64_t due_ns;

	if (tier_last(&facts->decision) == MFS_TIER_CRITICAL)
		return layout->load[0];
	if (facts->deadline_ns == MFS_TIME_MAX || !soon_ns)
		return layout->last[LAST_CLASSES - 1];
	due_ns = due(facts);
	return layout->last[(due_ns >= now_ns + soon_ns / MFS_SOON_STEP) + (due_ns >= now_ns + soon_ns)];
}

const struct policy_rules policy_mfs = {
	.key_early = key_early,
	.tier_last = tier_last,
	.key_last = key_last,
	.evaluate = evaluate,
	.reasons = reasons,
	.class_early = class_early,
	.class_last = class_last,
};
