"""Which replica gets a call when it arrives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from bench.sim.serving.work import Call


class Load(NamedTuple):
    """A replica as a router sees it."""

    requests: int
    """Waiting and running."""
    tokens: int
    """Prompt tokens left to compute."""
    kv_used_tokens: int


class Router(Protocol):
    """Called once for each call, in the order of arrival. program: its index, -1 for none; homes: replicas on which
    earlier calls of the program ran."""

    def __call__(self, call: Call, program: int, homes: frozenset[int], loads: Sequence[Load]) -> int: ...


def round_robin() -> Router:
    turn = -1

    def route(call: Call, program: int, homes: frozenset[int], loads: Sequence[Load]) -> int:
        nonlocal turn
        turn = (turn + 1) % len(loads)
        return turn

    return route


def _least(loads: Sequence[Load], by: str) -> int:
    field = Load._fields.index(by)
    return min(range(len(loads)), key=lambda i: (loads[i][field], i))


def least_loaded(by: str = "requests") -> Router:
    """by: requests, tokens or kv_used_tokens."""
    return lambda call, program, homes, loads: _least(loads, by)


def by_tier(pools: Mapping[str, Sequence[int]]) -> Router:
    """Silos: each tier has replicas of its own, in turn."""
    turns = dict.fromkeys(pools, -1)

    def route(call: Call, program: int, homes: frozenset[int], loads: Sequence[Load]) -> int:
        turns[call.tier] = (turns[call.tier] + 1) % len(pools[call.tier])
        return pools[call.tier][turns[call.tier]]

    return route


def sticky(by: str = "requests") -> Router:
    """A program stays where its first call went."""
    return locality(0, by)


def locality(tokens: int = 2048, by: str = "requests") -> Router:
    """Agentix algorithm 2: prompts below so many tokens go to the least loaded replica, longer ones stay with their
    program."""

    def route(call: Call, program: int, homes: frozenset[int], loads: Sequence[Load]) -> int:
        if call.prompt_tokens < tokens or not homes:
            return _least(loads, by)
        field = Load._fields.index(by)
        return min(homes, key=lambda i: (loads[i][field], i))

    return route
