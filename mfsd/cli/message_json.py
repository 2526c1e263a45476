"""Turns protocol messages into plain values for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

IDENTIFIERS = frozenset({"batch_id", "request_id", "for_batch"})


def plain(message: Message, texts: bool = False) -> dict[str, Any]:
    """Returns every field by its name. 64-bit numbers stay numbers, as in the JSON of all commands. With `texts`,
    identifiers become text, because numbers in browsers are exact only up to 2^53."""
    return {
        field.name: str(value) if texts and field.name in IDENTIFIERS else _value(value, texts)
        for field in message.DESCRIPTOR.fields
        for value in [getattr(message, field.name)]
    }


def _value(value: Any, texts: bool) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Message):
        return plain(value, texts)
    if isinstance(value, (str, int, float)):
        return value
    return [_value(item, texts) for item in value]
