"""What the scheduler's connector knows of its requests and sends to the workers' connector. No vLLM in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mfsd.client.checking import gid
from mfsd.serve.headers import first_given
from mooncake_adapter.metadata import request_number
from mooncake_adapter.protocol import tested
from mooncake_adapter.slo import Defaults, promise_of
from mooncake_adapter.warn_once import WarnOnce

TESTED_VERSIONS = ("0.32.0",)
TESTED_CONNECTORS = (
    *("MooncakeConnector", "MooncakeStoreConnector", "NixlConnector", "NixlPushConnector", "ExampleConnector"),
)
BY_PARAMETERS = ("MooncakeConnector", "NixlConnector", "NixlPushConnector")
"""Connectors that load what a request's own parameters name, and nothing else."""

DECODE_NIC = "decode_nic"
"""Key of `kv_transfer_params` for routers that choose the decode instance before the prefill: the address of the NIC by
which that instance gets its KV. vLLM's own parameters name hosts of side channels, which need not be on that
network."""


def supported_version(version: str, once: WarnOnce) -> bool:
    """Whether this vLLM was tested; warns once if it was not."""
    return tested("vLLM", version, version.partition("+")[0], TESTED_VERSIONS, "requests run unscheduled", once)


def report_untested(connector: str, once: WarnOnce) -> None:
    """Warns once if the inner connector was not tested."""
    if connector not in TESTED_CONNECTORS:
        once.warn(
            "connector",
            "connector %r was not tested (tested: %s); its batches, layers and blocks are reported all the same",
            connector,
            ", ".join(TESTED_CONNECTORS),
        )


@dataclass(frozen=True)
class RequestInfo:
    """One request, as the engine reports it."""

    name: str
    number: int
    """Derived from the transfer's id, so both ends of a prefill-to-decode transfer have the same number."""
    deadline_unix_ns: int = 0
    program_id: int = 0
    budget_ns: int = 0
    sends: bool = False
    """Whether its KV goes to a decode instance."""
    loads: bool = False
    """Whether its KV comes from another instance."""
    decode_nic: str = ""
    """Address of the NIC by which the decode instance gets its KV, if the router has told it to both instances."""


class Chunk(NamedTuple):
    """The part of one request that runs in one step."""

    info: RequestInfo
    blocks: tuple[int, ...]
    """Blocks that the request was given since its last chunk."""
    first_token: int
    tokens: int
    prompt_tokens: int

    @property
    def prefill(self) -> bool:
        return self.first_token < self.prompt_tokens

    @property
    def last(self) -> bool:
        """Whether the prompt ends in this step."""
        return self.prefill and self.first_token + self.tokens >= self.prompt_tokens


class Load(NamedTuple):
    """KV that is on its way to blocks of a request which has no step yet."""

    info: RequestInfo
    blocks: tuple[int, ...]
    tokens: int
    """Tokens to compute, once the KV is there, until the request's prompt has ended: its own and those of requests
    before it."""


@dataclass
class Progress:
    """How far the prompt of one request has got."""

    info: RequestInfo
    prompt_tokens: int
    held_tokens: int = 0
    """Tokens that are cached here, on their way, or computed by the end of the latest reported step."""
    loading: bool = False
    """Whether it waits for its KV, and lets others pass."""
    found_tokens: int | None = None
    """Tokens to be loaded, as decided; None: not decided yet."""

    @property
    def left_tokens(self) -> int:
        return max(0, self.prompt_tokens - self.held_tokens)

    def awaits(self) -> tuple[int, int]:
        """Returns the tokens whose KV is fetched first, and the tokens to compute after that until the first token of
        output."""
        fetched, left = self.found_tokens, self.prompt_tokens - self.held_tokens
        if fetched is None:
            fetched = self.prompt_tokens if self.info.loads else 0
        return fetched, max(0, left if self.loading else left - fetched)


def numbers_of(ids: Any) -> tuple[int, ...]:
    """Returns the blocks of all groups in one tuple."""
    return tuple(block for group in ids or () for block in group)


@dataclass
class Requests:
    """The requests whose end the scheduler has not seen."""

    defaults: Defaults
    model: str
    once: WarnOnce
    pruned: Callable[[int], bool] = lambda number: False
    waiting: dict[str, Progress] = field(default_factory=dict)
    """Requests that are in no step yet, or were put back into the queue."""
    left: list[str] | None = None
    """Requests that have left `waiting` since the reader emptied this list; None: nothing reads it."""
    changed: bool = False
    """Whether anything about the waiting requests has changed since the reader reset this."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """The engine's own order, if there is one: smaller goes first."""
    _progress: dict[str, Progress] = field(default_factory=dict)
    _loading: list[Load] = field(default_factory=list)

    def arrived(self, request: Any) -> RequestInfo:
        """Adds a request unless it is known, and reads what it was promised. Returns its information."""
        found = self._progress.get(request.request_id)
        if found is not None:
            return found.info
        parameters = getattr(request, "kv_transfer_params", None)
        parameters = parameters if isinstance(parameters, Mapping) else {}
        sampling = getattr(request, "sampling_params", None)
        promise = promise_of([getattr(sampling, "extra_args", None), parameters], self.defaults, self.model, self.once)
        session = promise.session or str(getattr(request, "session_id", "") or "") or promise.tenant
        info = RequestInfo(
            request.request_id,
            request_number(
                str(parameters.get("transfer_id") or parameters.get("remote_request_id") or request.request_id)
            ),
            promise.deadline_unix_ns(float(getattr(request, "arrival_time", 0.0) or 0.0)),
            request_number(session) if session else 0,
            int((promise.ttft_slo_ms or 0.0) * 1e6),
            bool(parameters.get("do_remote_decode")),
            bool(parameters.get("do_remote_prefill")),
            self._decode_nic(parameters),
        )
        self._progress[request.request_id] = progress = Progress(info, int(request.num_prompt_tokens))
        self.waiting[request.request_id] = progress
        self.changed = True
        return info

    def _decode_nic(self, parameters: Mapping[str, Any]) -> str:
        """Returns the address that the router gave; "" with one warning if it is no address."""
        value = first_given([parameters], DECODE_NIC)
        if value is None or (isinstance(value, str) and gid(value) is not None):
            return value or ""
        text = '%s=%r is no address of a NIC, such as "10.0.0.7"; the decode instance\'s port is not known'
        self.once.warn("decode-nic", text, DECODE_NIC, value)
        return ""

    def cached(self, request: Any, tokens: int) -> None:
        """This many tokens of the request's prompt are already cached here."""
        self.arrived(request)
        progress = self._progress[request.request_id]
        if progress.held_tokens != tokens or request.request_id not in self.waiting:
            progress.held_tokens, self.changed = tokens, True
            self.waiting[request.request_id] = progress  # asked again: it was preempted

    def found(self, request: str, tokens: int | None) -> None:
        """KV of this many tokens will be loaded for the request; None: that is decided later."""
        progress = self._progress.get(request)
        if progress is not None and progress.found_tokens != tokens:
            progress.found_tokens, self.changed = tokens, True

    def known(self, request: str) -> int | None:
        """Returns how many tokens of a waiting request's prompt need not be computed, because they are cached here or
        will be loaded. None: not decided yet, or the load is under way."""
        progress = self.waiting.get(request)
        if progress is None or progress.found_tokens is None or progress.loading:
            return None
        return progress.held_tokens + progress.found_tokens

    def loading(self, request: Any, blocks: Any, tokens: int) -> None:
        """The inner connector will load KV of this many tokens into blocks that hold nothing yet (vLLM's
        KVCacheBlocks)."""
        info = self.arrived(request)
        progress = self._progress[request.request_id]
        progress.held_tokens += tokens
        progress.loading = self.changed = True
        unhashed = numbers_of(blocks.get_unhashed_block_ids_all_groups())
        self._loading.append(Load(info, unhashed, self._tokens_until(progress)))

    def _tokens_until(self, last: Progress) -> int:
        """Returns the tokens to compute until its prompt has ended: its own, and those of requests that go before it
        and wait for no load."""
        before = 0
        rank = self.ranks.get(last.info.name)
        if rank is not None:
            for name, progress in self._progress.items():
                if progress is last or progress.loading:
                    continue
                if name not in self.waiting or self.ranks.get(name, rank) < rank:
                    before += progress.left_tokens
            return before + last.left_tokens
        for progress in self._progress.values():
            if progress is last:
                break
            before += 0 if progress.loading else progress.left_tokens
        return before + last.left_tokens

    def ahead_of(self, request: str) -> tuple[int, int]:
        """Returns the tokens to compute before this request's prompt can begin, for requests that go before it and wait
        for no load; and how many other requests have tokens to compute."""
        last = self._progress[request]
        waiting = sum(1 for one in self._progress.values() if one is not last and not one.loading and one.left_tokens)
        return self._tokens_until(last) - last.left_tokens, waiting

    def ready(self) -> list[str]:
        """Returns the requests that wait for no load."""
        return [name for name, progress in self._progress.items() if not progress.loading]

    def loads(self) -> list[Load]:
        """Returns the loads since the last call, for requests that are in no step yet."""
        loads, self._loading = self._loading, []
        return [load for load in loads if (known := self._progress.get(load.info.name)) is not None and known.loading]

    def chunks(self, output: Any) -> list[Chunk]:
        """Returns the chunks that run in the step which this scheduler output describes."""
        first: dict[str, tuple[int, tuple[int, ...]]] = {
            new.req_id: (new.num_computed_tokens, numbers_of(new.block_ids)) for new in output.scheduled_new_reqs
        }
        cached = output.scheduled_cached_reqs
        for index, request in enumerate(cached.req_ids):
            first[request] = (cached.num_computed_tokens[index], numbers_of(cached.new_block_ids[index]))
        chunks = []
        for request, tokens in output.num_scheduled_tokens.items():
            if request in self._progress and request in first:
                progress, (first_token, blocks) = self._progress[request], first[request]
                progress.held_tokens, progress.loading = first_token + tokens, False
                self._leave(request)
                chunks.append(Chunk(progress.info, blocks, first_token, tokens, progress.prompt_tokens))
        return chunks

    def is_pruned(self, request: str) -> bool:
        found = self._progress.get(request)
        return found is not None and self.pruned(found.info.number)

    def _leave(self, request: str) -> None:
        if self.waiting.pop(request, None) is not None:
            self.changed = True
            if self.left is not None:
                self.left.append(request)

    def ended(self, request: str) -> RequestInfo | None:
        self._leave(request)
        found = self._progress.pop(request, None)
        return found.info if found else None

    def reported(self, request: str, parameters: dict[str, Any] | None) -> dict[str, Any] | None:
        """Ends the request like :meth:`ended`. Returns what its answer says of its transfer: the inner connector's
        parameters, with "mfs_pruned" if the daemon found it infeasible."""
        info = self.ended(request)
        return (
            {**(parameters or {}), "mfs_pruned": True} if info is not None and self.pruned(info.number) else parameters
        )
