"""What the coordinator that leads says of ports: an answer of `GET /v1/ports`, or a line of a watch. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

WATCH: Final = "/v1/ports?watch=1"
LINES: Final = "application/x-ndjson"
SILENT_S: Final = 5.0
"""A coordinator that has said nothing for so long is asked again: it says something each third of a heartbeat."""
_IN: Final = "/in"


class PortRow(msgspec.Struct):
    name: str
    rate_bytes_per_s: int
    owed_ns: int

    @property
    def owed_bytes(self) -> int:
        return self.owed_ns * self.rate_bytes_per_s // 1_000_000_000


class PortRows(msgspec.Struct):
    ttl_ms: float
    """For so long it may be believed."""
    ports: list[PortRow]


def incoming(port: str) -> str:
    """The name of a port in the direction that fetches and pushed KV come in by."""
    return port if port.endswith(_IN) else f"{port}{_IN}"


def address(port: str) -> str:
    """Of the NIC."""
    return port.removesuffix(_IN)
