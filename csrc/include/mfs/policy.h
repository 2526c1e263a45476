/* The rules of one NIC: which flow goes first, and in which class it travels. Pure functions of facts: no
 * clock, no state.
 *
 * The queue (mfs/rmlq.h) calls them for every flow. So do callers that order flows without a queue: the
 * simulator for links inside the fabric, and mfsctl explain for its reasons. There is one implementation
 * of each variant (csrc/queue/policy_mfs.c, policy_paper.c). tests/specification has the same rules in
 * Python, and tests compare both. docs/internals/policy.md describes the rules in words. */
#ifndef MFS_POLICY_H
#define MFS_POLICY_H

#include <mfs/abi.h>
#include <stdbool.h>

#define MFS_LEVELS_MAX 8
#define MFS_TIME_MAX ((1ULL << 60) - 1) /* times are clipped to this; as a deadline: none */
#define MFS_TIME_NEVER UINT64_MAX
#define MFS_RLI_UNKNOWN (1u << 16) /* above every layer */
#define MFS_RANK_NONE UINT32_MAX   /* a batch without a rank goes after those that have one */
#define MFS_RENEWAL_BUDGETS 4u /* a lost request is due again this many of its budgets after its deadline */
#define MFS_SIZE_NONE 63u      /* the size class of batches that do not run: after all that run */
#define MFS_LATE_SIZES 2u      /* size classes that are added to a load that cannot be in time */
#define MFS_LOAD_STEP 4u       /* ratio between the limits of the classes of loads */
#define MFS_SOON_STEP 10u      /* ratio between the limits of the classes of last stages */
#define MFS_SOON_CLASSES 5     /* a fabric with fewer classes has one class for all last stages */

enum mfs_variant { MFS_VARIANT_MFS = 0, MFS_VARIANT_PAPER = 1 };

enum mfs_early_order {
	MFS_EARLY_RANK = 0,             /* RLI, rank, stage */
	MFS_EARLY_COLLECTIVE_FIRST = 1, /* every collective before every reuse; reuse by RLI, rank */
	MFS_EARLY_SHORTEST = 2, /* RLI, size of all that the batch has waiting, rank, stage; the default */
};

/* The parameters: type, name, default, least, most. This list is the only place where they are defined:
 * struct mfs_policy, mfs_policy_default, mfs_policy_check and the Python binding are generated from it. */
#define MFS_HOUR_NS 3600000000000ULL
#define MFS_POLICY_PARAMETERS(P)                                                                                 \
	P(uint32_t, variant, MFS_VARIANT_MFS, MFS_VARIANT_MFS, MFS_VARIANT_PAPER) /* enum mfs_variant */         \
	/* enum mfs_early_order; the paper's is by rank */                                                       \
	P(uint32_t, early_order, MFS_EARLY_SHORTEST, MFS_EARLY_RANK, MFS_EARLY_SHORTEST)                         \
	P(uint32_t, classes, MFS_CLASSES_MAX, 2, MFS_CLASSES_MAX) /* K on the wire */                            \
	P(uint32_t, levels, MFS_LEVELS_MAX, 1, MFS_LEVELS_MAX)    /* paper: of last stages, at least 2 */        \
	P(double, rho_max, 0.95, 0.0, 1.0) /* paper: clip of the measured load, below 1 */                       \
	/* mfs: critical only with less laxity than this share of the budget */                                  \
	P(double, critical_laxity_share, 0.05, 0.0, 1.0)                                                         \
	/* a lost request comes back with this share of its budget to spare */                                   \
	P(double, readmission_margin, 0.05, 0.0, 1.0)                                                            \
	/* shortest time between two evaluations of one request */                                               \
	P(uint64_t, promotion_interval_ns, 1000000, 1, MFS_HOUR_NS)                                              \
	/* mfs: last stages due within this travel a class above the others, those due within a tenth of it    \
	 * two; 0: all in one */ \
	P(uint64_t, soon_ns, 500000000, 0, MFS_HOUR_NS)                                                          \
	/* mfs: loads whose rest takes the port up to a quarter of this travel in the first class of loads, up \
	 * to this in the second, up to four times this in the third, others in the last; 0: all in the third */ \
	P(uint64_t, short_load_ns, 32000000, 0, MFS_HOUR_NS)

/* Constants that the queue does not read directly: the default thresholds Q_i = TOP / BASE^(i-1), and the
 * time constant of the moving average that measures the load of a port. */
#define MFS_THRESHOLD_TOP 0.5
#define MFS_THRESHOLD_BASE 4.0
#define MFS_LOAD_TIME_CONSTANT_NS 10000000ULL

struct mfs_policy {
	double threshold[MFS_LEVELS_MAX]; /* paper: Q_i, falling, in 0..1; the first levels - 1 are used */
#define MFS_POLICY_FIELD(type, name, fallback, least, most) type name;
	MFS_POLICY_PARAMETERS(MFS_POLICY_FIELD)
#undef MFS_POLICY_FIELD
};

/* A parameter by name, for bindings. Values are doubles, which hold the integers exactly. */
struct mfs_parameter {
	const char *name;
	double fallback, least, most;
	uint32_t offset; /* in struct mfs_policy */
	uint32_t kind;   /* enum mfs_parameter_kind */
};

enum mfs_parameter_kind { MFS_PARAMETER_U32, MFS_PARAMETER_U64, MFS_PARAMETER_DOUBLE };

/* To what the bytes of an early flow belong. */
enum mfs_early_owner {
	MFS_OWNER_BATCH = 0,   /* a batch that runs */
	MFS_OWNER_UNKNOWN = 1, /* a batch that does not run, or that is not known */
	MFS_OWNER_REQUEST = 2, /* reuse without a batch: a request that still queues */
	/* reuse without a batch of a request that is not known; what else it loads is not known either */
	MFS_OWNER_FLOW = 3,
};

/* A flow of an early stage: control, collective or reuse. */
struct mfs_early_facts {
	uint64_t now_ns;
	uint64_t rate_bytes_per_s; /* of the port */
	uint64_t bytes;            /* all early bytes that the owner has waiting on the port */
	/* reuse without a batch: the bytes that decide its class. These are `bytes`, or the whole load
	 * where it is fetched from a port that others fetch from, too */
	uint64_t bytes_class;
	/* when reuse without a batch must have arrived; the deadline of a background flow; 0: not known */
	uint64_t needed_ns;
	uint32_t rank;
	/* 0 for control and collectives; MFS_RLI_UNKNOWN + layer where the current layer is not known */
	uint32_t rli;
	uint8_t owner; /* enum mfs_early_owner */
	uint8_t stage; /* enum mfs_stage */
};

/* The state of a request that is kept until it is evaluated again. */
struct mfs_decision {
	uint8_t level; /* paper: 1..levels, 1 is the most urgent; else 0 */
	bool critical, lost;
};

/* A request with last-stage flows. */
struct mfs_last_facts {
	uint64_t now_ns;
	uint64_t rate_bytes_per_s; /* of the port */
	uint64_t deadline_ns;      /* MFS_TIME_MAX: none */
	uint64_t budget_ns;        /* deadline less arrival; 0: not known */
	uint64_t bytes;            /* bytes that it still has to ship through the port */
	uint64_t bytes_tail;       /* the part of `bytes` that exists only once compute has ended */
	uint64_t compute_end_ns;   /* when its batch ends computing; 0 or past: it does not compute */
	/* least laxity of the batches whose early stages would have to wait; INT64_MAX: no batch is under way */
	int64_t unit_slack_ns;
	double rho; /* paper: load of the port */
	struct mfs_decision decision;
	bool pruned;
};

/* Where a flow stands: the smallest (tier, first, second, third) goes first; among equal ones the one that
 * came first. */
struct mfs_order_key {
	uint32_t tier;
	uint32_t first; /* early: RLI; last: level */
	/* early: size class << 32 | rank, or rank; other tiers: when it is due, MFS_TIME_MAX: never */
	uint64_t second;
	uint32_t third; /* early: control 0, collective 1, reuse 2, critical last stage 3; else 0 */
};

struct mfs_place {
	struct mfs_order_key key;
	uint8_t tier; /* enum mfs_tier; key.tier of a critical request may be MFS_TIER_EARLY */
	uint8_t wire_class;
	bool late; /* reuse without a batch that cannot be in time and counts as larger */
};

/* What decided the place of a last-stage request, for explanations. */
struct mfs_reasons {
	int64_t laxity_ns; /* time to spare if it had the port to itself */
	int64_t guard_ns;  /* mfs: class 0 opens below this laxity; else 0 */
	uint64_t due_ns;   /* its time in the order of its tier; MFS_TIME_MAX: never */
	/* paper: the rate that the load leaves of the port; else the port's rate */
	uint64_t effective_rate_bytes_per_s;
	/* paper: when it reaches the next level if none of its bytes is served; else INT64_MAX */
	int64_t level_ns;
};

/* Returns a parameter by its place in the list; NULL after the last. */
const struct mfs_parameter *mfs_policy_parameter(uint32_t index);
double mfs_policy_get(const struct mfs_policy *policy, const struct mfs_parameter *parameter);
/* Sets a value, converted to the parameter's type. mfs_policy_check tells whether it is in range. */
void mfs_policy_set(struct mfs_policy *policy, const struct mfs_parameter *parameter, double value);
/* Sets the defaults for a fabric of `classes` classes. */
void mfs_policy_default(struct mfs_policy *policy, uint32_t classes);
/* -EINVAL: a value is out of range. Also sets what the variant fixes (the early order of the paper). */
int mfs_policy_check(struct mfs_policy *policy);
/* True if last stages have levels. Levels depend on rho, so the caller has to measure the load. */
bool mfs_policy_has_levels(const struct mfs_policy *policy);
/* Returns the wire class of a flow of that stage which is neither critical nor pruned. MFS_CLASS_ASK: the
 * class depends on more. */
uint8_t mfs_policy_class(const struct mfs_policy *policy, enum mfs_stage stage, uint32_t rli);

/* The functions below take a policy that mfs_policy_check has accepted. */

/* pruned: the flow's request is pruned. */
void mfs_policy_place_early(const struct mfs_policy *policy, const struct mfs_early_facts *facts, bool pruned,
			    struct mfs_place *place);
void mfs_policy_place_last(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			   struct mfs_place *place);
/* Updates facts->decision. Returns when it must be evaluated again if nothing else happens;
 * MFS_TIME_NEVER: only an event can change it. A new request starts with the decision of mfs_policy_first. */
uint64_t mfs_policy_evaluate(const struct mfs_policy *policy, struct mfs_last_facts *facts);
/* Only for a request that has a deadline. */
void mfs_policy_reasons(const struct mfs_policy *policy, const struct mfs_last_facts *facts,
			struct mfs_reasons *reasons);
struct mfs_decision mfs_policy_first(const struct mfs_policy *policy);

#endif
