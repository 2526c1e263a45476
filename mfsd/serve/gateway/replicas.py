"""The replicas as the gateway knows them: what it has sent itself, at once; what others sent, from the last poll."""

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
"""Of the latest prompt in the mean time of a prompt token."""
FETCH_TOKENS_LEAST: Final = 256
ERRORS_MAX: Final = 3
"""Errors in a row by which a replica goes behind the others: one that fails at once is always the least loaded."""
BEHIND_S: Final = 10.0
"""Then its next answer decides."""
UNCONNECTED_MAX: Final = 2
"""Connections in a row that could not be made, by which a replica is down."""


class Stage(str, Enum):
    """Of an engine that the gateway itself starts and stops."""

    RUNS = "runs"
    """Or another program sees to that."""
    STARTS = "starts"
    STOPS = "stops"
    STOPPED = "stopped"


class Card(NamedTuple):
    """What an engine says of a model; None: nothing."""

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
        """Why it is not healthy."""
        self.models: tuple[str, ...] = tuple(settings.models)
        self.cards: dict[str, Card] = {}
        """Of the models that its engine names."""
        self.prompt_max = settings.kv_tokens
        self.memory_max: int | None = None
        """Tokens in its KV memory."""
        self.waiting = self.running = self.waiting_tokens = 0
        """Calls of this gateway: before and after their first byte, and prompt tokens of the former."""
        self.expected = 0
        """Calls of this gateway that will decode here, if they can, once they are prefilled."""
        self.foreign_waiting = self.foreign_running = 0
        """Of others, when it was polled last."""
        self._most = 0
        """Calls of this gateway at a time since then: an engine may still count those that have just ended."""
        self.kv_used_share = 0.0
        self.token_ns = 0
        self.owed = Owed()
        self.prefixes = Prefixes()
        self.turns: set[Losable] = set()
        """The calls of this gateway that are there."""
        self.seen_s = math.inf
        """When anything came from its engine last, by the loop's clock; infinite: nothing has."""
        self.stage = Stage.RUNS
        self.held = False
        """It is given no more calls, since another engine needs its memory."""
        self.used_s = 0.0
        """When it was given a call last, by the loop's clock."""
        self.errors = 0
        """Answers with 500 or more, in a row."""
        self.behind_s = -math.inf
        """Until when it gets only what no other replica serves."""
        self.unconnected = 0
        """Connections in a row that could not be made. It is behind the others then, too."""
        self._unconnected_s = -math.inf
        """When the last of them had failed."""
        self.sent = self.failed = 0
        """Calls so far; those of them that ended with an error of the connection."""

    def begin(self, tokens: int) -> None:
        self.waiting += 1
        self.waiting_tokens += tokens
        self._most = max(self._most, self.waiting + self.running)

    def first_byte(self, tokens: int) -> None:
        self.waiting -= 1
        self.waiting_tokens -= tokens
        self.running += 1

    def leave(self, tokens: int) -> None:
        """A call that had no byte yet is over."""
        self.waiting -= 1
        self.waiting_tokens -= tokens

    def learn(self, ahead_tokens: int, seconds: float) -> None:
        """A first token came so long after so many prompt tokens waited, its own included."""
        if ahead_tokens > 0:
            each_ns = int(seconds * 1e9 / ahead_tokens)
            self.token_ns += int(PACE_WEIGHT * (each_ns - self.token_ns)) if self.token_ns else each_ns

    def seen(self) -> None:
        self.seen_s = asyncio.get_running_loop().time()

    def answered(self, status: int) -> bool:
        """Whether by this one it is behind the others, which is news."""
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
        """Whether it is down by that. Connections that were all begun before one of them failed are the same burst, and
        count once; one during which anything came from its engine says that it is only busy."""
        if began_s >= self._unconnected_s:
            answers = began_s <= self.seen_s < math.inf
            self.unconnected = 1 if answers else self.unconnected + 1
            self._unconnected_s = asyncio.get_running_loop().time()
        return self.unconnected >= UNCONNECTED_MAX

    def connected(self) -> None:
        self.unconnected = 0

    def behind(self, now_s: float) -> bool:
        """It gets only what no other replica serves."""
        return self.unconnected > 0 or self.behind_s > now_s

    def polled(self, waiting: int, running: int, kv_used_share: float) -> None:
        foreign = max(0, waiting + running - self._most)
        self.foreign_waiting = min(foreign, max(0, waiting - self.waiting))
        self.foreign_running = foreign - self.foreign_waiting
        self._most = self.waiting + self.running
        self.kv_used_share = kv_used_share

    def bound_prompts(self) -> None:
        """By what its engine says of contexts and memory, where the configuration has no bound."""
        if self.settings.kv_tokens is None:
            contexts = [card.prompt_max for card in self.cards.values() if card.prompt_max is not None]
            known = [most for most in (max(contexts, default=None), self.memory_max) if most is not None]
            self.prompt_max = min(known, default=None)

    @property
    def requests(self) -> int:
        """Those of others included."""
        return self.waiting + self.running + self.foreign_waiting + self.foreign_running

    @property
    def away(self) -> bool:
        """Its process is not to answer."""
        return self.stage in (Stage.STOPS, Stage.STOPPED)

    def up(self) -> bool:
        """Whether that is news."""
        if self.away:  # it has answered just before its process was stopped
            return False
        self.stage = Stage.RUNS
        news, self.healthy, self.problem = not self.healthy, True, ""
        return news

    def down(self, problem: str) -> bool:
        """Whether that is news. What its engine had cached is gone with it."""
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
            kv_tokens=self.prompt_max if too_long else None,  # an estimate of text refuses nothing
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
        """Of which each address is a replica; those that were found are among all."""
        self._found: list[dict[str, LiveReplica]] = [{} for _ in self.several]
        self.disaggregated = any(replica.role is Role.PREFILL for replica in settings.replicas)
        self.whole = any(replica.role is Role.BOTH for replica in settings.replicas)
        """Some take whole requests."""

    @property
    def ready(self) -> bool:
        """One answers, or will once a request wants it."""
        return any(replica.healthy or replica.stage is not Stage.RUNS for replica in self.all)

    def found(self, number: int, addresses: set[str]) -> tuple[list[LiveReplica], list[LiveReplica]]:
        """What is new and what is gone of one of several. Requests that have a place at one that is gone keep it."""
        here = self._found[number]
        gone = [here.pop(address) for address in here.keys() - addresses]
        new = []
        for address in sorted(addresses - here.keys()):
            replica = LiveReplica(self.several[number].at(address))
            if (
                replica.name not in self.by_name or self.by_name[replica.name] in gone
            ):  # the configuration names it, too
                here[address] = replica
                new.append(replica)
        if new or gone:
            self.all = [replica for replica in self.all if replica not in gone] + new
            self.by_name = {replica.name: replica for replica in self.all}
        return new, gone

    def in_front(self, among: Collection[str] | None, now_s: float) -> Collection[str] | None:
        """Those of them that are not behind the others."""
        if not any(replica.behind(now_s) for replica in self.all):
            return among
        names = {replica.name for replica in self.all if not replica.behind(now_s)}
        return names if among is None else names.intersection(among)

    def view(self, prompt: Prompt, among: Collection[str] | None = None) -> Sequence[Replica]:
        """among: the names of those that count."""
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
        """In tokens, of the replicas that have a limit, the shortest first."""
        return sorted(replica.prompt_max for replica in self.all if replica.prompt_max is not None)

    def models(self) -> dict[str, Card]:
        """Of those that are healthy, or will be when one of their models is wanted: the longest prompt that any of them
        takes, and when the first one had the model."""
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
