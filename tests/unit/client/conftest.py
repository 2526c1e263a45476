"""Sessions against an arbiter in this process behind a real unix socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mfsd._native import Arbiter, Client
from mfsd.client import Session, attachment
from tests.support.arbiter import Server


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Makes a server on the path `s`, the same each time, so that a second one is the first one's successor. A busy
    machine is no fault: heartbeats stay fresh for long, and what is held is held for long."""
    servers: list[Server] = []

    def make(**options: object) -> Server:
        (tmp_path / "s").unlink(missing_ok=True)
        defaults = {"stale_after_ns": 1000 * 10**9, "max_hold_ns": 1000 * 10**9}
        arbiter = Arbiter(**{**defaults, **options})  # type: ignore[arg-type]
        arbiter.start()
        servers.append(Server(tmp_path / "s", arbiter))
        return servers[-1]

    yield make
    for server in servers:
        server.close()
        server.arbiter.close()


class PatientClient:
    """Attaches like the client does, and waits for the daemon's answers as long as it takes."""

    borrow = Client.borrow

    @staticmethod
    def attach(*arguments: object, **options: object) -> Client:
        return Client.attach(*arguments, timeout_ms=100_000, **options)  # type: ignore[arg-type]


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Session]]:
    """Opens sessions on that path."""
    opened: list[Session] = []
    monkeypatch.setattr(attachment, "Client", PatientClient)

    def make(**options: object) -> Session:
        opened.append(Session.open(socket_path=str(tmp_path / "s"), **options))  # type: ignore[arg-type]
        return opened[-1]

    yield make
    for one in opened:
        one.close()
