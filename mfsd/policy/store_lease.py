"""How long a store keeps memory for its reader, and how much of that time MFS may hold the read.

Mooncake's store gives a reader a lease on an object's replicas. What arrives later may come from memory that another
object has by then, so the store's newer clients fail such a read. No call tells the lease: it is configured at the
master (`--default_kv_lease_ttl`), and here.
"""

from __future__ import annotations

from typing import Final

VARIABLE: Final = "MFS_STORE_LEASE_MS"
DEFAULT_MS: Final = 5000
"""The default of Mooncake's master; 0.3.13 has twice as much."""
MOST_MS: Final = 86_400_000
PARTS: Final = 4
"""Holding may use 1/PARTS of a lease."""


def parse_lease_ms(text: str) -> int:
    """Reads the variable's value. Empty text means the default. Raises ValueError with a one-line message."""
    if not text:
        return DEFAULT_MS
    if text.isascii() and text.isdigit() and len(text) <= 20 and 1 <= int(text) <= MOST_MS:
        return int(text)
    raise ValueError(f"{VARIABLE}={text} is not a number of milliseconds from 1 to {MOST_MS}: taken as {DEFAULT_MS}")
