"""What a transfer is for: given by a context manager, looked up by memory range, or unknown (then the rules decide).

Nothing here raises into a transfer: an impossible field is reported once and taken as unknown.
"""

from __future__ import annotations

import bisect
import hashlib
import threading
import time
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from mooncake_adapter.session import Batch
from mooncake_adapter.warn_once import WarnOnce

STAGES = range(8)
LAYERS_MAX = 0xFFFF
U64 = 0xFFFF_FFFF_FFFF_FFFF
LEASE_S = 30.0
"""vLLM's default lease of KV that another instance is to fetch."""
HORIZON_NS = 24 * 3600 * 10**9
"""A deadline more than a day ahead is taken for a mistake of units."""


class Metadata(NamedTuple):
    """What one transfer is for. Zero, None and "" mean unknown."""

    request_id: int = 0
    stage: int | None = None
    """None: derived from the operation (stage 3 for writes, 1 for reads, background for store writes)."""
    layer: int = 0
    deadline_ns: int = 0
    """On this host's CLOCK_MONOTONIC."""
    batch: Batch | None = None


UNKNOWN = Metadata()


def request_number(name: str | int) -> int:
    """Returns the 64-bit number of a request: an integer is its own number, a textual id is hashed. Never 0."""
    if isinstance(name, int):
        return name & U64
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "little") or 1


def checked(metadata: Metadata, once: WarnOnce, now_ns: int | None = None) -> Metadata:
    """Returns the metadata with every impossible field replaced by unknown; warns once per kind."""
    request_id, stage, layer, deadline_ns, batch = metadata
    if not isinstance(request_id, int) or not 0 <= request_id <= U64:
        once.warn("request_id", "request_id=%r is not a 64-bit number; taken as unknown", request_id)
        request_id = 0
    if stage is not None and (not isinstance(stage, int) or stage not in STAGES):
        once.warn("stage", "stage=%r is not one of 0 to 7; taken by the kind of operation", stage)
        stage = None
    if not isinstance(layer, int) or not 0 <= layer <= LAYERS_MAX:
        once.warn("layer", "layer=%r is not one of 0 to %d; taken as 0", layer, LAYERS_MAX)
        layer = 0
    if not isinstance(deadline_ns, int) or deadline_ns < 0:
        once.warn("deadline", "deadline_ns=%r is not a time of CLOCK_MONOTONIC; taken as none", deadline_ns)
        deadline_ns = 0
    elif deadline_ns and deadline_ns > (time.monotonic_ns() if now_ns is None else now_ns) + HORIZON_NS:
        once.warn(
            "deadline-far",
            "deadline_ns=%d is more than a day ahead (CLOCK_MONOTONIC is meant, in nanoseconds); taken as none",
            deadline_ns,
        )
        deadline_ns = 0
    return Metadata(request_id, stage, layer, deadline_ns, batch)


class Ranges:
    """Finds the request that memory belongs to. Readers take no lock: writers replace the whole table.

    Ranges do not overlap: a new one removes each range that it overlaps, as when a block goes to the next request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: tuple[list[int], list[int], list[Metadata]] = ([], [], [])
        self.owned: list[object] = []

    def __len__(self) -> int:
        return len(self._table[0])

    def add(self, address: int, size_bytes: int, metadata: Metadata) -> None:
        self.add_many([(address, size_bytes)], metadata)

    def add_many(self, spans: list[tuple[int, int]], metadata: Metadata) -> None:
        """Assigns every (address, bytes) span to ``metadata``."""
        new = sorted((a, a + n) for a, n in spans if n > 0)
        with self._lock:
            kept = self._without(new)
            entries = sorted([*kept, *((a, b, metadata) for a, b in new)], key=lambda e: e[0])
            self._publish(entries)

    def remove(self, metadata: Metadata) -> None:
        """Removes every range that was added with exactly this metadata object."""
        with self._lock:
            self._publish([e for e in self._entries() if e[2] is not metadata])

    def clear(self) -> None:
        with self._lock:
            self._publish([])

    def find(self, address: int) -> Metadata | None:
        starts, ends, metadata = self._table
        at = bisect.bisect_right(starts, address) - 1
        return metadata[at] if at >= 0 and address < ends[at] else None

    def _entries(self) -> list[tuple[int, int, Metadata]]:
        return list(zip(*self._table, strict=True))

    def _without(self, spans: list[tuple[int, int]]) -> list[tuple[int, int, Metadata]]:
        starts = [a for a, _ in spans]

        def touched(start: int, end: int) -> bool:
            at = bisect.bisect_right(starts, start) - 1
            if at >= 0 and spans[at][1] > start:
                return True
            return at + 1 < len(spans) and spans[at + 1][0] < end

        return [e for e in self._entries() if not touched(e[0], e[1])]

    def _publish(self, entries: list[tuple[int, int, Metadata]]) -> None:
        self._table = ([e[0] for e in entries], [e[1] for e in entries], [e[2] for e in entries])
        self.owned[:] = entries[:1]


class Finder(Protocol):
    """Finds the owner of an address."""

    @property
    def owned(self) -> Sized:
        """Returns the container of what has an owner, which is empty while nothing does. It must be the same built-in
        Python container at each call, because native code keeps a reference."""

    def find(self, address: int) -> Metadata | None: ...


class MetadataSources:
    """Finds the metadata of a transfer: that of the owner of its memory, else of the context of the running code."""

    def __init__(self, once: WarnOnce) -> None:
        self._once = once
        self.context: ContextVar[Metadata | None] = ContextVar("mfs_transfer", default=None)
        self.call: ContextVar[Metadata | None] = ContextVar("mfs_call", default=None)
        """Metadata set by the engine's adapter for all transfers started here. It takes precedence over owners of
        memory."""
        self.lease_s = LEASE_S
        """How long the memory of a transfer stays with its request, where the engine lends it for a limited time."""
        self.ranges = Ranges()
        self._finders: tuple[Finder, ...] = ()
        self.owned: list[Sized] = [self.ranges.owned]

    def add_finder(self, finder: Finder) -> None:
        """Adds a finder, which is asked for the owner of each address."""
        self._finders = (*self._finders, finder)
        self.owned.append(finder.owned)

    def any_owner(self) -> bool:
        """Whether any address may have an owner."""
        return any(self.owned)  # no generator: every transfer calls this

    def current(self) -> Metadata:
        return self.context.get() or UNKNOWN

    @contextmanager
    def transfer(self, metadata: Metadata) -> Iterator[None]:
        """Transfers started inside the block carry this metadata, unless their memory is in a range."""
        token = self.context.set(checked(metadata, self._once))
        try:
            yield
        finally:
            self.context.reset(token)

    def of(self, address: int) -> Metadata:
        """Returns the metadata of a transfer from or to this local address."""
        found = self.ranges.find(address)
        for finder in self._finders:
            found = found or finder.find(address)
        return found or self.context.get() or UNKNOWN
