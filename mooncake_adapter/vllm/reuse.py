"""Decides whether KV that a store's connector has found is loaded or computed again. No vLLM in here.

The inner connector reports how many tokens it can load. vLLM loads the number that the connector answers and computes
the rest; an answer of 0 computes all. If the network would deliver a load late, the load makes its request late, while
computing again may not. `mfsd.policy.serve.fetch` decides by the time that the session expects of the load. If that is
unknown, the inner connector's answer stands. To load a part, the inner connector is asked once more about a prompt that
ends there, as it expects to load what it has answered last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import msgspec

from mfsd.client.checking import gid
from mfsd.policy.serve.fetch import Choice, Decision, Reason, ReuseRule, ReuseView, decide
from mooncake_adapter.vllm.requests import Chunk, RequestInfo, Requests
from mooncake_adapter.vllm.token_bytes import TokenBytes
from mooncake_adapter.warn_once import LOG, WarnOnce

STORES = ("MooncakeStoreConnector", "LMCacheConnectorV1", "ExampleConnector")
"""Inner connectors that load what a store holds and lose nothing if a load is not made. With others a prefill instance
keeps the KV until it is read. These all load either everything that they last found or nothing: they refuse an answer
of some of the tokens."""
LEASED = ("MooncakeStoreConnector",)
"""Those of STORES whose store lends memory to its readers for a limited time (mfsd/policy/store_lease.py)."""
IN_PARTS = ("MooncakeStoreConnector",)
"""Those of STORES that find the same KV for a shorter prompt, as they identify it by block. ExampleConnector identifies
it by the whole prompt, and LMCacheConnectorV1 keeps what it found first."""
UNKNOWN_IN_A_ROW = 32
"""Number of unknown answers in a row that is worth a warning; a restart of the daemon causes fewer."""
KEPT = 0.8
"""Weight kept of earlier steps' time and tokens when another step has ended, as in workers."""
NS_PER_S = 1e9


class ReuseOptions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Table "reuse" of the connector's configuration."""

    rule: ReuseRule = ReuseRule.ALWAYS
    nic: str = ""
    """The NIC by which loads come in; the host's first one by default."""
    owners: tuple[str, ...] = ()
    """Addresses of the NICs by which the store's nodes send (their RDMA NICs, if it uses RDMA). A load is expected to
    take as long as from the slowest of them."""
    parts: bool = False
    """Whether the first part of what is computed again may be loaded. Off by default, as it gained nothing in
    simulation (docs/results/outlook.md)."""


def options_of(config: Any, connector: str, once: WarnOnce) -> ReuseOptions:
    """Reads the table. If it cannot be read, or names what cannot be done, one warning says so and all reuse is
    loaded."""
    if config is None:
        return ReuseOptions()
    try:
        options = msgspec.convert(config, ReuseOptions)
    except msgspec.ValidationError as error:
        once.warn("reuse", 'kv_connector_extra_config["reuse"]: %s; all reuse is loaded', error)
        return ReuseOptions()
    for owner in options.owners:
        if gid(owner) is None:
            once.warn(
                "reuse-owner",
                'kv_connector_extra_config["reuse"]: owners: %r is no address of a NIC, such as "10.0.0.7"; '
                "all reuse is loaded",
                owner,
            )
            return ReuseOptions()
    if options.rule is not ReuseRule.ALWAYS and connector not in STORES:
        once.warn(
            "reuse-inner",
            'kv_connector_extra_config["reuse"]: %r does not read from a store (known: %s); all reuse is loaded',
            connector,
            ", ".join(STORES),
        )
        return ReuseOptions()
    if options.parts and connector not in IN_PARTS:
        once.warn(
            "reuse-parts",
            'kv_connector_extra_config["reuse"]: parts: %r loads what it has found or nothing; no part is loaded',
            connector,
        )
        return msgspec.structs.replace(options, parts=False)
    return options


class Shortened:
    """A request whose prompt seems to end earlier. All other attributes are those of the request."""

    def __init__(self, request: Any, tokens: int) -> None:
        self._request, self.num_tokens = request, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)


class Parts(NamedTuple):
    """How a part of what was found is loaded."""

    asked: Callable[[Any, int], tuple[int | None, bool]]
    """The inner connector's `get_num_new_matched_tokens`."""
    block_tokens: int


class FetchTimes(Protocol):
    """The part of a session that is asked here."""

    def fetch_ns(
        self,
        size_bytes: int,
        peer: str | bytes = "",
        deadline_ns: int = 0,
        *,
        nic: int = 0,
        announced_bytes: int = 0,
        owner_bytes: int | None = None,
    ) -> int | None: ...


class StepPace:
    """Time that a token of a prompt took in recent steps, as the scheduler sees it: from one step to the next, if the
    engine went on with a request that it already knew."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._begun_ns, self._tokens = 0, 0
        self._ready: frozenset[str] = frozenset()
        self._spent_ns = self._spent_tokens = 0.0

    def planned(self, chunks: Iterable[Chunk], ready: Iterable[str]) -> None:
        """The scheduler has planned a step. `ready`: requests that wait for no load."""
        now_ns, chunks = self._clock_ns(), list(chunks)
        if self._tokens and any(chunk.info.name in self._ready for chunk in chunks):
            self._spent_ns = KEPT * self._spent_ns + now_ns - self._begun_ns
            self._spent_tokens = KEPT * self._spent_tokens + self._tokens
        self._begun_ns, self._ready = now_ns, frozenset(ready)
        self._tokens = sum(chunk.tokens for chunk in chunks if chunk.prefill)

    def seconds(self, tokens: int) -> float | None:
        """Returns the expected time for this many tokens; None before anything was measured."""
        return tokens * self._spent_ns / self._spent_tokens / NS_PER_S if self._spent_tokens else None


class ReuseChoice:
    """Decides for the requests of one scheduler."""

    def __init__(
        self,
        options: ReuseOptions,
        requests: Requests,
        times: FetchTimes,
        bytes_of_token: TokenBytes,
        nic: int,
        once: WarnOnce,
    ) -> None:
        self._options, self._requests, self._times = options, requests, times
        self._token_bytes, self._nic, self._once = bytes_of_token, nic, once
        self.announced: Callable[[str], int] = lambda request: 0
        """Returns the bytes of a request that are announced from each owner. vLLM asks again about a request while it
        finds no memory for it, and then what is promised at the owners' ports contains them."""
        self._latest: dict[str, Decision] = {}
        self.parts: Parts | None = None
        """None: reuse is loaded as a whole or not at all."""
        self.lease_s: float | None = None
        """How long the store keeps what a load reads; None: there is no lease."""
        self._uncounted: set[str] = set()
        self.pace = StepPace()
        self.counts: Counter[str] = Counter()
        """Number of requests by choice (load, compute again, a part); each request counts once."""
        self._unknown = 0
        """Answers in a row for which the network's backlog was unknown."""
        self.counted: Callable[[Decision], object] = lambda decision: None
        """Called with each decision that is counted, for the metric."""

    def answer(self, request: Any, computed_tokens: int, found: tuple[int | None, bool]) -> tuple[int | None, bool]:
        """Returns the inner connector's answer, or the one that computes again all of it or a part."""
        tokens = found[0]
        if not tokens or tokens < 0:
            return found
        try:
            decision = self._decide(request, computed_tokens, tokens)
        except Exception as error:
            self._once.warn("reuse-failed", "whether to load reuse could not be decided (%s); it is loaded", error)
            return found
        self._latest[request.request_id] = decision
        self._uncounted.add(request.request_id)
        LOG.debug(
            "reuse request=%s tokens=%d choice=%s: %s",
            request.request_id,
            tokens,
            decision.choice.value,
            decision.reason.value,
        )
        self._is_known(decision)
        if decision.choice is Choice.RECOMPUTE:
            return 0, False
        if decision.choice is Choice.PART and self.parts is not None:
            return self._part(request, computed_tokens, self._end_of_part(computed_tokens, tokens, decision.share))
        return found

    def _is_known(self, decision: Decision) -> None:
        """Warns if the backlog stays unknown for long: reuse is then loaded as if there were no rule, and nothing else
        shows it."""
        if decision.reason is not Reason.BACKLOG_UNKNOWN:
            self._unknown = 0
            return
        self._unknown += 1
        if self._unknown >= UNKNOWN_IN_A_ROW:
            self._once.warn(
                "reuse-unknown",
                "%d answers in a row did not know how long a load takes, so all reuse is loaded: no daemon, none that "
                "has the device of this connector, or a cache whose size is not known (mfsctl outlook)",
                self._unknown,
            )

    def _part(self, request: Any, computed_tokens: int, end: int) -> tuple[int | None, bool]:
        """Returns the inner connector's answer about a prompt that ends there. If it fails, all is computed again."""
        assert self.parts is not None
        try:
            return self.parts.asked(Shortened(request, end + 1), computed_tokens)
        except Exception as error:
            self._once.warn("reuse-part", "a part of the reuse could not be found (%s); all is computed again", error)
            again = self._latest[request.request_id]._replace(choice=Choice.RECOMPUTE)
            self._latest[request.request_id] = again
            return 0, False

    def _end_of_part(self, computed_tokens: int, tokens: int, share: float) -> int:
        """Returns where the loaded part ends in the prompt, rounded down to a block."""
        assert self.parts is not None
        return (computed_tokens + int(share * tokens)) // self.parts.block_tokens * self.parts.block_tokens

    def _decide(self, request: Any, computed_tokens: int, tokens: int) -> Decision:
        info, now_ns = self._requests.arrived(request), time.time_ns()
        if info.loads:
            return Decision(Choice.FETCH, Reason.KEPT_ELSEWHERE)
        before, waiting = self._requests.ahead_of(request.request_id)
        whole = max(0, int(request.num_prompt_tokens) - computed_tokens)
        queue_s, rest_s = self.pace.seconds(before), self.pace.seconds(max(0, whole - tokens))
        whole_s = self.pace.seconds(whole)
        if queue_s is None or rest_s is None or whole_s is None:
            return Decision(Choice.FETCH, Reason.NOTHING_MEASURED)
        due = bool(info.deadline_unix_ns)
        decision = decide(
            self._options.rule,
            ReuseView(
                fetch_s=self._fetch_s(info, tokens),
                queue_s=queue_s,
                rest_s=rest_s,
                whole_s=whole_s,
                left_s=(info.deadline_unix_ns - now_ns) / NS_PER_S if due else None,
                limit_s=info.budget_ns / NS_PER_S if due else None,
                waiting=waiting,
                before_s=self._fetch_s(info, 0) if self.parts is not None else None,
                lease_s=self.lease_s,
            ),
        )
        part = decision.choice is Choice.PART
        if part and self._end_of_part(computed_tokens, tokens, decision.share) <= computed_tokens:
            return decision._replace(choice=Choice.RECOMPUTE)  # less than a block
        return decision

    def _fetch_s(self, info: RequestInfo, tokens: int) -> float | None:
        """Returns the seconds until KV of this many tokens is here from the slowest owner; 0: until the first byte. For
        an owner of which nothing is known only this node's port counts. None if that, or the bytes of a token, is
        unknown."""
        own, owner = self._token_bytes
        if not own:
            return None
        announced = self.announced(info.name)
        times = [
            self._times.fetch_ns(
                max(1, int(tokens * own)),
                peer,
                info.deadline_unix_ns,
                nic=self._nic,
                announced_bytes=announced,
                owner_bytes=max(1, int(tokens * owner)),
            )
            for peer in self._options.owners or ("",)
        ]
        known = [one for one in times if one is not None]
        return max(known) / NS_PER_S if len(known) == len(times) else None

    def allocated(self, request: str) -> None:
        """The request has got its blocks, so its latest decision is final. vLLM also calls this when a load has
        ended."""
        if request in self._uncounted:
            self._uncounted.remove(request)
            self._count(self._latest[request])

    def _count(self, decision: Decision) -> None:
        self.counts[decision.choice.value] += 1
        try:
            self.counted(decision)
        except Exception as error:
            self._once.warn("reuse-counted", "a decision could not be counted (%s)", error)

    def explanation(self, request: str) -> str:
        """Returns why its reuse is loaded or computed again; "" if nothing was decided."""
        decision = self._latest.get(request)
        return decision.reason.value if decision is not None else ""

    def ended(self, request: str, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        """Returns the parameters of the answer, with "mfs_reuse" if the request computed its reuse again."""
        reason = self.explanation(request)
        decision = self._latest.pop(request, None)
        self._uncounted.discard(request)
        if decision is None or decision.choice is Choice.FETCH:
            return parameters
        what = "computed again" if decision.choice is Choice.RECOMPUTE else "computed again in part"
        return {**(parameters or {}), "mfs_reuse": f"{what}: {reason}"}
