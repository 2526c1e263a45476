"""KV that no call holds any more, kept until its memory is needed; the least recently used is freed first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator


class _Entry:
    __slots__ = ("pins", "room", "tokens", "users")

    def __init__(self) -> None:
        self.tokens = self.users = self.pins = self.room = 0


class Prefixes:
    """Lengths of cached prefixes by key: a program, a shared system prompt, a call whose KV was taken. While a running
    call holds an entry, its memory is the call's, and it cannot be freed. While a waiting call has pinned it, it cannot
    be freed either, and there is room for the part that is being fetched."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self.tokens = 0
        """Tokens of entries that no call holds or has pinned, which can be freed."""
        self.pinned = 0
        """Memory of entries that calls have pinned and none holds."""

    def find(self, key: str) -> int:
        entry = self._entries.get(key)
        return entry.tokens if entry else 0

    def _entry(self, key: str) -> _Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
        return entry

    def _count(self, entry: _Entry, sign: int) -> None:
        if entry.users:
            return
        if entry.pins:
            self.pinned += sign * max(entry.room, entry.tokens)
        else:
            self.tokens += sign * entry.tokens

    def hold(self, key: str) -> None:
        """A call that has the prefix begins to run."""
        entry = self._entry(key)
        self._count(entry, -1)
        entry.users += 1
        self._entries.move_to_end(key)

    def release(self, key: str, tokens: int) -> None:
        """The call has stopped running and leaves this many tokens of the prefix."""
        entry = self._entries[key]
        entry.users -= 1
        entry.tokens = max(entry.tokens, tokens)
        self._entries.move_to_end(key)
        self._count(entry, 1)
        self._drop_empty(key, entry)

    def pin(self, key: str, room: int) -> None:
        """A waiting call needs what there is, and room for this much in all."""
        entry = self._entry(key)
        self._count(entry, -1)
        entry.pins += 1
        entry.room = max(entry.room, room)
        self._count(entry, 1)

    def unpin(self, key: str) -> None:
        entry = self._entries[key]
        self._count(entry, -1)
        entry.pins -= 1
        if entry.pins == 0:
            entry.room = 0
        self._count(entry, 1)
        self._drop_empty(key, entry)

    def extend(self, key: str, tokens: int) -> None:
        """At least this many tokens of the prefix are here: they were fetched."""
        entry = self._entry(key)
        self._count(entry, -1)
        entry.tokens = max(entry.tokens, tokens)
        self._count(entry, 1)

    def grow(self, key: str, tokens: int) -> None:
        """A call that holds the prefix has computed this many tokens of it."""
        entry = self._entries[key]
        entry.tokens = max(entry.tokens, tokens)

    def shrink(self, tokens: int, order: Callable[[str], float] | None = None) -> Iterator[str]:
        """Frees at least this many tokens if there are as many, from the ends of the oldest prefixes, or of those that
        `order` puts first; yields their keys."""
        for key in list(self._entries) if order is None else sorted(self._entries, key=order):
            if tokens <= 0:
                return
            entry = self._entries[key]
            if entry.users or entry.pins:
                continue
            gone = min(tokens, entry.tokens)
            entry.tokens -= gone
            self.tokens -= gone
            tokens -= gone
            self._drop_empty(key, entry)
            yield key

    def _drop_empty(self, key: str, entry: _Entry) -> None:
        if entry.tokens == entry.users == entry.pins == 0:
            del self._entries[key]
