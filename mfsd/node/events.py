"""The arbiter's events as values: csrc/include/mfs/trace.h, struct mfs_event."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

LAYOUT = 2
"""The MFS_EVENT_LAYOUT that this module understands."""


class Kind(IntEnum):
    """enum mfs_event_kind."""

    SUBMIT = 1
    PERMIT = 2
    PROMOTE = 3
    COMPLETE = 4
    CANCEL = 5
    BYPASS = 6
    DROP = 7
    BATCH_BEGIN = 8
    BATCH_LAYER = 9
    BATCH_END = 10
    REQUEST_ANNOUNCED = 11
    REQUEST_BATCH = 12
    REQUEST_PRUNED = 13
    REQUEST_ENDED = 14
    FAIL_OPEN = 15


OPEN_REASONS = ("queue full", "given up", "written off", "bypass")
"""enum mfs_open_reason."""
ENDS = frozenset({Kind.COMPLETE, Kind.CANCEL, Kind.BYPASS, Kind.DROP})


class Event(NamedTuple):
    """One event. Times are in ns on the recording host's CLOCK_MONOTONIC; 0: none."""

    time_ns: int
    task: int
    """Slot and generation. Together with the client it identifies a task."""
    bytes: int
    request_id: int
    batch_id: int
    deadline_ns: int
    client_id: int
    value: int
    layer: int
    kind: int
    """:class:`Kind`, or a number of a later version."""
    stage: int
    direction: int
    wire_class: int
    level: int
    tier: int

    @property
    def nic(self) -> int:
        return self.direction >> 1

    @property
    def incoming(self) -> bool:
        """Whether its bytes come to this node, so that it waits for that direction of the NIC."""
        return bool(self.direction & 1)


_LAYOUT = struct.Struct("=QQQQQQIIHBBBBBB")
assert _LAYOUT.size == 64


def decode(data: bytes) -> list[Event]:
    """Decodes consecutive events. Raises ValueError when the length is not a multiple of an event's."""
    if len(data) % _LAYOUT.size:
        raise ValueError(f"{len(data)} bytes are no events of {_LAYOUT.size} bytes each")
    return [Event._make(fields) for fields in _LAYOUT.iter_unpack(data)]
