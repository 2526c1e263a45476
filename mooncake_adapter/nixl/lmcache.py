"""What reads and writes are for, by who makes the agent: LMCache's are mostly of KV that was computed before.

Its P2P backend is asked by a peer that wants to load KV, and answers by a write into that peer's memory; a read is a
controller's `move`. Its other agents read what is reused. What its P/D backend writes is handed over, as others' is.
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
"""In the P2P backend's function that answers a load: the engine's name of the request that waits for it."""
FRAMES_MAX = 16


class Stages(NamedTuple):
    """Of transfers of which nothing else is known."""

    reads: int = STAGE_P2D
    writes: int = STAGE_P2D
    answers: bool = False
    """The agent is of LMCache's P2P backend."""


HAND_OVER = Stages()
LOADS = Stages(reads=STAGE_REUSE)
ANSWERS = Stages(reads=STAGE_BACKGROUND, writes=STAGE_REUSE, answers=True)


def stages(depth: int) -> Stages:
    """Of an agent that the code so many calls above this one makes."""
    frames = list(_frames(sys._getframe(depth + 1)))
    if not frames or _module(frames[0]).partition(".")[0] != PACKAGE:
        return HAND_OVER
    return ANSWERS if any(map(_answering, frames)) else LOADS


def loading() -> Metadata | None:
    """The request for which LMCache's P2P backend starts a transfer here and now."""
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
