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
    """One number for each descriptor that goes to another."""
    return np.asarray(local, dtype=np.int64) << 32 | np.asarray(remote, dtype=np.int64)


@dataclass(eq=False)
class Asked:
    """Where one decode instance wants the KV of one request."""

    name: str
    """The request's there."""
    base: str
    """What both instances call it."""
    registration: Mapping[str, Any]
    blocks: list[int] = field(default_factory=list)
    source: str = ""
    """The request's name here, since it has been pushed."""
    sides: tuple[Any, Any] = (None, None)
    """The prepared lists of descriptors, here and there."""
    queued: dict[int, int] = field(default_factory=dict)
    """By layer: how many blocks are on their way or there."""
    open_writes: int = 0
    arrived: list[Indices] = field(default_factory=list)
    restarted: bool = False
    ending: bool = False
    """The prompt has ended, or the request without it: nothing new is begun."""
    last: Arguments | None = None
    ready: bool = False
    """They have ended."""

    @property
    def engine(self) -> str:
        return str(self.registration["decode_engine_id"])


@dataclass(eq=False)
class Write:
    """Some blocks of a layer that are under way."""

    asked: Asked
    handle: Any
    places: Indices
    metadata: Metadata
    size_bytes: int
    state: str = "PROC"
    measured: Any = None


def rest(local: Any, remote: Any, arrived: list[Indices]) -> tuple[Any, Any]:
    """The descriptors that have not arrived; the last of them all where they have, as the notification needs one."""
    if not arrived:
        return local, remote
    left = ~np.isin(pairs(local, remote), np.concatenate(arrived))
    left[-1:] |= not left.any()
    return np.asarray(local)[left], np.asarray(remote)[left]
