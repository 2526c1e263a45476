# ---- policy ----------------------------------------------------------------------------------------------------------

THRESHOLD_TOP = MFS_THRESHOLD_TOP
THRESHOLD_BASE = MFS_THRESHOLD_BASE
LOAD_TIME_CONSTANT_NS = MFS_LOAD_TIME_CONSTANT_NS
NO_DEADLINE = INT64_MAX
RENEWAL_BUDGETS = MFS_RENEWAL_BUDGETS
SIZE_NONE = MFS_SIZE_NONE
LATE_SIZES = MFS_LATE_SIZES


Parameter = namedtuple("Parameter", "default least most")


cdef policy_parameters():
    """Returns MFS_POLICY_PARAMETERS by name."""
    cdef const mfs_parameter *p
    cdef uint32_t i = 0
    found = {}
    while True:
        p = mfs_policy_parameter(i)
        if p is NULL:
            return found
        kind = float if p.kind == MFS_PARAMETER_DOUBLE else int
        found[p.name.decode()] = Parameter(kind(p.fallback), kind(p.least), kind(p.most))
        i += 1


POLICY_PARAMETERS = policy_parameters()
Policy = namedtuple(
    "Policy", [*POLICY_PARAMETERS, "threshold"], defaults=[*(p.default for p in POLICY_PARAMETERS.values()), ()]
)
Decision = namedtuple("Decision", "level critical infeasible", defaults=(False, False))
OrderReasons = namedtuple("OrderReasons", "laxity_ns guard_ns due_ns effective_rate_bytes_per_s level_ns")
OrderPlace = namedtuple("OrderPlace", "key tier wire_class late")


cdef int policy_read(mfs_policy *to, policy) except -1:
    cdef uint32_t i = 0
    for name, parameter in POLICY_PARAMETERS.items():
        value = getattr(policy, name)
        if not parameter.least <= value <= parameter.most:
            raise ValueError(f"policy.{name}: {value}, allowed {parameter.least}..{parameter.most}")
    if policy.threshold and not policy.levels - 1 <= len(policy.threshold) <= MFS_LEVELS_MAX:
        raise ValueError(f"policy.threshold: {len(policy.threshold)} values, needed {policy.levels - 1}")
    mfs_policy_default(to, policy.classes)
    for i, name in enumerate(POLICY_PARAMETERS):
        mfs_policy_set(to, mfs_policy_parameter(i), getattr(policy, name))
    for i, value in enumerate(policy.threshold):
        to.threshold[i] = value
    return 0


cdef uint64_t time_clipped(value) except? 0xffffffffffffffff:
    """Clips a time as the queue does: not below 0; NO_DEADLINE and anything else that late becomes MFS_TIME_MAX."""
    return 0 if value < 0 else MFS_TIME_MAX if value >= MFS_TIME_MAX else value


cdef key_write(const mfs_order_key *key, sequence):
    second = key.second
    if key.tier != MFS_TIER_EARLY and key.second == MFS_TIME_MAX:
        second = NO_DEADLINE
    return (key.tier, key.first, second, key.third, sequence)


cdef class OrderRules:
    """The rules of one NIC without a queue (_native.pyi)."""

    cdef mfs_policy policy

    def __init__(self, policy=Policy()):
        policy_read(&self.policy, policy)
        check(mfs_policy_check(&self.policy))

    @property
    def by_size(self):
        return self.policy.early_order == MFS_EARLY_SHORTEST

    def first(self):
        cdef mfs_decision decision = mfs_policy_first(&self.policy)
        return Decision(decision.level, decision.critical, decision.lost)

    cdef int last_facts(self, mfs_last_facts *facts, flow, decision, now_ns) except -1:
        memset(facts, 0, sizeof(mfs_last_facts))
        facts.now_ns = time_clipped(now_ns)
        facts.rate_bytes_per_s = flow.rate_bytes_per_s
        facts.deadline_ns = time_clipped(flow.deadline_ns)
        facts.budget_ns = time_clipped(flow.budget_ns)
        facts.bytes = flow.remaining_bytes
        facts.bytes_tail = flow.tail_bytes
        facts.compute_end_ns = time_clipped(flow.compute_end_ns)
        facts.unit_slack_ns = INT64_MAX
        facts.decision.level = decision.level
        facts.decision.critical = decision.critical
        facts.decision.lost = decision.infeasible
        facts.pruned = flow.pruned
        return 0

    def evaluate(self, flow, last, now_ns, double rho=0.0, unit_slack_ns=None):
        cdef mfs_last_facts facts
        cdef uint64_t next_ns
        self.last_facts(&facts, flow, last, now_ns)
        facts.rho = rho
        if unit_slack_ns is not None:
            facts.unit_slack_ns = unit_slack_ns
        next_ns = mfs_policy_evaluate(&self.policy, &facts)
        decision = Decision(facts.decision.level, facts.decision.critical, facts.decision.lost)
        return decision, None if next_ns == MFS_TIME_NEVER else next_ns

    def reasons(self, flow, decision, now_ns, double rho=0.0):
        cdef mfs_last_facts facts
        cdef mfs_reasons r
        self.last_facts(&facts, flow, decision, now_ns)
        facts.rho = rho
        mfs_policy_reasons(&self.policy, &facts, &r)
        return OrderReasons(
            r.laxity_ns, r.guard_ns, NO_DEADLINE if r.due_ns == MFS_TIME_MAX else r.due_ns,
            r.effective_rate_bytes_per_s, None if r.level_ns == INT64_MAX else r.level_ns,
        )

    def place(self, flow, decision, now_ns, int64_t layer_current=0):
        cdef mfs_early_facts early
        cdef mfs_last_facts last
        cdef mfs_place place
        cdef int stage = flow.stage
        cdef int64_t rli
        if stage == MFS_STAGE_P2D:
            self.last_facts(&last, flow, decision, now_ns)
            mfs_policy_place_last(&self.policy, &last, &place)
        else:
            memset(&early, 0, sizeof(early))
            early.now_ns = time_clipped(now_ns)
            early.rate_bytes_per_s = flow.rate_bytes_per_s
            early.bytes = flow.remaining_bytes
            whole_bytes = flow.whole_bytes
            early.bytes_class = flow.remaining_bytes if whole_bytes is None else whole_bytes
            deadline_ns = flow.deadline_ns
            early.needed_ns = 0 if deadline_ns == NO_DEADLINE else time_clipped(deadline_ns)
            early.rank = flow.rank
            early.stage = stage if 0 <= stage < MFS_STAGE_BACKGROUND else MFS_STAGE_BACKGROUND
            if stage == MFS_STAGE_REUSE:
                rli = flow.layer_target - layer_current
                early.rli = 0 if rli < 0 else rli
            if flow.batch_running:
                early.owner = MFS_OWNER_BATCH
            elif flow.without_batch:
                early.owner = MFS_OWNER_REQUEST if flow.request_known else MFS_OWNER_FLOW
            else:
                early.owner = MFS_OWNER_UNKNOWN
            mfs_policy_place_early(&self.policy, &early, flow.pruned, &place)
        return OrderPlace(key_write(&place.key, flow.sequence), place.tier, place.wire_class, bool(place.late))
