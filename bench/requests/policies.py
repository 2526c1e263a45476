"""Policies by name: what each sets in the request tier, and how its engines are used.

The baselines of the tiers compute 256 tokens a step, which keeps the time between tokens below 50 ms, as QoServe's do.
Those of programs and of drift share the whole step among requests as vLLM does. If a policy is a part of another, its
name says what is on: dc dynamic chunks, er relegation, hp the hybrid key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from bench.requests.errors import UsageError
from bench.requests.tiers import BACKGROUND, BATCH, INTERACTIVE
from bench.sim.workflows import POLICIES as WORKFLOW_POLICIES
from mfsd.policy.route import Router
from mfsd.policy.serve import Policy, Preemption, Relegation, ServeConfig, TokenDeadline
from mfsd.policy.serve.meta import Strategy

SMALL, LARGE = 256, 2048
"""Tokens of a step of the baselines: for 50 ms between tokens; for throughput."""
CHUNK_MAX = 2500
"""QoServe 4.1.4: throughput grows no further."""
STEP_TOKENS = 4096
SILO = {INTERACTIVE: 7, BATCH: 3, BACKGROUND: 3}
"""Replicas of each tier of the siloed baseline (QoServe table 4); other sizes have the same shares."""


class Inherit(str, Enum):
    """What a call inherits from its program for its place in the order."""

    NONE = "none"
    PLAS = "plas"
    ATLAS = "atlas"
    HINDSIGHT = "hindsight"
    """What the program has left to compute, which no engine knows: a bound."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A policy of this command."""

    help: str
    serve: Mapping[str, Any] = {}
    inherit: Inherit = Inherit.NONE
    """What a call gets from its program on arrival."""
    router: str = ""
    """Router of the replicas, as part of the policy; empty: the one of `--set router=`."""
    store: Mapping[str, Any] | None = None
    """Values of StoreConfig: KV that memory has lost is read from a store. None: it is computed again."""
    silo: bool = False
    """Whether each tier has replicas of its own."""
    bounds: bool = False
    """Whether memory is kept for outputs: what is expected, and then a bound from outputs that ended (conformal)."""
    meta: Strategy | None = None
    """How the order is chosen while the engine serves."""


def _fixed(policy: Policy, tokens: int = SMALL) -> dict[str, Any]:
    """A step of this many tokens and a pure order: no deadline changes the chunk, nothing is set aside."""
    return {
        "policy": policy, "step_tokens": tokens, "chunk_min": tokens, "chunk_max": tokens, "chunk_tight": tokens,
        "relegation": Relegation.NONE, "preemption": Preemption.ALWAYS,
    }  # fmt: skip


def _dynamic(policy: Policy, relegation: Relegation) -> dict[str, Any]:
    return {"policy": policy, "step_tokens": STEP_TOKENS, "chunk_max": CHUNK_MAX, "relegation": relegation}


def _whole(policy: Policy) -> dict[str, Any]:
    return {
        "policy": policy, "step_tokens": LARGE, "chunk_max": LARGE, "relegation": Relegation.NONE,
    }  # fmt: skip


TIERS: dict[str, Rule] = {
    "fcfs": Rule(help="first come first served, 256 tokens a step", serve=_fixed(Policy.FCFS)),
    "edf": Rule(help="earliest deadline first, 256 tokens a step", serve=_fixed(Policy.EDF)),
    "srpf": Rule(help="shortest remaining prompt first, 256 tokens a step", serve=_fixed(Policy.SRPF)),
    "silo": Rule(
        help="replicas of each tier's own, 7:3:3, first come first served, 256 tokens a step for the interactive "
        "tier and 2,048 for the others",
        serve=_fixed(Policy.FCFS),
        silo=True,
    ),
    "dc": Rule(help="edf with dynamic chunks", serve=_dynamic(Policy.EDF, Relegation.NONE)),
    "dc-er": Rule(help="dc, relegating who is late in any case", serve=_dynamic(Policy.EDF, Relegation.LOST)),
    "qoserve": Rule(
        help="dc-er with the hybrid key; prompts that have begun give way while they can wait",
        serve=_dynamic(Policy.HYBRID, Relegation.LOST),
    ),
    "qoserve-projection": Rule(
        help="qoserve, also relegating as few as let the rest be in time, the least important first; slow to simulate "
        "under overload",
        serve=_dynamic(Policy.HYBRID, Relegation.PROJECTION),
    ),
    "fit": Rule(
        help="beyond QoServe: a request joins a step only while none in it becomes late",
        serve=_dynamic(Policy.FIT, Relegation.LOST),
    ),
}
PROGRAMS: dict[str, Rule] = {
    "fcfs": Rule(help="first come first served", serve=_whole(Policy.FCFS)),
    "mlfq": Rule(
        help="queues by what the call itself has had: fcfs, as long as no running call gives way",
        serve=_whole(Policy.MLFQ),
    ),
    "las": Rule(help="the program that has had the least first", serve=_whole(Policy.LAS), inherit=Inherit.PLAS),
    "plas": Rule(help="queues by what the program has had", serve=_whole(Policy.MLFQ), inherit=Inherit.PLAS),
    "atlas": Rule(help="queues by the longest chain of the program", serve=_whole(Policy.MLFQ), inherit=Inherit.ATLAS),
    "srpt": Rule(
        help="the program with the least left first, known beforehand: a bound",
        serve=_whole(Policy.LAS),
        inherit=Inherit.HINDSIGHT,
    ),
}


def _stored(said: str, **store: bool) -> Rule:
    return Rule(help=said, serve=_whole(Policy.FCFS), router=Router.STICKY.value, store=store)


AGENTS: dict[str, Rule] = {
    "fcfs": Rule(help="first come first served, replicas in turn", serve=_whole(Policy.FCFS)),
    "least-loaded": Rule(
        help="first come first served at the replica with the least to do",
        serve=_whole(Policy.FCFS),
        router=Router.LEAST_LOADED.value,
    ),
    "sticky": Rule(
        help="first come first served at the replica that the agent had",
        serve=_whole(Policy.FCFS),
        router=Router.STICKY.value,
    ),
    "agentix": Rule(
        help="queues by what the agent has had; short prompts to the least loaded replica, long ones to the agent's",
        serve=_whole(Policy.MLFQ),
        inherit=Inherit.PLAS,
        router=Router.LOCALITY.value,
    ),
    "plas-sticky": Rule(
        help="queues by what the agent has had, at the replica that it had",
        serve=_whole(Policy.MLFQ),
        inherit=Inherit.PLAS,
        router=Router.STICKY.value,
    ),
    "store": _stored("sticky, KV read from a store when a turn arrives; memory keeps the least recently used"),
    "retain": _stored("store; memory keeps whose next turn is expected the soonest", retain=True),
    "prefetch": _stored("store; KV is also read before the turn is expected", prefetch=True),
    "retain-prefetch": _stored("both", retain=True, prefetch=True),
    "retain-prefetch-hindsight": _stored(
        "both, with the ends of gaps known beforehand: a bound", retain=True, prefetch=True, hindsight=True
    ),
}


def _drift(policy: Policy) -> dict[str, Any]:
    """H-MAS measures the mean time per output token, so tokens are due from the first one on."""
    return {**_dynamic(policy, Relegation.LOST), "token_deadline": TokenDeadline.FIRST_TOKEN}


MFS_DRIFT = {**_drift(Policy.TWO_LANE), "regulate": True}
DRIFT: dict[str, Rule] = {
    **{
        policy.value: Rule(help=f"{policy.value}, unregulated", serve=_drift(policy))
        for policy in Policy
        if policy is not Policy.FIT
    },
    "fit": Rule(help="fit, dynamic chunks", serve=_drift(Policy.FIT)),
    "hmas": Rule(help="two lanes, fence by expected outputs, regulation", serve=MFS_DRIFT, bounds=True),
    "hmas-no-lanes": Rule(help="hmas, one lane", serve={**MFS_DRIFT, "policy": Policy.FCFS}, bounds=True),
    "hmas-no-regulation": Rule(help="hmas, caps at their maxima", serve={**MFS_DRIFT, "regulate": False}, bounds=True),
    "hmas-no-bounds": Rule(help="hmas, no memory kept for outputs", serve=MFS_DRIFT),
    **{
        f"meta-{strategy.value}": Rule(
            help=f"hmas, its order chosen every 30 s: {strategy.value}", serve=MFS_DRIFT, bounds=True, meta=strategy
        )
        for strategy in Strategy
        if strategy is not Strategy.LLM
    },
}
WORKFLOWS = {name: Rule(help=policy.help) for name, policy in WORKFLOW_POLICIES.items()}
OF = {"tiers": TIERS, "programs": PROGRAMS, "agents": AGENTS, "drift": DRIFT, "workflows": WORKFLOWS}


def find(what: str, names: Sequence[str]) -> list[str]:
    """Returns the names, each once. Raises UsageError if one is not known."""
    known = OF[what]
    for name in names:
        if name not in known:
            raise UsageError(f"--policy {name}: with --what {what} use {', '.join(known)}")
    return list(dict.fromkeys(names))


def serve_config(rule: Rule, slots: int, given: Mapping[str, Any]) -> ServeConfig:
    """`given`: numbers that the user sets under every policy."""
    values = {"requests_max": slots, **rule.serve, **given}
    try:
        return msgspec.convert(values, ServeConfig)
    except msgspec.ValidationError as error:
        raise UsageError(f"--set serve: {error}") from error


def silo_pools(replicas: int) -> dict[str, list[int]]:
    """Returns tier -> its replicas, in the shares of SILO, at least one each."""
    if replicas < len(SILO):
        raise UsageError(f"--set replicas={replicas}: the policy silo needs at least {len(SILO)}, one for each tier")
    left, of, first = replicas, sum(SILO.values()), 0
    pools = {}
    for number, (tier, share) in enumerate(SILO.items()):
        others = len(SILO) - number - 1
        count = left if not others else min(left - others, max(1, round(left * share / of)))
        pools[tier] = list(range(first, first + count))
        first, left, of = first + count, left - count, of - share
    return pools


def silo_step(tier: str) -> dict[str, Any]:
    """Returns the tokens of a step on the replicas of a tier."""
    tokens = SMALL if tier == INTERACTIVE else LARGE
    return {"step_tokens": tokens, "chunk_min": tokens, "chunk_max": tokens, "chunk_tight": tokens}
