"""Counts the bytes for which calls under way have still to ask, by request. A daemon that saw only the first pieces of
a long load would take it for a short one."""

from __future__ import annotations

import threading
from collections.abc import Iterable

Key = tuple[int, int | None, bool]
"""Request (0: unknown), stage, and whether it reads."""


class Remainders:
    """The sums over all calls through one network card: several threads may move the KV of one request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left_bytes: dict[Key, int] = {}

    def change(self, key: Key, by_bytes: int) -> int:
        """Changes the bytes left for a key; returns the new value."""
        with self._lock:
            left_bytes = self._left_bytes.pop(key, 0) + by_bytes
            if left_bytes:
                self._left_bytes[key] = left_bytes
            return left_bytes


class Remainder:
    """The bytes left of one call, whose pieces ask for permits one after the other."""

    def __init__(self, others: Remainders, pieces: Iterable[tuple[Key, int]]) -> None:
        """`pieces`: key and size in bytes of each."""
        self._others = others
        self._left_bytes: dict[Key, int] = {}
        for key, size_bytes in pieces:
            self._left_bytes[key] = self._left_bytes.get(key, 0) + size_bytes
        for key, left_bytes in self._left_bytes.items():
            if key[0]:
                others.change(key, left_bytes)

    def ask(self, key: Key, size_bytes: int) -> int:
        """A piece asks now. Returns its bytes plus those of its request that will be asked for after it."""
        self._left_bytes[key] -= size_bytes
        if key[0]:
            return size_bytes + self._others.change(key, -size_bytes)
        return size_bytes + self._left_bytes[key]

    def close(self) -> None:
        """Nothing further will be asked for."""
        for key, left_bytes in self._left_bytes.items():
            if key[0]:
                self._others.change(key, -left_bytes)
        self._left_bytes.clear()
