"""The order of jobs, and when a job gives way between two stages (Maestro III-D, preemption and mixed SLOs)."""

from __future__ import annotations

from mfsd.policy.workflow.config import WorkflowConfig


def effective_remaining_s(config: WorkflowConfig, remaining_s: float, waited_s: float) -> float:
    """The key of the global queue, smallest first: the remaining time, less aging, so that no job starves. All waiting
    jobs age alike, so their order never changes and a queue may keep it sorted."""
    return remaining_s - (waited_s / config.aging_s if config.aging_s > 0 else 0.0)


def preempts(
    config: WorkflowConfig,
    own_remaining_s: float,
    other_remaining_s: float,
    since_preempted_s: float,
    interactive: bool = False,
) -> bool:
    """Whether a job whose stage has ended goes back to the queue in favour of another that waits; both with their queue
    keys. Only background jobs do, only if the other is ahead by more than the threshold, and not again within the
    cooldown, since estimates are noisy."""
    if interactive or since_preempted_s < config.preempt_cooldown_s:
        return False
    return own_remaining_s - other_remaining_s > config.preempt_gain * own_remaining_s
