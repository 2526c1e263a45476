"""Versions of the shared memory layout: what a program and a daemon of different minor versions do without.

Major versions do not understand each other. Of two minor versions the older counts. A new field takes reserved bytes or
the segment's end (csrc/include/mfs/abi.h), so a program that does not know it leaves it alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from mfsd._native import ABI_MAJOR, ABI_MINOR

DAEMON = f"{ABI_MAJOR}.{ABI_MINOR}"
ADDED = {
    1: "accounts of requests, and NCCL's communicators",
    2: "credit, and classes that the wire keeps apart",
    3: "a daemon that sleeps while nothing moves",
    4: "a window for each destination, and counters that a posting thread has alone",
    5: "the outlook page, and requests that still queue",
    6: "NICs beyond the first 16",
    7: "a time of their own for pruned requests",
    8: "what a sender has behind a message",
}
"""What each minor version has added."""


def skewed(versions: Iterable[str], daemon: str = DAEMON) -> dict[str, int]:
    """How many speak each version other than the daemon's, lowest first. Those that name no version are left out."""
    counted = Counter(version for version in versions if version and version != daemon)
    return {version: counted[version] for version in sorted(counted, key=_minor)}


def without(version: str, daemon: str = DAEMON) -> str:
    """What a program of that version and the daemon do without, for messages."""
    older, newer = sorted((_minor(version), _minor(daemon)))
    known = [ADDED[minor] for minor in range(older + 1, newer + 1) if minor in ADDED]
    return "; ".join(known) or f"what ABI {ABI_MAJOR}.{older + 1} and later added"


def _minor(version: str) -> int:
    minor = version.partition(".")[2]
    return int(minor) if minor.isdecimal() else 0
