"""Reads the prompt of a body, without a tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

CHARACTERS_PER_TOKEN: Final = 4
"""Average for text. Routers compare prompts by it; no call is refused by it."""
CHUNK_CHARACTERS: Final = 1024
CHUNKS_MAX: Final = 256
"""Most chunks of a prompt that are remembered: 256 KiB of text."""


class Prompt(NamedTuple):
    tokens: int
    """Estimate; exact if the prompt consists of token numbers."""
    tokens_least: int
    """Certain lower bound for the longest of its prompts: token numbers, or words of text. 0: not known."""
    chunks: tuple[bytes, ...] = ()
    """Digests of its beginning; each covers all text up to the end of its chunk."""


def prompt_of(body: Mapping[str, Any], chunked: bool = False) -> Prompt:
    """Returns the prompt of a body. chunked: with digests, for routers that use them."""
    tokens, least = 0, 0
    texts: list[str] = []
    for part in _parts(body):
        if isinstance(part, str):
            words = len(part.split())
            tokens += max(len(part) // CHARACTERS_PER_TOKEN, words)
            least = max(least, words)
            texts.append(part)
        else:
            tokens += part
            least = max(least, part)
    return Prompt(tokens, 0 if _cut(body) else least, tuple(_chunks(body, texts)) if chunked else ())


def _cut(body: Mapping[str, Any]) -> bool:
    """Whether the engine shortens a prompt that is too long. As in vLLM, a `truncation` of null counts, too."""
    return body.get("truncate_prompt_tokens") is not None or body.get("truncation", "disabled") != "disabled"


def _parts(body: Mapping[str, Any]) -> Iterator[str | int]:
    """Yields texts, and numbers of tokens."""
    prompt = body.get("prompt", body.get("input"))
    if isinstance(prompt, str):
        yield prompt
    elif isinstance(prompt, list):
        if prompt and isinstance(prompt[0], int):
            yield len(prompt)
        else:
            for one in prompt:
                if isinstance(one, str):
                    yield one
                elif isinstance(one, list):
                    yield len(one)
                elif isinstance(one, dict):
                    yield from _content(one)
    messages = body.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                yield from _content(message)


def _content(message: Mapping[str, Any]) -> Iterator[str]:
    content = message.get("content")
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]


def _chunks(body: Mapping[str, Any], texts: list[str]) -> Iterator[bytes]:
    prompt = body.get("prompt")
    if not texts and isinstance(prompt, list):
        text = " ".join(map(str, prompt))
    else:
        text = "\0".join(texts)
    digest = hashlib.blake2b(str(body.get("model")).encode(errors="replace"), digest_size=8)
    whole = min(len(text) // CHUNK_CHARACTERS, CHUNKS_MAX)
    for number in range(whole):
        first = number * CHUNK_CHARACTERS
        digest.update(text[first : first + CHUNK_CHARACTERS].encode(errors="replace"))
        yield digest.digest()
