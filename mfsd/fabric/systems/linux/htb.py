"""The numbers of a Linux port's HTB shaper, from the plan (pure)."""

from __future__ import annotations

from mfsd.fabric.plan import Port, Queue
from mfsd.fabric.system import rate_bytes_per_s

QUEUE_BYTES_MIN = 262_144
"""Shortest queue of a port: two milliseconds at a gigabit, enough for one TCP or RoCE window."""


def rate_kbit(port: Port, percent: int) -> int:
    return rate_bytes_per_s(port, percent) * 8 // 1000


def floor_kbit(port: Port, queue: Queue) -> int:
    """An HTB class cannot have no rate: 64 kbit/s stands for "no floor"."""
    return max(64, rate_kbit(port, queue.floor_percent))


def burst_bytes(port: Port) -> int:
    """Two milliseconds at line rate, so that timer granularity does not cap the link; at least 64 KiB."""
    return max(65_536, rate_bytes_per_s(port, 100) // 500)


def floor_burst_bytes(port: Port, queue: Queue) -> int:
    """As much as the floor yields in two milliseconds, one frame at least."""
    return max(9_216, floor_kbit(port, queue) * 125 // 500)


def queue_bytes(port: Port) -> int:
    """Twice where marking would be complete, so that a queue overflows later than a switch would mark."""
    return max(QUEUE_BYTES_MIN, 2 * port.ecn.max_bytes if port.ecn else 0)


def prio(queue: Queue) -> int:
    """Weighted classes share the last HTB prio; there their quantum is their weight."""
    return 7 - queue.priority if queue.strict else 7


def quantum(queue: Queue) -> int:
    return 65_536 if queue.strict else max(9_216, queue.weight_percent * 3_072)
