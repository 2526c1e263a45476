"""Prompts that each replica has computed lately, as far as the gateway knows from the calls that it sent there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from mfsd.serve.gateway.prompt import CHARACTERS_PER_TOKEN, CHUNK_CHARACTERS

CHUNK_TOKENS: Final = CHUNK_CHARACTERS // CHARACTERS_PER_TOKEN
CHUNKS_MAX: Final = 65_536
"""Most chunks of one replica: 64 MiB of text."""


class Prefixes:
    """Prompts of one replica. Those sent longest ago are forgotten first, as in its engine."""

    def __init__(self, chunks_max: int = CHUNKS_MAX) -> None:
        self._max = chunks_max
        self._chunks: OrderedDict[bytes, None] = OrderedDict()

    def cached_tokens(self, chunks: Sequence[bytes]) -> int:
        """Returns the cached tokens of a prompt with these chunks."""
        for number, chunk in enumerate(chunks):
            if chunk not in self._chunks:
                return number * CHUNK_TOKENS
        return len(chunks) * CHUNK_TOKENS

    def sent(self, chunks: Sequence[bytes]) -> None:
        for chunk in reversed(chunks):  # the beginning is inserted last, so it is forgotten last
            self._chunks[chunk] = None
            self._chunks.move_to_end(chunk)
        while len(self._chunks) > self._max:
            self._chunks.popitem(last=False)

    def forget(self) -> None:
        """Forgets all prompts, because the engine was away and its cache is empty."""
        self._chunks.clear()
