"""KV that no call holds any more, kept until its memory is needed: the least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class _Entry:
    __slots__ = ("tokens", "users")

    def __init__(self) -> None:
        self.tokens = self.users = 0


class Prefixes:
    """Lengths of cached prefixes by key: a program, a shared system prompt, a call whose KV was taken. While a call
    that runs holds an entry its memory is the call's, and it cannot go."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.tokens = 0
        """Of entries that no running call holds: what can be freed."""

    def find(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.tokens if entry else 0

    def hold(self, key: str) -> None:
        """A call that has the prefix begins to run."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        if entry.users == 0:
            self.tokens -= entry.tokens
        entry.users += 1
        self._entries.move_to_end(key)

    def release(self, key: str, tokens: int) -> None:
        """It has stopped running and leaves so many tokens of the prefix."""
        entry = self._entries[key]
        entry.users -= 1
        entry.tokens = max(entry.tokens, tokens)
        self._entries.move_to_end(key)
        if entry.users == 0:
            self.tokens += entry.tokens
            if entry.tokens == 0:
                del self._entries[key]

    def grow(self, key: str, tokens: int) -> None:
        """A call that holds it has computed so many tokens of it."""
        entry = self._entries[key]
        entry.tokens = max(entry.tokens, tokens)

    def shrink(self, tokens: int) -> Iterator[str]:
        """Frees at least so many tokens, from the ends of the oldest prefixes, as far as there are; yields their
        keys."""
        for key in list(self._entries):
            if tokens <= 0:
                return
            entry = self._entries[key]
            if entry.users:
                continue
            gone = min(tokens, entry.tokens)
            entry.tokens -= gone
            self.tokens -= gone
            tokens -= gone
            if entry.tokens == 0:
                del self._entries[key]
            yield key
