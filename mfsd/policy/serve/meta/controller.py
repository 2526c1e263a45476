"""The entry point: which order holds from now on. Depends only on its arguments: a recorded view can be replayed."""

from __future__ import annotations

import msgspec

from mfsd.policy.serve.config import Policy, ServeConfig
from mfsd.policy.serve.meta import bandit, classifier, drift, guard, llm, rules
from mfsd.policy.serve.meta.adwin import Window
from mfsd.policy.serve.meta.bandit import Arm, Pulled
from mfsd.policy.serve.meta.config import MetaConfig, Strategy
from mfsd.policy.serve.meta.guard import Bypass, Watch
from mfsd.policy.serve.meta.view import Views


class MetaState(msgspec.Struct, frozen=True, kw_only=True):
    """What changes from tick to tick. A fresh state suits an engine that just started."""

    policy: Policy | None = None
    """None: the first of the pool holds."""
    decided_s: float | None = None
    bypass: Bypass = Bypass()
    watch: Watch | None = None
    barred: dict[str, float] = {}
    """Order -> until when it is not chosen, because a switch to it was reverted."""
    windows: tuple[Window, ...] = ()
    drifted: bool = False
    arms: dict[str, Arm] = {}
    pulled: Pulled | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    policy: Policy
    """One of the pool; in a bypass its first."""
    bypass: bool = False
    decided: bool = False
    """Whether a strategy decided at this tick."""
    reason: str = ""


def decide(
    config: MetaConfig, state: MetaState, views: Views, now_s: float, answer: Policy | None = None
) -> tuple[Decision, MetaState]:
    """Called at every tick, about once a second. Strategies decide every every_s.

    `answer` is a model's, for the llm strategy.
    """
    replace = msgspec.structs.replace
    policy = state.policy if state.policy in config.pool else config.pool[0]
    assert policy is not None
    state = replace(state, policy=policy, bypass=guard.bypassed(config, state.bypass, views.short, now_s))
    if config.strategy is Strategy.DRIFT:
        windows, cut = drift.watched(config, views, state.windows)
        state = replace(state, windows=windows, drifted=state.drifted or cut)
    if state.bypass.began_s is not None:
        after = replace(_settled(state, views), watch=None)
        return Decision(policy=config.pool[0], bypass=True, reason="nearly all are late"), after
    if state.watch is not None:
        if guard.worse(config, state.watch, views.short):
            return _rolled_back(config, _settled(state, views), state.watch, policy, now_s)
        if now_s >= state.watch.until_s:
            state = replace(state, watch=None)
    if state.decided_s is not None and now_s - state.decided_s < config.every_s:
        return Decision(policy=policy, reason="holds"), state
    return _decided(config, state, views, policy, now_s, answer)


def _settled(state: MetaState, views: Views) -> MetaState:
    """Another order takes over: the bandit's choice has the gain until here, and none of what comes."""
    if state.pulled is None:
        return state
    arms = bandit.learned(state.arms, state.pulled, views.long.in_time_share)
    return msgspec.structs.replace(state, arms=arms, pulled=None)


def _rolled_back(
    config: MetaConfig, state: MetaState, watch: Watch, policy: Policy, now_s: float
) -> tuple[Decision, MetaState]:
    barred = {**state.barred, policy.value: now_s + config.barred_s}
    after = msgspec.structs.replace(state, policy=watch.before, watch=None, barred=barred, decided_s=now_s)
    return Decision(policy=watch.before, reason=f"{policy.value} made it worse"), after


def _decided(
    config: MetaConfig, state: MetaState, views: Views, policy: Policy, now_s: float, answer: Policy | None
) -> tuple[Decision, MetaState]:
    replace = msgspec.structs.replace
    barred = {name: until_s for name, until_s in state.barred.items() if until_s > now_s}
    usable = replace(config, pool=tuple(p for p in config.pool if p.value not in barred) or config.pool)
    arms, pulled = state.arms, None
    if config.strategy is Strategy.BANDIT:
        if state.pulled is not None:
            arms = bandit.learned(arms, state.pulled, views.long.in_time_share)
        wanted, reason, pulled = bandit.choose(usable, views, policy, arms)
    else:
        wanted, reason = _chosen(usable, state, views, policy, answer)
    watch = state.watch
    if wanted is not policy:
        short = views.short
        watch = Watch(policy, now_s + config.rollback_within_s, short.late_share, short.ttft_p99_s)
    after = replace(
        state, policy=wanted, decided_s=now_s, watch=watch, barred=barred, drifted=False, arms=arms, pulled=pulled
    )
    return Decision(policy=wanted, decided=True, reason=reason), after


def _chosen(
    config: MetaConfig, state: MetaState, views: Views, policy: Policy, answer: Policy | None
) -> tuple[Policy, str]:
    if config.strategy is Strategy.DRIFT:
        return drift.choose(config, views, policy, state.drifted)
    if config.strategy is Strategy.CLASSIFIER:
        return classifier.choose(config, views, policy)
    if config.strategy is Strategy.LLM:
        return llm.choose(config, views, policy, answer)
    return rules.choose(config, views, policy)


def configured(base: ServeConfig, decision: Decision) -> ServeConfig:
    """`base` under the decision. A bypass has no caps and no margin.

    In the paper it is first come first served, which is the worst order where more is asked for than can be in time:
    it cost 10 points of first tokens in time in a shift of the mix. To have it, name it first in the pool.
    """
    replace = msgspec.structs.replace
    if not decision.bypass:
        return replace(base, policy=decision.policy)
    return replace(base, policy=decision.policy, regulate=False, kv_margin=0.0)
