"""A child process of a cluster in namespaces: started, watched, ended, and quoted when it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TAIL_BYTES = 2000


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
