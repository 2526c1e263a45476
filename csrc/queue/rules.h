/* The table of a variant's rules, and the arithmetic that the variants share.
 *
 * The arithmetic is that of tests/specification, operation by operation, so both decide alike to the
 * nanosecond. Times are integers. A real number enters only through single IEEE operations that no
 * compiler may fuse (a product is only ever divided or truncated). */
#ifndef MFS_QUEUE_RULES_H
#define MFS_QUEUE_RULES_H

#include <mfs/policy.h>

#define NS_PER_S 1000000000ULL
#define STAGE_LAST 3u /* the stage that the key of a critical last stage has */

struct policy_rules {
	/* Last stages have levels by MLU, which depends on rho. */
	bool levels;
	/* Reuse of a pruned request goes to the scavenger even if its batch runs. */
	bool demotes_running;

	/* What orders early flows of equal RLI, in 38 bits. It is the same for everything that one owner
	 * has waiting. */
	uint64_t (*key_early)(const struct mfs_policy *policy, const struct mfs_early_facts *facts);
	/* The tier of a request that is not pruned. */
	enum mfs_tier (*tier_last)(const struct mfs_decision *decision);
	/* What orders the last stages of a tier, in 64 bits. */
	uint64_t (*key_last)(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			     enum mfs_tier tier);

	/* mfs_policy_evaluate, for a request that has a deadline. */
	uint64_t (*evaluate)(const struct mfs_policy *policy, struct mfs_last_facts *facts);

	void (*reasons)(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			struct mfs_reasons *reasons);

	/* The wire class of early stages, and of last stages that are not pruned. */
	uint8_t (*class_early)(const struct mfs_policy *policy, const struct mfs_early_facts *facts);
	uint8_t (*class_last)(const struct mfs_policy *policy, const struct mfs_last_facts *facts);
};

extern const struct policy_rules policy_mfs, policy_paper;

static inline const struct policy_rules *policy_rules(const struct mfs_policy *policy)
{
	return policy->variant == MFS_VARIANT_PAPER ? &policy_paper : &policy_mfs;
}

/* True if keys of early flows depend on bytes. Critical requests then have keys among them, too. */
static inline bool policy_by_size(const struct mfs_policy *policy)
{
	return policy->early_order == MFS_EARLY_SHORTEST;
}

/* How long the bytes take at that rate if they are alone, rounded up; at most MFS_TIME_MAX. */
static inline uint64_t policy_transfer_ns(uint64_t bytes, uint64_t rate_bytes_per_s)
{
	unsigned __int128 ns = (unsigned __int128)bytes * NS_PER_S + rate_bytes_per_s - 1;

	if (ns >> 64)
		ns /= rate_bytes_per_s;
	else /* below 17 GiB: one division of a machine word */
		ns = (uint64_t)ns / rate_bytes_per_s;
	return ns < MFS_TIME_MAX ? (uint64_t)ns : MFS_TIME_MAX;
}

/* The size class in the high bits, then the rank. A size class is the power of two of the KiB: 0 for less
 * than one KiB, n for 2^(n-1) to 2^n - 1. */
static inline uint64_t policy_size_second(uint64_t bytes, uint32_t rank)
{
	uint64_t kib = bytes >> 10; /* below 2^54 */

	return (uint64_t)(kib ? 64 - __builtin_clzll(kib) : 0) << 32 | rank;
}

/* The key of the early tier: RLI (17 bits and a carry), second (6 and 32), stage (2: control, collective,
 * reuse, STAGE_LAST). */
static inline uint64_t policy_early_key(uint64_t rli, uint64_t second, uint32_t stage)
{
	return rli << 40 | second << 2 | stage;
}

/* The RLI of reuse as it appears in its key. */
static inline uint32_t policy_reuse_rli(const struct mfs_policy *policy, uint32_t rli)
{
	return rli + (policy->early_order == MFS_EARLY_COLLECTIVE_FIRST);
}

static inline bool policy_computes(const struct mfs_last_facts *facts)
{
	return facts->compute_end_ns > facts->now_ns;
}

/* A share of the request's budget. */
static inline int64_t policy_budget_share_ns(const struct mfs_last_facts *facts, double share)
{
	return (int64_t)((double)(int64_t)facts->budget_ns * share);
}

/* A request is lost when it cannot meet its deadline even alone on the port. It stays lost until it has a
 * share of its budget to spare. */
static inline bool policy_lost(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			       int64_t laxity_ns)
{
	if (facts->decision.lost)
		return laxity_ns < policy_budget_share_ns(facts, policy->readmission_margin);
	return laxity_ns < 0;
}

/* Returns when to evaluate again a request that would change at `change_ns`. While its batch computes,
 * that is when compute ends. It is never before an interval has passed. */
static inline uint64_t policy_evaluate_at_ns(const struct mfs_policy *policy,
					     const struct mfs_last_facts *facts, int64_t change_ns)
{
	const int64_t soonest = (int64_t)(facts->now_ns + policy->promotion_interval_ns);
	const int64_t at_ns = policy_computes(facts) ? (int64_t)facts->compute_end_ns : change_ns;

	return (uint64_t)(at_ns > soonest ? at_ns : soonest);
}

/* The class of a tier whose flows all have the same; MFS_CLASS_ASK: the variant decides. */
static inline uint8_t policy_class_of_tier(const struct mfs_policy *policy, enum mfs_tier tier)
{
	if (tier == MFS_TIER_SCAVENGER)
		return (uint8_t)(policy->classes - 1);
	return policy->classes == 2 ? tier == MFS_TIER_LAST : MFS_CLASS_ASK;
}

static inline uint32_t policy_lesser(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

#endif
