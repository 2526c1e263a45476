/* Defaults and limits of the policy, and its rules for callers that have no queue. */
#include "rules.h"

#include <errno.h>
#include <stddef.h>

#define ROW(type, field, fallback, least, most) \
	{#field,                                \
	 fallback,                              \
	 least,                                 \
	 most,                                  \
	 offsetof(struct mfs_policy, field),    \
	 _Generic((type)0,                      \
		 double: MFS_PARAMETER_DOUBLE,  \
		 uint64_t: MFS_PARAMETER_U64,   \
		 default: MFS_PARAMETER_U32)},

static const struct mfs_parameter PARAMETER[] = {MFS_POLICY_PARAMETERS(ROW)};

#define PARAMETERS (sizeof(PARAMETER) / sizeof(*PARAMETER))

const struct mfs_parameter *mfs_policy_parameter(uint32_t index)
{
	return index < PARAMETERS ? &PARAMETER[index] : NULL;
}

double mfs_policy_get(const struct mfs_policy *policy, const struct mfs_parameter *parameter)
{
	const void *field = (const char *)policy + parameter->offset;

	switch (parameter->kind) {
	case MFS_PARAMETER_DOUBLE:
		return *(const double *)field;
	case MFS_PARAMETER_U64:
		return (double)*(const uint64_t *)field;
	default:
		return *(const uint32_t *)field;
	}
}

void mfs_policy_set(struct mfs_policy *policy, const struct mfs_parameter *parameter, double value)
{
	const double most = parameter->kind == MFS_PARAMETER_U32 ? (double)UINT32_MAX : (double)MFS_TIME_MAX;
	const double clipped = value > 0.0 ? value < most ? value : most : 0.0; /* applies to integers */
	void *field = (char *)policy + parameter->offset;

	switch (parameter->kind) {
	case MFS_PARAMETER_DOUBLE:
		*(double *)field = value;
		break;
	case MFS_PARAMETER_U64:
		*(uint64_t *)field = (uint64_t)clipped;
		break;
	default:
		*(uint32_t *)field = (uint32_t)clipped;
	}
}

void mfs_policy_default(struct mfs_policy *policy, uint32_t classes)
{
	double threshold = MFS_THRESHOLD_TOP;

	for (uint32_t i = 0; i < PARAMETERS; i++)
		mfs_policy_set(policy, &PARAMETER[i], PARAMETER[i].fallback);
	for (uint32_t i = 0; i < MFS_LEVELS_MAX; i++) {
		policy->threshold[i] = threshold;
		threshold /= MFS_THRESHOLD_BASE;
	}
	policy->classes = classes;
}

static bool in_range(const struct mfs_policy *policy)
{
	for (uint32_t i = 0; i < PARAMETERS; i++) {
		const double value = mfs_policy_get(policy, &PARAMETER[i]);

		/* written so that NaN fails */
		if (!(value >= PARAMETER[i].least && value <= PARAMETER[i].most))
			return false;
	}
	return true;
}

static bool levels_valid(const struct mfs_policy *policy)
{
	if (policy_rules(policy)->levels && policy->levels < 2)
		return false;
	for (uint32_t i = 0; i + 1 < policy->levels; i++)
		if (!(policy->threshold[i] > 0.0 && policy->threshold[i] <= 1.0) ||
		    (i && !(policy->threshold[i] < policy->threshold[i - 1])))
			return false;
	return policy->rho_max < 1.0;
}

int mfs_policy_check(struct mfs_policy *policy)
{
	if (!in_range(policy) || !levels_valid(policy))
		return -EINVAL;
	if (policy->variant == MFS_VARIANT_PAPER)
		policy->early_order = MFS_EARLY_RANK;
	return 0;
}

bool mfs_policy_has_levels(const struct mfs_policy *policy)
{
	return policy_rules(policy)->levels;
}

static uint8_t class_early(const struct mfs_policy *policy, enum mfs_tier tier,
			   const struct mfs_early_facts *facts)
{
	const uint8_t fixed = policy_class_of_tier(policy, tier);

	return fixed == MFS_CLASS_ASK ? policy_rules(policy)->class_early(policy, facts) : fixed;
}

static uint8_t class_last(const struct mfs_policy *policy, enum mfs_tier tier,
			  const struct mfs_last_facts *facts)
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
	if (facts->deadline_ns == MFS_TIME_MAX)
		return MFS_TIME_NEVER;
	return policy_rules(policy)->evaluate(policy, facts);
}

void mfs_policy_reasons(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			struct mfs_reasons *reasons)
{
	policy_rules(policy)->reasons(policy, facts, reasons);
}

void mfs_policy_place_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts, bool pruned,
			    struct mfs_place *place)
{
	static const uint32_t stage_order[] = {[MFS_STAGE_CONTROL] = 0,
					       [MFS_STAGE_COLLECTIVE] = 1,
					       [MFS_STAGE_REUSE] = 2};
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

void mfs_policy_place_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			   struct mfs_place *place)
{
	const struct policy_rules *rules = policy_rules(policy);
	const enum mfs_tier tier = facts->pruned ? MFS_TIER_SCAVENGER : rules->tier_last(&facts->decision);
	const uint64_t key = rules->key_last(policy, facts, tier);

	*place = (struct mfs_place){.tier = tier, .wire_class = class_last(policy, tier, facts)};
	if (tier == MFS_TIER_CRITICAL && policy_by_size(policy))
		place->key = (struct mfs_order_key){.tier = MFS_TIER_EARLY,
						    .first = (uint32_t)(key >> 40),
						    .second = key >> 2 & ((1ULL << 38) - 1),
						    .third = key & 3};
	else
		place->key = (struct mfs_order_key){.tier = tier,
						    .first = (uint32_t)(key >> 60),
						    .second = key & MFS_TIME_MAX};
}
