"""Which prompts each replica has computed lately, as far as the gateway can know: what it sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from mfsd.serve.gateway.prompt import CHARACTERS_PER_TOKEN, CHUNK_CHARACTERS

CHUNK_TOKENS: Final = CHUNK_CHARACTERS // CHARACTERS_PER_TOKEN
CHUNKS_MAX: Final = 65_536
"""Of one replica: 64 MiB of text."""


class Prefixes:
    """Of one replica. What was sent longest ago is forgotten first, as its engine would."""

    def __init__(self, chunks_max: int = CHUNKS_MAX) -> None:
        self._max = chunks_max
        self._chunks: OrderedDict[bytes, None] = OrderedDict()

    def cached_tokens(self, chunks: Sequence[bytes]) -> int:
        """Of a prompt with these chunks."""
        for number, chunk in enumerate(chunks):
            if chunk not in self._chunks:
                return number * CHUNK_TOKENS
        return len(chunks) * CHUNK_TOKENS

    def sent(self, chunks: Sequence[bytes]) -> None:
        for chunk in reversed(chunks):  # the beginning is used last, and so forgotten last
            self._chunks[chunk] = None
            self._chunks.move_to_end(chunk)
        while len(self._chunks) > self._max:
            self._chunks.popitem(last=False)

    def forget(self) -> None:
        """Its engine was away: its cache is empty."""
        self._chunks.clear()
