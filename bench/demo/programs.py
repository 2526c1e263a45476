"""Starts and stops the demo's programs: the daemon, the all-to-all, the bulk write, each on the software device."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "bench" / "programs"
BUILD = ROOT / "build" / "demo"
DEVICE = "mfsdemo0"
# Mooncake's workers poll without rest. The demo is about the link: they must not take two cores from everybody.
POLITE = ("nice", "-n", "8")


class Call(msgspec.Struct):
    """One collective round of one rank, or one bulk write. Times are CLOCK_MONOTONIC."""

    start_ns: int
    end_ns: int
    bytes: int
    rank: int = 0
    round: int = 0


class ProgramError(Exception):
    """A program of the demo failed; the text says which, how, and shows the end of what it said."""


class Program:
    """A child process in a process group of its own whose standard output is read line by line as JSON."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None):
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._arrived = threading.Condition()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | (environment or {}),
            preexec_fn=os.setpgrp,  # a group to end as a whole; not a session, where niceness would count apart
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            if line.startswith("{"):
                with self._arrived:
                    self.lines.append(json.loads(line))
                    self._arrived.notify_all()
        with self._arrived:
            self._arrived.notify_all()

    def wait_lines(self, count: int, timeout_s: float = 60) -> None:
        """Waits until the program has printed `count` JSON lines."""
        with self._arrived:
            arrived = self._arrived.wait_for(
                lambda: len(self.lines) >= count or not self._reader.is_alive() or self._process.poll() is not None,
                timeout_s,
            )
        if not arrived or len(self.lines) < count:
            raise ProgramError(f"{self.name} printed {len(self.lines)} of {count} lines. It said:\n{self.said()}")

    def finish(self, timeout_s: float = 60) -> None:
        """Closes standard input (which ends the bulk write) and waits for a clean exit."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise ProgramError(f"{self.name} did not end within {timeout_s:.0f} s. It said:\n{self.said()}") from error
        self._reader.join()
        if code != 0:
            raise ProgramError(f"{self.name} ended with code {code}. It said:\n{self.said()}")

    def calls(self) -> list[Call]:
        return [msgspec.convert(line, Call) for line in self.lines if "start_ns" in line]

    def said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]

    def terminate(self) -> None:
        self._process.terminate()
        self._process.wait(20)

    def kill(self) -> None:
        """Ends the process group that this object started."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def build_alltoall() -> Path:
    """Compiles the all-to-all program when its source is newer."""
    source, program = PROGRAMS / "alltoall.c", BUILD / "alltoall"
    BUILD.mkdir(parents=True, exist_ok=True)
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        compiler = shutil.which("cc") or "gcc"
        subprocess.run([compiler, "-std=gnu11", "-O2", str(source), "-o", str(program), "-ldl"], check=True)
    return program


class Stage:
    """The device, the daemon and the programs of one demo; everything is ended when the `with` block is left."""

    def __init__(self, rate: str):
        self.rate = rate
        self._running: list[Program] = []
        self._folder = tempfile.TemporaryDirectory(prefix="mfs-demo-")
        self.socket = Path(self._folder.name) / "run" / "mfsd.sock"
        self._alltoall = build_alltoall()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for program in reversed(self._running):
            program.kill()
        self._folder.cleanup()

    def _start(self, name: str, command: list[str]) -> Program:
        program = Program(name, command, {"MFS_SOCKET": str(self.socket), "MFS_LOG": "quiet"})
        self._running.append(program)
        return program

    def _on_device(self, mfs: bool, command: list[str]) -> list[str]:
        tools = Path(sys.executable).parent
        run = [str(tools / "mfs-run"), "--"] if mfs else []
        return [
            str(tools / "mfs-soft-roce"),
            "--rate",
            self.rate,
            "--device",
            f"{DEVICE}=127.0.0.1",
            "--",
            *run,
            *command,
        ]

    def alltoall(self, mfs: bool, rounds: int, bytes_per_rank: int, gap_ms: int) -> Program:
        arguments = ["--rounds", rounds, "--bytes", bytes_per_rank, "--gap-ms", gap_ms]
        command = [str(self._alltoall), *map(str, arguments)]
        return self._start("the all-to-all", self._on_device(mfs, command))

    def bulk_write(self, mfs: bool) -> Program:
        program = self._start(
            "the Mooncake bulk write",
            [*POLITE, *self._on_device(mfs, [sys.executable, str(PROGRAMS / "bulk_write.py"), "--device", DEVICE])],
        )
        program.wait_lines(1)
        return program

    @contextlib.contextmanager
    def daemon(self) -> Iterator[Program]:
        """A daemon with its defaults, on a socket of the demo's own."""
        configuration = self.socket.with_name("mfsd.toml")
        configuration.write_text(f'[arbiter]\nwindow = "16ms"\n[nic.{DEVICE}]\nrate = "{self.rate}"\n')
        command = [str(Path(sys.executable).parent / "mfsd")]
        program = self._start("mfsd", [*command, "--config", str(configuration), "--socket", str(self.socket)])
        deadline = threading.Event()
        for _ in range(200):
            if self.socket.exists() or program._process.poll() is not None:
                break
            deadline.wait(0.05)
        if not self.socket.exists():
            raise ProgramError(f"mfsd did not start. It said:\n{program.said()}")
        try:
            yield program
        finally:
            program.terminate()
