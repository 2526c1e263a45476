"""Runs real mfsd processes for tests, and waits for their log lines and status."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from mfsd.node.address import control_beside
from mfsd.node.control import ClientStatus, NicStatus, StatusReply, StatusRequest
from mfsd.node.control_client import Unreachable, ask
from tests.support.waiting import TIMEOUT_S, eventually

PATIENT = '\n[arbiter]\nstale_after = "10s"\n'


class Logged:
    """A program whose standard error is collected line by line."""

    lines: list[str]
    process: subprocess.Popen[str]

    def _collect(self) -> None:
        """Starts to collect lines. Call it once the program runs."""
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def wait_line(self, part: str, count: int = 1) -> str:
        """Waits for the ``count``-th log line that contains ``part``, and returns it."""

        def poll() -> str | None:
            found = [line for line in list(self.lines) if part in line]
            if len(found) >= count:
                return found[count - 1]
            assert self.process.poll() is None, f"mfsd ended with {self.process.returncode}: {self.lines}"
            return None

        return eventually(poll, f"a log line with {part}")

    def wait_end(self) -> int:
        """Waits until the process has ended and its last line has been read; returns the exit code."""
        code = self.process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code


class Daemon(Logged):
    """One mfsd process. Leaving the context stops it."""

    def __init__(
        self,
        folder: Path,
        config: str = "",
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        patient: bool = True,
        launcher: Sequence[str] = (),
    ) -> None:
        """Starts mfsd on ``folder/run/mfsd.sock`` with this configuration text.

        ``prepare`` runs in the process before Python. ``launcher`` is a command that starts it. If the configuration
        has no arbiter section, programs take the daemon for dead only late (``patient``), so that a stall of the
        machine fails no test."""
        self.socket = folder / "run" / "mfsd.sock"
        self.control = control_beside(self.socket)
        self.config_file = folder / "mfsd.toml"
        self.config_file.write_text(config + (PATIENT if patient and "[arbiter]" not in config else ""))
        self.process = subprocess.Popen(
            [
                *launcher,
                *(sys.executable, "-m", "mfsd.cli.daemon"),
                *("--config", str(self.config_file), "--socket", str(self.socket)),
                *arguments,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=prepare,
        )
        self._collect()

    def __enter__(self) -> Daemon:
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()
        if error is not None:
            print("output of mfsd:", *self.lines, sep="\n  ")

    def wait_ready(self) -> None:
        self.wait_line("event=ready")

    def status(self) -> StatusReply:
        reply = ask(self.control, StatusRequest(), TIMEOUT_S)
        assert isinstance(reply, StatusReply)
        return reply

    def client(self, pid: int) -> ClientStatus | None:
        return next((c for c in self.status().clients if c.pid == pid), None)

    def nic(self, name: str) -> NicStatus:
        return next(n for n in self.status().nics if n.name == name)

    def wait_clients(self, count: int) -> list[ClientStatus]:
        def poll() -> tuple[list[ClientStatus]] | None:
            clients = self.status().clients
            return (clients,) if len(clients) == count else None

        return eventually(poll, f"{count} clients")[0]

    def answers(self) -> bool:
        try:
            self.status()
        except Unreachable:
            return False
        return True

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))
