/* Variant paper: the paper's rules as written. Levels go by MLU: the share of a port's rate, after other
 * load, that a request needs to be in time. Only this variant has levels. */
#include "rules.h"

static uint64_t key_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts)
{
	(void)policy;
	return facts->rank;
}

static enum mfs_tier tier_last(const struct mfs_decision *decision)
{
	if (decision->lost)
		return MFS_TIER_SCAVENGER;
	return decision->critical ? MFS_TIER_CRITICAL : MFS_TIER_LAST;
}

static uint64_t key_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			 enum mfs_tier tier)
{
	(void)policy;
	return facts->deadline_ns | (tier == MFS_TIER_LAST ? (uint64_t)facts->decision.level << 60 : 0);
}

/* The rate that other load leaves of the port. */
static uint64_t effective_rate(const struct mfs_policy *policy, const struct mfs_last_facts *facts)
{
	const double rho = facts->rho < policy->rho_max ? facts->rho : policy->rho_max;
	const double left = (double)facts->rate_bytes_per_s * (1.0 - (rho > 0.0 ? rho : 0.0));

	return left < 1.0 ? 1 : (uint64_t)left;
}

/* The first time at which MLU reaches Q_(i+1). May be negative. */
static int64_t crossing_ns(const struct mfs_last_facts *facts, uint64_t rate, double threshold)
{
	double lead = (double)(int64_t)facts->bytes * 1e9 / ((double)rate * threshold);

	const int64_t lead_ns = lead < (double)MFS_TIME_MAX ? (int64_t)lead : (int64_t)MFS_TIME_MAX;

	return (int64_t)facts->deadline_ns - lead_ns;
}

/* The next evaluation is at most half way to the next level, since the load may rise until then. */
static uint64_t evaluate(const struct mfs_policy *policy, struct mfs_last_facts *facts)
{
	const int64_t now = (int64_t)facts->now_ns;
	const int64_t latest_start = (int64_t)facts->deadline_ns -
				     (int64_t)policy_transfer_ns(facts->bytes, facts->rate_bytes_per_s);
	const uint64_t rate = effective_rate(policy, facts);
	struct mfs_decision *decision = &facts->decision;
	int64_t change = latest_start + 1; /* lost from this time on */

	decision->lost = policy_lost(policy, facts, latest_start - now);
	while (decision->level > 1) {
		const int64_t crossing = crossing_ns(facts, rate, policy->threshold[decision->level - 2]);

		if (now < crossing) {
			const int64_t half = now + (crossing - now) / 2;

			change = half < change ? half : change;
			break;
		}
		decision->level--;
	}
	if (decision->level == 1)
		decision->critical = true;
	return decision->lost ? MFS_TIME_NEVER : policy_evaluate_at_ns(policy, facts, change);
}

static void reasons(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
		    struct mfs_reasons *reasons)
{
	const uint64_t rate = effective_rate(policy, facts);
	const uint32_t level = facts->decision.level;

	*reasons = (struct mfs_reasons){
		.laxity_ns = (int64_t)facts->deadline_ns - (int64_t)facts->now_ns -
			     (int64_t)policy_transfer_ns(facts->bytes, facts->rate_bytes_per_s),
		.due_ns = facts->deadline_ns,
		.effective_rate_bytes_per_s = rate,
		.level_ns = level > 1 ? crossing_ns(facts, rate, policy->threshold[level - 2]) : INT64_MAX,
	};
}

static uint8_t class_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts)
{
	return (uint8_t)(1 + policy_lesser(facts->rli, policy->classes - 3));
}

/* Critical requests have the highest class alone; level 2 shares a class with collectives. */
static uint8_t class_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts)
{
	const uint32_t level = facts->decision.level;

	if (tier_last(&facts->decision) == MFS_TIER_CRITICAL)
		return 0;
	return (uint8_t)policy_lesser(level > 2 ? level - 1 : 1, policy->classes - 2);
}

const struct policy_rules policy_paper = {
	.levels = true,
	.demotes_running = true,
	.key_early = key_early,
	.tier_last = tier_last,
	.key_last = key_last,
	.evaluate = evaluate,
	.reasons = reasons,
	.class_early = class_early,
	.class_last = class_last,
};
