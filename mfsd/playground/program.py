"""A child process of a cluster in namespaces, whose output is shown if it fails."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time

CPUCLOCK_SCHED = 2
"""The kernel's kind of CPU clock that counts the time given by the scheduler."""
TAIL_BYTES = 2000


class Program:
    """A child process whose output is kept for error messages."""

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
            # A new session, because Ctrl-C is for the controller, which then ends its programs. The kernel also shares
            # the cores of a busy machine by session (autogroups): in one session, the daemons of six hosts would take
            # time from one host's worker.
            preexec_fn=os.setsid,
        )

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        self._said.seek(0)
        return self._said.read()[-TAIL_BYTES:].strip()

    def cpu_s(self) -> float:
        """Returns the CPU time of its threads so far, to the nanosecond (/proc has only ticks); 0 if it has ended."""
        try:
            return time.clock_gettime(~self.process.pid << 3 | CPUCLOCK_SCHED)  # the id from clock_getcpuclockid(3)
        except OSError:
            return 0.0

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Sends SIGTERM, and SIGKILL after `timeout_s`."""
        if not self.ended:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout_s)
        self.kill()
        self._said.close()
