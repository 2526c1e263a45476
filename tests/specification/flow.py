"""How a decision about a last stage moves (paper 4.5, design).

`evaluate` is the whole promotion rule: facts and the last decision in, the next decision out. It only promotes;
the scavenger is the one way down. `next_evaluation_ns` says when evaluating again can change anything, so that a queue
can arm one timer per flow and never scans.
"""

from __future__ import annotations

from mfsd._native import Decision
from mfsd.policy.config import PolicyConfig, Variant
from mfsd.policy.estimate import overlapped_finish_ns, transfer_ns
from mfsd.policy.flow import Flow
from mfsd.policy.types import NO_DEADLINE, Stage, known_stage
from mfsd.policy.urgency import thresholds
from tests.specification.urgency import crossing_ns, effective_rate_bytes_per_s, level_at


def initial(config: PolicyConfig) -> Decision:
    """As low as can be: in variant paper a flow starts at the last level and is promoted (paper 4.2)."""
    return Decision(config.levels if config.variant is Variant.PAPER else 0)


def laxity_ns(config: PolicyConfig, flow: Flow, now_ns: int) -> int:
    """Time to spare if the request had its port to itself from now on; negative when it cannot make it.

    Variant mfs counts remaining compute, variant paper only bytes (its MLU above 1 with rho = 0). The full
    rate is right here: load can be pushed aside, the port's rate cannot be raised (design).
    """
    with_compute = config.variant is Variant.MFS
    return flow.deadline_ns - overlapped_finish_ns(
        now_ns,
        flow.compute_end_ns if with_compute else 0,
        flow.remaining_bytes,
        flow.tail_bytes if with_compute else 0,
        flow.rate_bytes_per_s,
    )


def guard_ns(config: PolicyConfig, flow: Flow) -> int:
    """The laxity below which variant mfs may put the flow into class 0: a small share of its budget
    (design)."""
    return int(flow.budget_ns * config.critical_laxity_share)


def admits_to_class_0(config: PolicyConfig, flow: Flow, now_ns: int, unit_slack_ns: int | None) -> bool:
    """Class-0 admission of variant mfs (design): the flow is nearly out of slack and its victim is not.

    unit_slack_ns: smallest laxity among the requests of the unit whose early stages would wait; None when no
    such unit is busy. The unit must have at least as much slack left after the whole transfer went first as
    the flow has now: a promotion may not turn its victim into the next emergency.
    """
    laxity = laxity_ns(config, flow, now_ns)
    if not 0 <= laxity < guard_ns(config, flow):
        return False
    if unit_slack_ns is None:
        return True
    return unit_slack_ns - transfer_ns(flow.remaining_bytes, flow.rate_bytes_per_s) >= laxity


def evaluate(
    config: PolicyConfig,
    flow: Flow,
    last: Decision,
    now_ns: int,
    rho: float = 0.0,
    unit_slack_ns: int | None = None,
) -> Decision:
    """The decision after evaluating the flow at `now_ns`, given the one before (paper 4.3, 4.5, design).

    Level and class 0 are only ever gained. `infeasible` sends the flow to the scavenger when not even an
    empty port could save it; it comes back when, say, a better compute estimate leaves `readmission_margin`
    of its budget to spare. Call at layer boundaries while the request computes, by `next_evaluation_ns` after.

    Reuse without a batch is infeasible when it could not be there in time even alone on its port; nothing remembers
    that, so it is evaluated whenever its place is asked for.
    """
    if flow.without_batch and flow.deadline_ns != NO_DEADLINE:
        return Decision(last.level, infeasible=laxity_ns(config, flow, now_ns) < 0)
    if known_stage(flow.stage) is not Stage.P2D or flow.deadline_ns == NO_DEADLINE:
        return last
    laxity = laxity_ns(config, flow, now_ns)
    needed = int(flow.budget_ns * config.readmission_margin) if last.infeasible else 0
    infeasible = laxity < needed
    level = last.level
    if level > 1:
        rate = effective_rate_bytes_per_s(flow.rate_bytes_per_s, rho, config.rho_max)
        level = min(level, level_at(now_ns, flow.remaining_bytes, flow.deadline_ns, rate, thresholds(config)))
    if config.variant is Variant.PAPER:
        critical = level == 1
    else:
        critical = not infeasible and admits_to_class_0(config, flow, now_ns, unit_slack_ns)
    return Decision(level, last.critical or critical, infeasible)


def next_evaluation_ns(config: PolicyConfig, flow: Flow, last: Decision, now_ns: int, rho: float = 0.0) -> int | None:
    """When evaluating again can first change the decision made at `now_ns`; None: only an event can.

    Events are layer boundaries (the only moments of promotion while the request computes, paper 4.3),
    changes of the flow's facts, of rho and of the order. Never sooner than one promotion interval from now.
    """
    if known_stage(flow.stage) is not Stage.P2D or flow.deadline_ns == NO_DEADLINE:
        return None
    if flow.computing or flow.pruned or last.infeasible:
        return None
    latest_start_ns = flow.deadline_ns - transfer_ns(flow.remaining_bytes, flow.rate_bytes_per_s)
    moments = [latest_start_ns + 1]  # infeasible from here
    if last.level > 1:
        rate = effective_rate_bytes_per_s(flow.rate_bytes_per_s, rho, config.rho_max)
        threshold = thresholds(config)[last.level - 2]
        moments.append(crossing_ns(flow.remaining_bytes, flow.deadline_ns, rate, threshold))
    if config.variant is Variant.MFS and not last.critical and guard_ns(config, flow) > 0:
        moments.append(latest_start_ns - guard_ns(config, flow) + 1)
    return max(min(moments), now_ns + config.promotion_interval_ns)
