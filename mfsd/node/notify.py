"""Tells the service manager the daemon's state: the sd_notify protocol (man sd_notify), over ``$NOTIFY_SOCKET``."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends state lines to the service manager; does nothing if there is none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_interval_s = _watchdog_interval_s(environment) if address else None
        """How often to call :meth:`alive`: half of the manager's limit. None: it has no watchdog."""

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def _send(self, lines: str) -> None:
        if not self._address:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.setblocking(False)
            manager.sendto(lines.encode(), self._address)


def _watchdog_interval_s(environment: Mapping[str, str]) -> float | None:
    try:
        usec = int(environment.get("WATCHDOG_USEC", ""))
        pid = int(environment.get("WATCHDOG_PID", os.getpid()))
    except ValueError:
        return None
    return usec / 2e6 if usec > 0 and pid == os.getpid() else None
