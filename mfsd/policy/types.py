"""Types that every part of the policy shares: stages, tiers, and the values for "none".

Times are integers in nanoseconds on one host's monotonic clock. Sizes are integers in bytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

NO_DEADLINE: Final = 2**63 - 1
"""A deadline that never comes (ns). It sorts after every real one."""

NO_RANK: Final = 2**32 - 1
"""The rank of a batch that neither a coordinator nor a local order has placed: behind all that have one."""

NS_PER_S: Final = 1_000_000_000

Key = tuple[int, int, int, int, int]
"""A flow's place in the order of one NIC: (tier, first, second, stage order, sequence). The smallest goes first. The
sequence makes each key unique."""


class Stage(IntEnum):
    """What a flow is for (paper 2.2). The set is open: an unknown number is served as BACKGROUND (design)."""

    CONTROL = 0
    """Clear-to-send, flush, handshakes. Never waits at the host; on the wire it goes with collectives."""
    REUSE = 1
    """Stage 1: reusable KV blocks into a prefill unit."""
    COLLECTIVE = 2
    """Stage 2: blocks the next layer. Never waits at the host."""
    P2D = 3
    """Stage 3: new KV from prefill to decode; the last stage."""
    BACKGROUND = 4
    """No claim on time: served when nothing else waits."""


class Tier(IntEnum):
    """The four floors of the reverse multi-level queue, first served first (paper 4.5, design)."""

    CRITICAL = 0
    EARLY = 1
    LAST = 2
    SCAVENGER = 3


def known_stage(stage: int) -> Stage:
    """The stage with that number; BACKGROUND for one that this version does not know (design)."""
    return Stage(stage) if Stage.CONTROL <= stage <= Stage.BACKGROUND else Stage.BACKGROUND
