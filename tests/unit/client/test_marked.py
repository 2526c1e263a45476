"""A session without a daemon that knows the class of each transfer."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest

from mfsd.client import Session
from mfsd.client.session import MarkedSession
from mfsd.client.task import Task
from mfsd.policy.mark_text import mark_text
from mfsd.policy.marks import Marks, divided
from mfsd.policy.types import Stage

MARKS = Marks((56, 48, 40, 32, 24, 16, 8, 0), divided(8).by_stage(), {Stage.P2D: (1000, 2000)})


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A daemon's socket, as the environment names it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    listener.setblocking(False)
    monkeypatch.setenv("MFS_SOCKET", str(tmp_path / "s"))
    monkeypatch.setenv("MFS_MODE", "mark")
    return listener


def no_client_came(listener: socket.socket) -> bool:
    with pytest.raises(BlockingIOError):
        listener.accept()
    return True


def test_each_task_goes_at_once_in_the_class_of_its_stage_and_size(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MFS_MARK", mark_text(MARKS))
    with Session.open() as session:
        assert isinstance(session, MarkedSession) and session.scheduled
        assert (session.classes, session.dscp, session.max_hold_s) == (8, list(MARKS.dscp), 0.0)
        nic = session.nic("mlx5_0")
        for size_bytes, wire_class in ((1000, 4), (1001, 5), ((1 << 40) - 1, 6)):
            task = session.submit(size_bytes, stage=3, nic=nic, request_id=7, peer="10.0.0.1", class_marked=True)
            assert task.ready() and task.wait() == wire_class
            task.complete()
        assert session.submit(10, stage=3, left_bytes=1001).wait() == 5, "of all of it"
        with session.batch(1, layers=2) as batch:
            batch.layer(1)
            permitted = session.permit(10, stage=1, batch=batch, layer=1, timeout_s=1.0)
            assert isinstance(permitted, Task) and permitted.wire_class == 1 and not permitted.pruned
            permitted.complete()
        assert session.class_of(3) == 6
        assert session.fast_path() is None
        assert session.submit(-5, stage=99).wait() == 7, "what cannot be is unknown, and does not wait"
        assert session.refused == {"size_bytes": 1}
    assert no_client_came(listener)


@pytest.mark.parametrize("text", [None, "", "dscp=99"])
def test_what_cannot_be_read_marks_nothing_and_asks_no_daemon(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    monkeypatch.delenv("MFS_MARK", raising=False)
    if text is not None:
        monkeypatch.setenv("MFS_MARK", text)
    with caplog.at_level(logging.WARNING, "mfsd.client"), Session.open() as session:
        assert session.submit(1, stage=3).ready() and set(session.dscp) == {None}
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["MFS_MARK"]
    assert no_client_came(listener)
