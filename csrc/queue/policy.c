/* Defaults and limits of the policy, and its rules for callers that have no queue. */
#include "policy.h"

#include <errno.h>

#define INTERVAL_MAX_NS 3600000000000ULL

void mfs_policy_default(struct mfs_policy *policy, uint32_t classes)
{
	double threshold = MFS_THRESHOLD_TOP;

	*policy = (struct mfs_policy){
		.variant = MFS_VARIANT_MFS,
		.early_order = MFS_EARLY_SHORTEST,
		.classes = classes,
		.levels = MFS_LEVELS_MAX,
		.rho_max = 0.95,
		.critical_laxity_share = 0.05,
		.readmission_margin = 0.05,
		.promotion_interval_ns = 1000000,
		.soon_ns = 500000000,
		.short_load_ns = 32000000,
	};
	for (uint32_t i = 0; i + 1 < MFS_LEVELS_MAX; i++) {
		policy->threshold[i] = threshold;
		threshold /= MFS_THRESHOLD_BASE;
	}
}

static bool share(double x)
{
	return x >= 0.0 && x <= 1.0; /* false for what is not a number */
}

static bool levels_valid(const struct mfs_policy *policy)
{
	if (policy->levels < (policy_rules(policy)->levels ? 2 : 1) || policy->levels > MFS_LEVELS_MAX)
		return false;
	for (uint32_t i = 0; i + 1 < policy->levels; i++)
		if (!(policy->threshold[i] > 0.0 && policy->threshold[i] <= 1.0) ||
		    (i && !(policy->threshold[i] < policy->threshold[i - 1])))
			return false;
	return share(policy->rho_max) && policy->rho_max < 1.0;
}

int mfs_policy_check(struct mfs_policy *policy)
{
	if (policy->variant != MFS_VARIANT_MFS && policy->variant != MFS_VARIANT_PAPER)
		return -EINVAL;
	if ((unsigned)policy->early_order > MFS_EARLY_SHORTEST)
		return -EINVAL;
	if (policy->classes < 2 || policy->classes > MFS_CLASSES_MAX || !levels_valid(policy))
		return -EINVAL;
	if (!share(policy->critical_laxity_share) || !share(policy->readmission_margin) ||
	    policy->promotion_interval_ns < 1 || policy->promotion_interval_ns > INTERVAL_MAX_NS ||
	    policy->soon_ns > INTERVAL_MAX_NS || policy->short_load_ns > INTERVAL_MAX_NS)
		return -EINVAL;
	if (policy->variant == MFS_VARIANT_PAPER)
		policy->early_order = MFS_EARLY_RANK;
	return 0;
}

bool mfs_policy_has_levels(const struct mfs_policy *policy)
{
	return policy_rules(policy)->levels;
}

static uint8_t class_early(const struct mfs_policy *policy, enum mfs_tier tier, const struct mfs_early_facts *facts)
{
	const uint8_t fixed = policy_class_of_tier(policy, tier);

	return fixed == MFS_CLASS_ASK ? policy_rules(policy)->class_early(policy, facts) : fixed;
}

static uint8_t class_last(const struct mfs_policy *policy, enum mfs_tier tier, const struct mfs_last_facts *facts)
{
	const uint8_t fixed = policy_class_of_tier(policy, tier);

	return fixed == MFS_CLASS_ASK ? policy_rules(policy)->class_last(policy, facts) : fixed;
}

uint8_t mfs_policy_class(const struct mfs_policy *policy, enum mfs_stage stage, uint32_t rli)
{
	const struct mfs_early_facts early = {.stage = (uint8_t)stage, .rli = rli, .owner = MFS_OWNER_BATCH};
	const struct mfs_last_facts last = {.deadline_ns = MFS_TIME_MAX};

	if (stage != MFS_STAGE_P2D)
		return class_early(policy, MFS_TIER_EARLY, &early);
	if (policy_rules(policy)->levels)
		return policy_class_of_tier(policy, MFS_TIER_LAST);
	return class_last(policy, MFS_TIER_LAST, &last);
}

struct mfs_decision mfs_policy_first(const struct mfs_policy *policy)
{
	return (struct mfs_decision){.level = policy_rules(policy)->levels ? (uint8_t)policy->levels : 0};
}

uint64_t mfs_policy_evaluate(const struct mfs_policy *policy, struct mfs_last_facts *facts)
{
	return facts->deadline_ns == MFS_TIME_MAX ? MFS_TIME_NEVER : policy_rules(policy)->evaluate(policy, facts);
}

void mfs_policy_reasons(const struct mfs_policy *policy, const struct mfs_last_facts *facts, struct mfs_reasons *reasons)
{
	policy_rules(policy)->reasons(policy, facts, reasons);
}

void mfs_policy_place_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts, bool pruned,
			    struct mfs_place *place)
{
	static const uint32_t stage_order[] = {
		[MFS_STAGE_CONTROL] = 0, [MFS_STAGE_COLLECTIVE] = 1, [MFS_STAGE_REUSE] = 2};
	const struct policy_rules *rules = policy_rules(policy);
	const bool reuse = facts->stage == MFS_STAGE_REUSE, background = facts->stage >= MFS_STAGE_P2D;

	*place = (struct mfs_place){.tier = MFS_TIER_EARLY};
	if (background || (reuse && pruned && (rules->demotes_running || facts->owner != MFS_OWNER_BATCH))) {
		place->tier = MFS_TIER_SCAVENGER;
		place->key.second = background && facts->needed_ns ? facts->needed_ns : MFS_TIME_MAX;
	} else {
		place->key.first = reuse ? policy_reuse_rli(policy, facts->rli) : facts->rli;
		place->key.second = rules->key_early(policy, facts);
		place->key.third = stage_order[facts->stage];
		place->late = facts->owner >= MFS_OWNER_REQUEST && policy_by_size(policy) &&
			      place->key.second > policy_size_second(facts->bytes, facts->rank);
	}
	place->key.tier = place->tier;
	place->wire_class = class_early(policy, place->tier, facts);
}

void mfs_policy_place_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts, struct mfs_place *place)
{
	const struct policy_rules *rules = policy_rules(policy);
	const enum mfs_tier tier = facts->pruned ? MFS_TIER_SCAVENGER : rules->tier_last(&facts->decision);
	const uint64_t key = rules->key_last(policy, facts, tier);

	*place = (struct mfs_place){.tier = tier, .wire_class = class_last(policy, tier, facts)};
	if (tier == MFS_TIER_CRITICAL && policy_by_size(policy))
		place->key = (struct mfs_order_key){
			.tier = MFS_TIER_EARLY, .first = (uint32_t)(key >> 40),
			.second = key >> 2 & ((1ULL << 38) - 1), .third = key & 3};
	else
		place->key = (struct mfs_order_key){
			.tier = tier, .first = (uint32_t)(key >> 60), .second = key & MFS_TIME_MAX};
}
