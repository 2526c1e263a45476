"""Stages of reads and writes by the code that made the agent: LMCache mostly moves KV that was computed before.

A peer that wants to load KV asks LMCache's P2P backend, which answers by a write into the peer's memory. Its reads are
a controller's `move`. LMCache's other agents read KV that is reused. Writes of its P/D backend are hand-overs, as
everywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

from mooncake_adapter.metadata import Metadata, request_number
from mooncake_adapter.session import STAGE_BACKGROUND, STAGE_P2D, STAGE_REUSE

PACKAGE, P2P = "lmcache", ".p2p_backend"
LOOKUP = "lookup_id"
"""Local variable of the P2P backend's function that answers a load: the engine's name of the request that waits for
it."""
FRAMES_MAX = 16


class Stages(NamedTuple):
    """Stages of transfers of which nothing else is known."""

    reads: int = STAGE_P2D
    writes: int = STAGE_P2D
    answers: bool = False
    """Whether the agent belongs to LMCache's P2P backend."""


HAND_OVER = Stages()
LOADS = Stages(reads=STAGE_REUSE)
ANSWERS = Stages(reads=STAGE_BACKGROUND, writes=STAGE_REUSE, answers=True)


def stages(depth: int) -> Stages:
    """Returns the stages of an agent that is made by the code `depth` calls above the caller."""
    frames = list(_frames(sys._getframe(depth + 1)))
    if not frames or _module(frames[0]).partition(".")[0] != PACKAGE:
        return HAND_OVER
    return ANSWERS if any(map(_answering, frames)) else LOADS


def loading() -> Metadata | None:
    """Returns the request for which LMCache's P2P backend is starting a transfer, by the calling code; None
    elsewhere."""
    for frame in _frames(sys._getframe(1)):
        if _answering(frame) and isinstance(name := frame.f_locals.get(LOOKUP), str):
            return Metadata(request_number(name))
    return None


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _answering(frame: FrameType) -> bool:
    name = _module(frame)
    return name.startswith(f"{PACKAGE}.") and name.endswith(P2P)
