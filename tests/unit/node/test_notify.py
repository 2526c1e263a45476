"""The service manager's protocol, against a real datagram socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from mfsd.node.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_states_reach_the_manager(tmp_path: Path, abstract: bool) -> None:
    name = f"mfs-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name}" if abstract else name)
        manager.settimeout(100)
        notifier = Notifier({"NOTIFY_SOCKET": f"@{name}" if abstract else name, "WATCHDOG_USEC": "3000000"})
        assert notifier.watchdog_interval_s == 1.5
        notifier.ready("well")
        assert manager.recv(4096).decode() == f"READY=1\nSTATUS=well\nMAINPID={os.getpid()}"
        notifier.reloading()
        assert manager.recv(4096).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
        notifier.alive()
        notifier.stopping()
        assert (manager.recv(4096), manager.recv(4096)) == (b"WATCHDOG=1", b"STOPPING=1")


def test_no_manager_a_gone_manager_and_anothers_watchdog() -> None:
    Notifier({}).ready("well")
    assert Notifier({"WATCHDOG_USEC": "1000"}).watchdog_interval_s is None
    absent = {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "1000"}
    Notifier(absent).ready("well")
    assert Notifier({**absent, "WATCHDOG_PID": "1"}).watchdog_interval_s is None
    assert Notifier({**absent, "WATCHDOG_USEC": "soon"}).watchdog_interval_s is None
