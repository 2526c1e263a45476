"""Computes from two readings of a port's counters what it moved between them, if that is plausible (pure).

Counters wrap, are reset by drivers, disappear, and have wrong values for a moment after firmware restarts. A difference
is accepted if the link could have carried it. Otherwise it is None, and the next difference starts from this reading.
"""

from __future__ import annotations

from msgspec import Struct

from mfsd.fabric.port_counters import PortCounters

WRAPS = (2**32, 2**34, 2**64, 2**66)
"""Values at which counters wrap: 32 and 64 bits, in bytes and in words of four bytes."""
FASTER = 4
"""Factor on the configured rate, which may be only a share of the port's rate."""
BURST_BYTES = 64 << 20
PAUSES_PER_S = 10_000_000
"""Limit of plausible pause frames. A link of 800 Gbit/s carries a thousand million frames of 64 bytes in a second;
pauses are far fewer."""


class Moved(Struct, frozen=True):
    """Differences by direction: sent, received. None and (): not known."""

    elapsed_ns: int
    bytes: tuple[int | None, int | None] = (None, None)
    priority_bytes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    pauses: tuple[int | None, int | None] = (None, None)


def moved(before: PortCounters, now: PortCounters, rate_bytes_per_s: int) -> Moved:
    elapsed_ns = now.at_ns - before.at_ns
    if elapsed_ns <= 0:
        return Moved(0)
    elapsed_s = elapsed_ns / 1e9
    most = int(FASTER * rate_bytes_per_s * elapsed_s) + BURST_BYTES
    by_priority = [
        [difference(old, new, most) for old, new in zip(olds, news, strict=True)] if len(olds) == len(news) else []
        for olds, news in zip(before.priority_bytes, now.priority_bytes, strict=True)
    ]
    whole = [difference(old, new, most) for old, new in zip(before.bytes, now.bytes, strict=True)]
    for direction, side in enumerate(by_priority):
        if now.priority_bytes[direction]:  # single counters wrap at known values, their sum does not
            known = [moved for moved in side if moved is not None]
            whole[direction] = sum(known) if side and len(known) == len(side) and sum(known) <= most else None
    pauses = [
        difference(old, new, int(PAUSES_PER_S * elapsed_s) + 1000)
        for old, new in zip(before.pauses, now.pauses, strict=True)
    ]
    priorities = [
        tuple(one or 0 for one in side) if whole[direction] is not None else ()
        for direction, side in enumerate(by_priority)
    ]
    return Moved(elapsed_ns, (whole[0], whole[1]), (priorities[0], priorities[1]), (pauses[0], pauses[1]))


def difference(before: int | None, now: int | None, most: int) -> int | None:
    """Returns how much a counter grew; None if it is missing, was reset, or is implausible."""
    if before is None or now is None or before < 0 or now < 0:
        return None
    if now >= before:
        return now - before if now - before <= most else None
    for wrap in WRAPS:
        if before < wrap and wrap - before + now <= most:
            return wrap - before + now
    return None
