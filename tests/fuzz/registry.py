"""Every target, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.targets import cluster, connection, files, gateway, node, recordings, shim


class Target(NamedTuple):
    """A parser, good inputs for it, and what must hold for any other."""

    good: Callable[[], Sequence[bytes]]
    open: Callable[[Path], AbstractContextManager[Callable[[bytes], None]]]
    """Gets an empty folder; answers what takes one input and raises when a promise is broken."""
    quick: int
    """So many inputs in `make test`."""


TARGETS: dict[str, Target] = {
    "handshake-socket": Target(lambda: node.HANDSHAKES, node.handshake, 250),
    "control-socket": Target(lambda: node.REQUESTS, node.control, 400),
    "control-messages": Target(lambda: node.REQUESTS + node.REPLIES, node.replies, 3000),
    "coordinator-link": Target(lambda: cluster.FROM_NODE, cluster.coordinator, 300),
    "daemon-link": Target(lambda: cluster.TO_NODE, cluster.link, 1000),
    "daemon-connection": Target(connection.conversations, connection.received, 1000),
    "endpoint-picker": Target(lambda: gateway.STREAMS, gateway.picker, 400),
    "answers": Target(lambda: gateway.ANSWERS, gateway.answers, 2000),
    "environment": Target(lambda: shim.GOOD, shim.environment, 100),
    "configuration": Target(lambda: files.CONFIGURATIONS, files.configuration, 400),
    "engine-status": Target(lambda: files.STATUSES, files.engine_status, 1000),
    "policy": Target(files.policies, files.policy, 400),
    "switch": Target(files.switches, files.switch, 120),
    "trace": Target(lambda: files.TRACES, files.trace, 1000),
    "trace-events": Target(lambda: recordings.EVENTS, recordings.events, 1000),
    "trace-file": Target(recordings.files, recordings.trace_files, 1000),
    "parquet-trace": Target(files.parquet_traces, files.parquet_trace, 600),
}
