"""An arbiter in this process behind a real unix socket, for tests of the native core."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mfsd._native import Arbiter, Client
from tests.support.arbiter import Server
from tests.support.waiting import TIMEOUT_S, eventually


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes a server whose arbiter runs with the given options. A busy machine is no fault: heartbeats stay fresh for
    long, and NICs are so slow that nothing in flight is overdue while a test does not get its turn."""
    servers: list[Server] = []

    def make(start: bool = True, **options: object) -> Server:
        defaults = {"stale_after_ns": 1000 * 10**9, "rate_default_bytes_per_s": 1000}
        arbiter = Arbiter(**{**defaults, **options})  # type: ignore[arg-type]
        if start:
            arbiter.start()
        server = Server(tmp_path / f"s{len(servers)}", arbiter)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.close()
        server.arbiter.close()


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., object]:
    return eventually


@pytest.fixture
def take() -> Callable[[Client, int], list[int]]:
    """Waits for n permits and returns the task ids in the order in which they came."""

    def take_permits(client: Client, n: int) -> list[int]:
        taken: list[int] = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(taken) < n:
            assert time.monotonic() < deadline_s, f"{len(taken)} of {n} permits within {TIMEOUT_S:g} s"
            client.wait(100_000_000)
            taken += [task for task, _ in client.permits(n - len(taken))]
        return taken

    return take_permits
