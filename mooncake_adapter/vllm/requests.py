"""What the scheduler's connector knows of its requests and ships to the workers' connector. No vLLM in here."""

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
"""These load what a request's own parameters name, and nothing else."""

DECODE_NIC = "decode_nic"
"""Of `kv_transfer_params`, for routers that choose the decode instance before the prefill: the address of the NIC by
which it gets its KV. vLLM's own parameters name hosts of side channels, which need not be on that network."""


def supported_version(version: str, once: WarnOnce) -> bool:
    """Whether this vLLM was tested; warns once where it was not."""
    return tested("vLLM", version, version.partition("+")[0], TESTED_VERSIONS, "requests run unscheduled", once)


def report_untested(connector: str, once: WarnOnce) -> None:
    """Warns once where the inner connector was not tested."""
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
    """Of the transfer, so that both ends of a prefill-to-decode transfer have the same."""
    deadline_unix_ns: int = 0
    program_id: int = 0
    budget_ns: int = 0
    sends: bool = False
    """Its KV goes to a decode instance."""
    loads: bool = False
    """Its KV comes from somewhere."""
    decode_nic: str = ""
    """Address of the NIC by which the decode instance gets its KV, where the router has said so to both instances."""


class Chunk(NamedTuple):
    """The part of one request that runs in one step."""

    info: RequestInfo
    blocks: tuple[int, ...]
    """Blocks that it was given since its last chunk."""
    first_token: int
    tokens: int
    prompt_tokens: int

    @property
    def prefill(self) -> bool:
        return self.first_token < self.prompt_tokens

    @property
    def last(self) -> bool:
        """The prompt ends in this step."""
        return self.prefill and self.first_token + self.tokens >= self.prompt_tokens


class Load(NamedTuple):
    """KV that is on its way to blocks of a request which has no step yet."""

    info: RequestInfo
    blocks: tuple[int, ...]
    tokens: int
    """To compute until the request's prompt has ended, once the KV is there: its own and those before it."""


@dataclass
class Progress:
    """How far the prompt of one request is."""

    info: RequestInfo
    prompt_tokens: int
    held_tokens: int = 0
    """Computed, in the latest step that was reported, cached here, or on their way."""
    loading: bool = False
    """It waits for its KV, and lets others pass."""
    found_tokens: int | None = None
    """To be loaded, as it was decided; None: not decided yet."""

    @property
    def left_tokens(self) -> int:
        return max(0, self.prompt_tokens - self.held_tokens)

    def awaits(self) -> tuple[int, int]:
        """Tokens whose KV comes first, and tokens to compute then until its first one."""
        fetched, left = self.found_tokens, self.prompt_tokens - self.held_tokens
        if fetched is None:
            fetched = self.prompt_tokens if self.info.loads else 0
        return fetched, max(0, left if self.loading else left - fetched)


def numbers_of(ids: Any) -> tuple[int, ...]:
    """The blocks of all groups in one row."""
    return tuple(block for group in ids or () for block in group)


@dataclass
class Requests:
    """The requests that the scheduler has not seen the end of."""

    defaults: Defaults
    model: str
    once: WarnOnce
    pruned: Callable[[int], bool] = lambda number: False
    waiting: dict[str, Progress] = field(default_factory=dict)
    """Those that are in no step yet, or were put back into the queue."""
    left: list[str] | None = None
    """Those that have left it since who reads this has emptied it; None: nothing reads it."""
    changed: bool = False
    """Something about what waits is another since who reads this has set it back."""
    ranks: Mapping[str, int] = field(default_factory=dict)
    """The engine's own order, where there is one: smaller goes first."""
    _progress: dict[str, Progress] = field(default_factory=dict)
    _loading: list[Load] = field(default_factory=list)

    def arrived(self, request: Any) -> RequestInfo:
        """A new request, or one not seen before; reads what it was promised."""
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
        """What the router says; "" with one warning where it is no address."""
        value = first_given([parameters], DECODE_NIC)
        if value is None or (isinstance(value, str) and gid(value) is not None):
            return value or ""
        text = '%s=%r is no address of a NIC, such as "10.0.0.7"; the decode instance\'s port is not known'
        self.once.warn("decode-nic", text, DECODE_NIC, value)
        return ""

    def cached(self, request: Any, tokens: int) -> None:
        """So many tokens of the request's prompt are cached here already."""
        self.arrived(request)
        progress = self._progress[request.request_id]
        if progress.held_tokens != tokens or request.request_id not in self.waiting:
            progress.held_tokens, self.changed = tokens, True
            self.waiting[request.request_id] = progress  # asked for again: it was preempted

    def found(self, request: str, tokens: int | None) -> None:
        """So many tokens' KV will be loaded for it, as it was decided; None: it is decided later."""
        progress = self._progress.get(request)
        if progress is not None and progress.found_tokens != tokens:
            progress.found_tokens, self.changed = tokens, True

    def known(self, request: str) -> int | None:
        """Of a waiting request: tokens of its prompt that need not be computed, cached here or to be loaded. None: not
        decided yet, or they are on their way."""
        progress = self.waiting.get(request)
        if progress is None or progress.found_tokens is None or progress.loading:
            return None
        return progress.held_tokens + progress.found_tokens

    def loading(self, request: Any, blocks: Any, tokens: int) -> None:
        """The inner connector will load so many tokens' KV into blocks that hold nothing yet (vLLM's KVCacheBlocks)."""
        info = self.arrived(request)
        progress = self._progress[request.request_id]
        progress.held_tokens += tokens
        progress.loading = self.changed = True
        unhashed = numbers_of(blocks.get_unhashed_block_ids_all_groups())
        self._loading.append(Load(info, unhashed, self._tokens_until(progress)))

    def _tokens_until(self, last: Progress) -> int:
        """To compute until its prompt has ended, by those that go before it and wait for no load, and by itself."""
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
        """Tokens to compute before this request's prompt can begin, by those that go before it and wait for no load;
        and how many other requests have tokens to compute."""
        last = self._progress[request]
        waiting = sum(1 for one in self._progress.values() if one is not last and not one.loading and one.left_tokens)
        return self._tokens_until(last) - last.left_tokens, waiting

    def ready(self) -> list[str]:
        """Requests that wait for no load."""
        return [name for name, progress in self._progress.items() if not progress.loading]

    def loads(self) -> list[Load]:
        """Loads since the last call, of requests that are in no step yet."""
        loads, self._loading = self._loading, []
        return [load for load in loads if (known := self._progress.get(load.info.name)) is not None and known.loading]

    def chunks(self, output: Any) -> list[Chunk]:
        """What runs in the step that this scheduler output describes."""
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
        """The same as :meth:`ended`, and what the request's answer says of its transfer: "mfs_pruned" where the daemon
        found it infeasible, beside what the inner connector says."""
        info = self.ended(request)
        return (
            {**(parameters or {}), "mfs_pruned": True} if info is not None and self.pruned(info.number) else parameters
        )
