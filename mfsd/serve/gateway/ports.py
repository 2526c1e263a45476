"""State of ports from the leading coordinator: an answer of `GET /v1/ports`, or a line of a watch. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

WATCH: Final = "/v1/ports?watch=1"
LINES: Final = "application/x-ndjson"
SILENT_S: Final = 5.0
"""A watch without data for so long is started again. A coordinator sends something each third of a heartbeat."""
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
    """How long the state is valid."""
    ports: list[PortRow]


def incoming(port: str) -> str:
    """Returns the name of a port's incoming direction, which receives fetches and pushed KV."""
    return port if port.endswith(_IN) else f"{port}{_IN}"


def address(port: str) -> str:
    """Returns the address of the port's NIC."""
    return port.removesuffix(_IN)
