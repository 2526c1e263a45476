"""Asks the coordinator, as a router does, how long a load will take, for comparison with the reader's own page."""

from __future__ import annotations

import json
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bench.testbed.hosts import CONTROL_ADDRESS

PORT = 7480
"""Port of the coordinator's page and answers."""
WEB = f"{CONTROL_ADDRESS}:{PORT}"
TIMEOUT_S = 5.0


class Oracle:
    """Asks on a thread of its own, because the controller has a leg to run."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    def ask(self, owner: str, reader: str, size_bytes: int, needed_ns: int) -> Future[int | None]:
        """Takes addresses, and a time of CLOCK_MONOTONIC. The result is None if a port is unknown."""
        return self._thread.submit(_ask, owner, reader, size_bytes, needed_ns)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def _ask(owner: str, reader: str, size_bytes: int, needed_ns: int) -> int | None:
    left_ms = max((needed_ns - time.monotonic_ns()) / 1e6, 1e-3)
    asked = {"from": owner, "to": reader, "bytes": size_bytes, "deadline_ms": left_ms}
    try:
        with urllib.request.urlopen(f"http://{WEB}/v1/transfer-time", json.dumps(asked).encode(), TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except OSError:
        return None
    return int(found["time_ns"])
