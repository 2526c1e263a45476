"""Reads the arguments of Mooncake's transfer calls. It does not judge them: invalid ones are left for Mooncake to
refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

WRITE, READ = "write", "read"


class Shape(NamedTuple):
    """How a method takes its arguments, and what it does."""

    many: bool
    """Whether it takes lists of addresses and lengths, or one of each."""
    synchronous: bool
    operation: str | None
    """None: given by the argument `opcode`."""


SHAPES = {
    "transfer_sync_write": Shape(False, True, WRITE),
    "transfer_sync_read": Shape(False, True, READ),
    "transfer_sync": Shape(False, True, None),
    "transfer_submit_write": Shape(False, False, WRITE),
    "batch_transfer_sync_write": Shape(True, True, WRITE),
    "batch_transfer_sync_read": Shape(True, True, READ),
    "batch_transfer_sync": Shape(True, True, None),
    "batch_transfer_async_write": Shape(True, False, WRITE),
    "batch_transfer_async_read": Shape(True, False, READ),
    "batch_transfer_async": Shape(True, False, None),
}
"""Every method of TransferEngine that moves bytes."""


class Call(NamedTuple):
    """One call that moves bytes."""

    peer: str
    addresses: Sequence[int]
    peer_addresses: Sequence[int]
    lengths: Sequence[int]
    size_bytes: int
    operation: str
    notify: object | None
    hint: str


def read(shape: Shape, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call | None:
    """Returns the call, or None if Mooncake would refuse its arguments or if it moves nothing."""
    if not keywords and len(arguments) == 4 and shape.operation is not None and not shape.many:
        peer, address, peer_address, length = arguments  # fast path for the most common call
        if type(peer) is str and type(address) is type(peer_address) is type(length) is int and length > 0:
            return Call(peer, (address,), (peer_address,), (length,), length, shape.operation, None, "")
    names = ["target_hostname", "buffers" if shape.many else "buffer"]
    names += ["peer_buffer_addresses", "lengths"] if shape.many else ["peer_buffer_address", "length"]
    names += ["opcode", "notify"] if shape.operation is None and shape.synchronous else []
    names += ["opcode"] if shape.operation is None and not shape.synchronous else []
    names.append("transport_hint")
    if len(arguments) > len(names):
        return None
    given = dict(zip(names, arguments, strict=False))
    if given.keys() & keywords.keys() or keywords.keys() - set(names):
        return None
    given.update(keywords)
    try:
        peer, addresses, peer_addresses, lengths = (given[name] for name in names[:4])
        if not shape.many:
            addresses, peer_addresses, lengths = (addresses,), (peer_addresses,), (lengths,)
        operation = shape.operation
        if operation is None:
            operation = {"Read": READ, "Write": WRITE}[given["opcode"].name]
        size_bytes = sum(lengths)
        hint = given.get("transport_hint", "")
        if not (isinstance(peer, str) and isinstance(hint, str) and size_bytes > 0 and min(lengths) >= 0):
            return None
        if not len(addresses) == len(peer_addresses) == len(lengths):
            return None
        if not all(isinstance(one, int) for several in (addresses, peer_addresses, lengths) for one in several):
            return None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return Call(peer, addresses, peer_addresses, lengths, size_bytes, operation, given.get("notify"), hint)
