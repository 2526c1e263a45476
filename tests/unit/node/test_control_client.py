"""Asking the daemon: answers as long as they can be, and none."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mfsd._native import CLIENTS_MAX
from mfsd.node import control_client
from mfsd.node.control import ModeReply, StatusRequest, encode
from mfsd.node.control_client import Unreachable, ask

COMMUNICATOR_BYTES = 600
COMMUNICATORS_MAX = 32
CLIENT_BYTES = 3_000
"""What mfsctl status has of each, every number as large as it can be."""


@contextlib.contextmanager
def answering(path: Path, answer: bytes) -> Iterator[None]:
    """A daemon that answers one request with these bytes and closes the connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.recv(1024)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def test_the_status_of_as_many_programs_as_can_attach_is_read(tmp_path: Path) -> None:
    reply = ModeReply("enforce", "observe")
    spaces = b" " * (CLIENTS_MAX * (COMMUNICATORS_MAX * COMMUNICATOR_BYTES + CLIENT_BYTES))
    with answering(tmp_path / "control", spaces + encode(reply)):
        assert ask(tmp_path / "control", StatusRequest()) == reply


def test_an_answer_beyond_what_is_read_is_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "LINE_BYTES_MAX", 1 << 20)
    beyond = answering(tmp_path / "control", b" " * (2 << 20))
    with beyond, pytest.raises(Unreachable, match="answers with more than 1 MiB"):
        ask(tmp_path / "control", StatusRequest())


@pytest.mark.parametrize("answer", [b"", encode(ModeReply("enforce", "observe"))[:-5]])
def test_a_connection_that_is_closed_before_the_answer_is_no_other_version(tmp_path: Path, answer: bytes) -> None:
    """As a daemon does that stops, and one that many ask."""
    cut = answering(tmp_path / "control", answer)
    with cut, pytest.raises(Unreachable, match="closed the connection before it had answered"):
        ask(tmp_path / "control", StatusRequest())
