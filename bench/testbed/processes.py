"""Starts, watches and ends the programs of one leg: workers in their namespaces, daemons, the coordinator."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TAIL_BYTES = 2000


class LegError(Exception):
    """A program of the testbed failed; the text says which, how, and what it said last."""


class Program:
    """A child process whose output is kept for errors."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...] = ()):
        self.name = name
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            pass_fds=pass_fds,
            preexec_fn=os.setpgrp,  # Ctrl-C is for the controller, which then ends its programs
        )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def said(self) -> str:
        self._said.seek(0)
        return self._said.read()[-TAIL_BYTES:].strip()

    def cpu_s(self) -> float:
        """Processor time that it and its threads have used so far."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Asks it to end; insists after `timeout_s`."""
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        self.kill()
        self._said.close()


class Worker(Program):
    """A host's worker and the socket over which it is told what to do: one packet, one message."""

    def __init__(self, name: str, launch: Callable[[int], list[str]], environment: dict[str, str]):
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        with theirs:
            super().__init__(name, launch(theirs.fileno()), environment, (theirs.fileno(),))

    def tell(self, text: str) -> None:
        try:
            self.socket.send(text.encode())
        except OSError as error:
            raise self.failure(str(error)) from error

    def failure(self, why: str) -> LegError:
        return LegError(f"{self.name}: {why}. It said: {self.said() or 'nothing'}")

    def stop(self, timeout_s: float = 5.0) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(b"quit")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        self.socket.close()
        super().stop()


class Switchboard:
    """Waits for what any worker says."""

    def __init__(self, workers: list[Worker]) -> None:
        self._selector = selectors.DefaultSelector()
        for index, worker in enumerate(workers):
            self._selector.register(worker.socket, selectors.EVENT_READ, (index, worker))

    def wait(self, until_ns: int) -> list[tuple[int, str]]:
        """Messages as (worker, text), none when `until_ns` (CLOCK_MONOTONIC) has come. LegError when one has failed."""
        left_s = max(0.0, (until_ns - time.monotonic_ns()) / 1e9)
        said = []
        for key, _ in self._selector.select(left_s):
            index, worker = key.data
            packet = worker.socket.recv(1 << 16)
            if not packet:
                worker.process.wait(5)
                raise worker.failure(f"ended with code {worker.process.returncode}")
            text = packet.decode()
            if text.startswith("error "):
                raise worker.failure(text)
            said.append((index, text))
        return said

    def close(self) -> None:
        self._selector.close()
