"""Starts, watches and ends the workers of one leg in their namespaces."""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import time
from collections.abc import Callable

from mfsd.playground.program import Program


class LegError(Exception):
    """A program of the testbed failed; the text gives its name, how it failed, and its last output."""


class Worker(Program):
    """A host's worker and the socket over which it gets its commands: one packet for each message."""

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
        return LegError(f"{self.name}: {why}. Its output: {self.output() or 'nothing'}")

    def stop(self, timeout_s: float = 5.0) -> None:
        with contextlib.suppress(OSError):
            self.socket.send(b"quit")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout_s)
        self.socket.close()
        super().stop()


class Switchboard:
    """Waits for messages of all workers."""

    def __init__(self, workers: list[Worker]) -> None:
        self._selector = selectors.DefaultSelector()
        for index, worker in enumerate(workers):
            self._selector.register(worker.socket, selectors.EVENT_READ, (index, worker))

    def wait(self, until_ns: int) -> list[tuple[int, str]]:
        """Returns messages as (worker, text); none once `until_ns` (CLOCK_MONOTONIC) has passed. Raises LegError if one
        has failed."""
        left_s = max(0.0, (until_ns - time.monotonic_ns()) / 1e9)
        output = []
        for key, _ in self._selector.select(left_s):
            index, worker = key.data
            packet = worker.socket.recv(1 << 16)
            if not packet:
                worker.process.wait(5)
                raise worker.failure(f"ended with code {worker.process.returncode}")
            text = packet.decode()
            if text.startswith("error "):
                raise worker.failure(text)
            output.append((index, text))
        return output

    def close(self) -> None:
        self._selector.close()
