"""What decode instances ask for of vLLM's NixlPushConnector, and the writes to them that are under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mooncake_adapter.metadata import Metadata

Indices = npt.NDArray[np.int64]
Arguments = tuple[Any, ...]


def pairs(local: Any, remote: Any) -> Indices:
    """Encodes each pair of a local and a remote descriptor as one number."""
    return np.asarray(local, dtype=np.int64) << 32 | np.asarray(remote, dtype=np.int64)


@dataclass(eq=False)
class Asked:
    """Where one decode instance wants the KV of one request."""

    name: str
    """The request's name there."""
    base: str
    """The part of the name that both instances share."""
    registration: Mapping[str, Any]
    blocks: list[int] = field(default_factory=list)
    source: str = ""
    """The request's name here, set when it is first pushed."""
    sides: tuple[Any, Any] = (None, None)
    """The prepared lists of descriptors, here and there."""
    queued: dict[int, int] = field(default_factory=dict)
    """By layer: number of blocks that are on their way or there."""
    open_writes: int = 0
    arrived: list[Indices] = field(default_factory=list)
    restarted: bool = False
    ending: bool = False
    """The prompt has ended, or the request without it: no new write is begun."""
    last: Arguments | None = None
    ready: bool = False
    """All its writes have ended."""

    @property
    def engine(self) -> str:
        return str(self.registration["decode_engine_id"])


@dataclass(eq=False)
class Write:
    """A write under way: some blocks of a layer."""

    asked: Asked
    handle: Any
    places: Indices
    metadata: Metadata
    size_bytes: int
    state: str = "PROC"
    measured: Any = None


def rest(local: Any, remote: Any, arrived: list[Indices]) -> tuple[Any, Any]:
    """Returns the descriptors that have not arrived. If all have, returns the last one, because the notification needs
    one."""
    if not arrived:
        return local, remote
    left = ~np.isin(pairs(local, remote), np.concatenate(arrived))
    left[-1:] |= not left.any()
    return np.asarray(local)[left], np.asarray(remote)[left]
