"""The replicas as the gateway knows them. Its own calls count at once, those of others as of the last poll."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from mfsd.policy.route import Replica, Role
from mfsd.serve.gateway.owed import Owed
from mfsd.serve.gateway.prefixes import Prefixes
from mfsd.serve.gateway.prompt import Prompt
from mfsd.serve.gateway.settings import GatewaySettings, ReplicaSettings

PACE_WEIGHT: Final = 0.1
"""Weight of the latest prompt in the mean time per prompt token."""
FETCH_TOKENS_LEAST: Final = 256
ERRORS_MAX: Final = 3
"""Errors in a row after which a replica goes behind the others. One that fails at once would always have least load."""
BEHIND_S: Final = 10.0
"""How long it stays behind the others; then its next answer decides."""
UNCONNECTED_MAX: Final = 2
"""Failed connections in a row after which a replica is down."""


class Stage(str, Enum):
    """Stage of an engine that the gateway itself starts and stops."""

    RUNS = "runs"
    """It runs, or another program starts and stops it."""
    STARTS = "starts"
    SLEEPS = "sleeps"
    """It falls asleep, or is asleep."""
    WAKES = "wakes"
    STOPS = "stops"
    STOPPED = "stopped"


class Card(NamedTuple):
    """What an engine reports about a model. None: not reported."""

    prompt_max: int | None = None
    created: int | None = None
    """Unix time."""


class Losable(Protocol):
    """A call that is at a replica."""

    def lose(self, problem: str) -> None: ...


class LiveReplica:
    def __init__(self, settings: ReplicaSettings) -> None:
        self.settings, self.name, self.url = settings, settings.shown_name, settings.url.rstrip("/")
        self.endpoint = settings.endpoint
        """Host and port."""
        self.healthy = False
        self.problem = "not asked yet"
        """Why the replica is not healthy."""
        self.models: tuple[str, ...] = tuple(settings.models)
        self.cards: dict[str, Card] = {}
        """Cards of the models that its engine names."""
        self.prompt_max = settings.kv_tokens
        self.memory_max: int | None = None
        """Size of its KV memory in tokens."""
        self.waiting = self.running = self.waiting_tokens = 0
        """Calls of this gateway before and after their first byte, and the prompt tokens of those before."""
        self.expected = 0
        """Calls of this gateway that are to decode here, if possible, once they are prefilled."""
        self.foreign_waiting = self.foreign_running = 0
        """Calls of others, as of the last poll."""
        self._most = 0
        """Most calls of this gateway at one time since the last poll. An engine may still count calls that have just
        ended."""
        self.kv_used_share = 0.0
        self.token_ns = 0
        self.owed = Owed()
        self.prefixes = Prefixes()
        self.turns: set[Losable] = set()
        """Calls of this gateway that are at the replica."""
        self.seen_s = math.inf
        """When anything last came from its engine, by the loop's clock; infinite: nothing has."""
        self.stage = Stage.RUNS
        self.held = False
        """Whether it gets no more calls, because another engine needs its memory."""
        self.used_s = 0.0
        """When it last got a call, by the loop's clock."""
        self.errors = 0
        """Number of answers in a row with status 500 or more."""
        self.behind_s = -math.inf
        """Time until which it gets only calls that no other replica serves."""
        self.unconnected = 0
        """Number of failed connections in a row. If there are any, it is also behind the others."""
        self._unconnected_s = -math.inf
        """When the last of these connections failed."""
        self.sent = self.failed = 0
        """Number of calls so far, and of those that ended with a connection error."""

    def begin(self, tokens: int) -> None:
        self.waiting += 1
        self.waiting_tokens += tokens
        self._most = max(self._most, self.waiting + self.running)

    def first_byte(self, tokens: int) -> None:
        self.waiting -= 1
        self.waiting_tokens -= tokens
        self.running += 1

    def leave(self, tokens: int) -> None:
        """Ends a call that had no byte yet."""
        self.waiting -= 1
        self.waiting_tokens -= tokens

    def learn(self, ahead_tokens: int, seconds: float) -> None:
        """Learns the pace from a first token that came after `seconds`. `ahead_tokens` prompt tokens waited, those of
        its own call included."""
        if ahead_tokens > 0:
            each_ns = int(seconds * 1e9 / ahead_tokens)
            self.token_ns += int(PACE_WEIGHT * (each_ns - self.token_ns)) if self.token_ns else each_ns

    def seen(self) -> None:
        self.seen_s = asyncio.get_running_loop().time()

    def answered(self, status: int) -> bool:
        """Counts an answer; returns whether the replica goes behind the others because of it."""
        if status < 500:
            self.errors, self.behind_s = 0, -math.inf
            return False
        self.errors += 1
        if self.errors < ERRORS_MAX:
            return False
        now_s = asyncio.get_running_loop().time()
        news, self.behind_s = now_s >= self.behind_s, now_s + BEHIND_S
        return news

    def not_connected(self, began_s: float) -> bool:
        """Counts a failed connection; returns whether the replica is down because of it.

        Connections that were all begun before one of them failed are one burst and count once. If anything came from
        the engine since the connection was begun, the engine is only busy."""
        if began_s >= self._unconnected_s:
            answers = began_s <= self.seen_s < math.inf
            self.unconnected = 1 if answers else self.unconnected + 1
            self._unconnected_s = asyncio.get_running_loop().time()
        return self.unconnected >= UNCONNECTED_MAX

    def connected(self) -> None:
        self.unconnected = 0

    def behind(self, now_s: float) -> bool:
        """Whether it gets only calls that no other replica serves."""
        return self.unconnected > 0 or self.behind_s > now_s

    def polled(self, waiting: int, running: int, kv_used_share: float) -> None:
        foreign = max(0, waiting + running - self._most)
        self.foreign_waiting = min(foreign, max(0, waiting - self.waiting))
        self.foreign_running = foreign - self.foreign_waiting
        self._most = self.waiting + self.running
        self.kv_used_share = kv_used_share

    def bound_prompts(self) -> None:
        """Sets the longest prompt from the engine's contexts and memory, if the configuration has no bound."""
        if self.settings.kv_tokens is None:
            contexts = [card.prompt_max for card in self.cards.values() if card.prompt_max is not None]
            known = [most for most in (max(contexts, default=None), self.memory_max) if most is not None]
            self.prompt_max = min(known, default=None)

    @property
    def requests(self) -> int:
        """Number of requests at the replica, those of others included."""
        return self.waiting + self.running + self.foreign_waiting + self.foreign_running

    @property
    def away(self) -> bool:
        """Whether its process is not supposed to answer."""
        return self.stage not in (Stage.RUNS, Stage.STARTS)

    def up(self) -> bool:
        """Marks it healthy; returns whether that is a change."""
        if self.away:  # it has answered just before it was stopped or put to sleep
            return False
        self.stage = Stage.RUNS
        news, self.healthy, self.problem = not self.healthy, True, ""
        return news

    def down(self, problem: str) -> bool:
        """Marks it down; returns whether that is a change. The cache of its engine counts as lost."""
        news, self.healthy, self.problem = self.healthy, False, problem
        self.foreign_waiting = self.foreign_running = self.unconnected = 0
        self.prefixes.forget()
        return news

    def view(self, prompt: Prompt, cached: int = 0, fetch: int = 0, kv_bytes_per_token: int = 0) -> Replica:
        too_long = self.prompt_max is not None and prompt.tokens_least > self.prompt_max
        return Replica(
            name=self.name,
            role=self.settings.role,
            models=self.models,
            tiers=tuple(self.settings.tiers),
            healthy=self.healthy and not self.held,
            waiting=self.waiting + self.foreign_waiting,
            running=self.running + self.foreign_running,
            expected=self.expected,
            waiting_tokens=self.waiting_tokens,
            wait_ns=self.waiting_tokens * self.token_ns,
            token_ns=self.token_ns,
            kv_free_share=1.0 - self.kv_used_share,
            kv_tokens=self.prompt_max if too_long else None,  # no call is refused by an estimate of text
            requests_max=self.settings.requests_max,
            cached_tokens=cached,
            fetch_tokens=fetch,
            fetch_bytes=fetch * kv_bytes_per_token,
            port_rate_bytes_per_s=self.owed.rate_bytes_per_s,
            owed_bytes=self.owed.expected_bytes,
        )


class ReplicaSet:
    def __init__(self, settings: GatewaySettings) -> None:
        self._kv = settings.kv
        self.all = [LiveReplica(replica) for replica in settings.replicas if not replica.each_address]
        self.by_name = {replica.name: replica for replica in self.all}
        self.several = [replica for replica in settings.replicas if replica.each_address]
        """Configured replicas whose name has several addresses, each a replica. Those found are in `all`."""
        self._found: list[dict[str, LiveReplica]] = [{} for _ in self.several]
        self.disaggregated = any(replica.role is Role.PREFILL for replica in settings.replicas)
        self.whole = any(replica.role is Role.BOTH for replica in settings.replicas)
        """Whether there are replicas that take whole requests."""

    @property
    def ready(self) -> bool:
        """Whether a replica answers, or will when a request wants it."""
        return any(replica.healthy or replica.stage is not Stage.RUNS for replica in self.all)

    def found(self, number: int, addresses: set[str]) -> tuple[list[LiveReplica], list[LiveReplica]]:
        """Updates the addresses of one of `several`; returns the new and the removed replicas. Requests with a place at
        a removed replica keep it."""
        here = self._found[number]
        gone = [here.pop(address) for address in here.keys() - addresses]
        new = []
        for address in sorted(addresses - here.keys()):
            replica = LiveReplica(self.several[number].at(address))
            if (
                replica.name not in self.by_name or self.by_name[replica.name] in gone
            ):  # the configuration also names this address itself
                here[address] = replica
                new.append(replica)
        if new or gone:
            self.all = [replica for replica in self.all if replica not in gone] + new
            self.by_name = {replica.name: replica for replica in self.all}
        return new, gone

    def in_front(self, among: Collection[str] | None, now_s: float) -> Collection[str] | None:
        """Returns those of `among` that are not behind the others."""
        if not any(replica.behind(now_s) for replica in self.all):
            return among
        names = {replica.name for replica in self.all if not replica.behind(now_s)}
        return names if among is None else names.intersection(among)

    def view(self, prompt: Prompt, among: Collection[str] | None = None) -> Sequence[Replica]:
        """Returns the router's view of the replicas. among: names of the replicas that are included; None: all."""
        some = self.all if among is None else [replica for replica in self.all if replica.name in among]
        if not prompt.chunks:
            return [replica.view(prompt) for replica in some]
        if not some:
            return []
        cached = [min(prompt.tokens, replica.prefixes.cached_tokens(prompt.chunks)) for replica in some]
        most = max(cached) if self._kv.shared else 0
        return [
            replica.view(
                prompt,
                own,
                most - own if most - own >= FETCH_TOKENS_LEAST else 0,
                self._kv.bytes_per_token,
            )
            for replica, own in zip(some, cached, strict=True)
        ]

    def longest_prompts(self) -> list[int]:
        """Returns the limits of prompts, in tokens, of the replicas that have one, the shortest first."""
        return sorted(replica.prompt_max for replica in self.all if replica.prompt_max is not None)

    def models(self) -> dict[str, Card]:
        """Returns the models of replicas that are healthy, or will be when one of their models is wanted. Each has the
        longest prompt that any of them accepts, and the time when the first one had the model."""
        found: dict[str, Card] = {}
        for replica in self.all:
            if not replica.healthy and replica.stage is Stage.RUNS:
                continue
            for model in replica.models:
                one, other = replica.cards.get(model, Card()), found.get(model, Card())
                lengths = [most for most in (one.prompt_max, other.prompt_max) if most is not None]
                times = [created for created in (one.created, other.created) if created is not None]
                found[model] = Card(max(lengths, default=None), min(times, default=None))
        return dict(sorted(found.items()))
