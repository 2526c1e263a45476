"""Answers routers' questions to the leader: what ports owe, and how long a transfer will take. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from mfsd.coordinator.cluster import Cluster
from mfsd.coordinator.ports import Port
from mfsd.policy.outlook import PortAhead, transfer_forecast

PRUNED_MAX = 1_024
"""As many as a node's outlook page holds."""
BYTES_MAX = 2**53
"""The largest integer that JSON numbers represent exactly."""
DEADLINE_MAX_MS = 10**9


class PortOutlook(Struct, frozen=True):
    name: str
    rate_bytes_per_s: int
    owed_ns: int
    """Time that the port needs for all that is promised there and that waiting requests will fetch."""
    waiting_bytes: int
    """The part of it that belongs to requests still waiting at engines."""
    bypass_bytes_per_s: int = 0
    """Recent traffic in the port's counters that programs of its node did not post."""


class TransferQuestion(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    source: Annotated[str, Meta(min_length=1, max_length=300)]
    """ADDRESS, or the name of a port as in /v1/ports."""
    to: Annotated[str, Meta(min_length=1, max_length=300)]
    bytes: Annotated[int, Meta(ge=0, le=BYTES_MAX)]
    deadline_ms: Annotated[float, Meta(gt=0, le=DEADLINE_MAX_MS)] | None = None
    """Time left until the bytes must be there; None: all that is promised goes before them."""


class TransferAnswer(Struct, frozen=True):
    bytes_ahead: int
    """At the port that decides."""
    time_ns: int
    """From now until the last byte has arrived."""
    in_time: bool | None
    """None: no deadline was given."""


class UnknownPort(LookupError):
    """``str()`` gives the field that names the port, and the remedy."""


def ports(cluster: Cluster, first: int, most: int) -> list[PortOutlook]:
    """Returns those of the next `most` ports of the table that are declared or owe something."""
    found = []
    for number, port in enumerate(cluster.ports.ports[first : first + most], first):
        owed_ns = cluster.owed_ns(number)
        if port.declared or owed_ns:
            waiting = cluster.waiting.size_bytes(number)
            bypass = port.rate_bytes_per_s * port.use.bypass // 1000
            found.append(PortOutlook(port.name, port.rate_bytes_per_s, owed_ns, waiting, bypass))
    return found


def pruned(cluster: Cluster) -> list[int]:
    """Returns the requests that are pruned by the order or by their engines."""
    return sorted({entry.request_id for entry in cluster.pruned()})[:PRUNED_MAX]


def question(body: bytes) -> TransferQuestion:
    """Parses a question. Raises ValueError with the field and what it must be."""
    try:
        return msgspec.json.decode(body, type=TransferQuestion)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def passing_by_bytes_per_s(cluster: Cluster, port: Port) -> int:
    """Returns the traffic through the port that no daemon orders, such as all-to-alls that GPUs post, which send as
    much as they receive. Other traffic that bypasses MFS at a NIC is mostly what peers read from it or write to it;
    that is owed, and counted as such."""
    name, _, direction = port.name.rpartition("/")
    other = cluster.ports.find(f"{name}/{'in' if direction == 'out' else 'out'}")
    if other is None:
        return 0
    return port.rate_bytes_per_s * min(port.use.bypass, cluster.ports.ports[other].use.bypass) // 1000


def transfer(cluster: Cluster, asked: TransferQuestion) -> TransferAnswer:
    """Estimates a transfer. Raises UnknownPort."""
    ahead = []
    for field, name, direction in (("from", asked.source, "out"), ("to", asked.to, "in")):
        number = cluster.ports.find(name if name.endswith(("/in", "/out")) else f"{name}/{direction}")
        if number is None:
            raise UnknownPort(f"{field}: no daemon speaks of a port {name!r}; /v1/ports names those that there are")
        if asked.deadline_ms is None:
            owed_ns = cluster.owed_ns(number)
        else:
            owed_ns = cluster.owed_before_ns(number, cluster.now_ns + int(asked.deadline_ms * 1e6))
        port = cluster.ports.ports[number]
        passing = passing_by_bytes_per_s(cluster, port)
        ahead.append(PortAhead(owed_ns * port.rate_bytes_per_s // 1_000_000_000, port.rate_bytes_per_s, passing))
    forecast = transfer_forecast(asked.bytes, ahead)
    assert forecast is not None, "every port of the table has a rate"
    in_time = None if asked.deadline_ms is None else forecast.time_ns <= asked.deadline_ms * 1e6
    return TransferAnswer(forecast.bytes_ahead, forecast.time_ns, in_time)
