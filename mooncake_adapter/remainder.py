"""What the calls under way have still to ask for, by request: a daemon that sees the first pieces alone would take a
long load for a short one."""

from __future__ import annotations

import threading
from collections.abc import Iterable

Key = tuple[int, int | None, bool]
"""Request (0: unknown), stage, and whether it reads."""


class Remainders:
    """Of all calls through one network card: several threads may move one request's KV."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left_bytes: dict[Key, int] = {}

    def change(self, key: Key, by_bytes: int) -> int:
        """What is left then."""
        with self._lock:
            left_bytes = self._left_bytes.pop(key, 0) + by_bytes
            if left_bytes:
                self._left_bytes[key] = left_bytes
            return left_bytes


class Remainder:
    """Of one call, whose pieces ask for permits one after the other."""

    def __init__(self, others: Remainders, pieces: Iterable[tuple[Key, int]]) -> None:
        """`pieces`: each one's key and size in bytes."""
        self._others = others
        self._left_bytes: dict[Key, int] = {}
        for key, size_bytes in pieces:
            self._left_bytes[key] = self._left_bytes.get(key, 0) + size_bytes
        for key, left_bytes in self._left_bytes.items():
            if key[0]:
                others.change(key, left_bytes)

    def ask(self, key: Key, size_bytes: int) -> int:
        """A piece asks now. Its bytes, and those of its request that will ask behind it."""
        self._left_bytes[key] -= size_bytes
        if key[0]:
            return size_bytes + self._others.change(key, -size_bytes)
        return size_bytes + self._left_bytes[key]

    def close(self) -> None:
        """What has not asked never will."""
        for key, left_bytes in self._left_bytes.items():
            if key[0]:
                self._others.change(key, -left_bytes)
        self._left_bytes.clear()
