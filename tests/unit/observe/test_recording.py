"""The client half of a recording, against a daemon that speaks when the test says so."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import pytest

from mfsd.node.control import RecordEvents, RecordStarted, encode
from mfsd.observe.recording import Recordings

EVENT = bytes(64)


def daemon(listener: socket.socket) -> None:
    """Tells nothing while it records, and three events, one after the other, when it was asked to end."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as lines:
        lines.readline()
        connection.sendall(encode(RecordStarted("vm", 1, 1, 0, 0, 0)))
        assert lines.readline() == b"", "nothing more will be asked"
        for last in (False, False, True):
            threading.Event().wait(0.1)
            connection.sendall(encode(RecordEvents(EVENT, 0, last=last)))


def test_ctrl_c_ends_it_and_all_that_was_recorded_is_there(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/mfsd.sock")
        listener.listen()
        thread = threading.Thread(target=daemon, args=(listener,))
        thread.start()
        recordings = Recordings([tmp_path / "mfsd.sock"])
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                recordings.wait(None)
        finally:
            signal.signal(signal.SIGALRM, before)
        (found,) = recordings.stop()
        thread.join()
    assert not found.problem and len(found.events) == 3
