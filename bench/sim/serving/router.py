"""Chooses the replica of a call when it arrives: the production routers, and two that need no view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bench.sim.serving.work import Call
from mfsd.policy import route
from mfsd.policy.route import Homes, Replica, Role, RouteConfig


class Router(Protocol):
    """Called once for each call, in the order of arrival; returns the index of a replica. program: its name, empty for
    none; views: of all replicas, for this call, made on demand; homes: where earlier calls of programs ran."""

    def __call__(self, call: Call, program: str, views: Callable[[], Sequence[Replica]], homes: Homes) -> int: ...


def online(router: route.Router, replicas: int, config: RouteConfig | None = None, role: Role = Role.BOTH) -> Router:
    """Applies mfsd.policy.route.choose to the replicas' current state. role: Role.PREFILL if others decode."""
    rule = RouteConfig() if config is None else config
    index = {name_of(number): number for number in range(replicas)}

    def to(call: Call, program: str, views: Callable[[], Sequence[Replica]], homes: Homes) -> int:
        asked = route.Call(prompt_tokens=call.prompt_tokens, program=program, tier=call.tier)
        choice = route.choose(router, asked, views(), homes, rule, role)
        if choice.replica is None:
            raise RuntimeError(f"router {router.value}: {choice.reason}")
        return index[choice.replica]

    return to


def name_of(number: int) -> str:
    """Returns the name of a replica. Names sort like numbers, which decides between equal ones."""
    return f"replica {number:05}"


def round_robin(replicas: int) -> Router:
    turn = -1

    def to(call: Call, program: str, views: Callable[[], Sequence[Replica]], homes: Homes) -> int:
        nonlocal turn
        turn = (turn + 1) % replicas
        return turn

    return to


def by_tier(pools: Mapping[str, Sequence[int]]) -> Router:
    """Silos: each tier has replicas of its own, used in turn."""
    turns = dict.fromkeys(pools, -1)

    def to(call: Call, program: str, views: Callable[[], Sequence[Replica]], homes: Homes) -> int:
        turns[call.tier] = (turns[call.tier] + 1) % len(pools[call.tier])
        return pools[call.tier][turns[call.tier]]

    return to
