"""RDMA flows for the lab: unmodified perftest over the soft RoCE device."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import time
from types import TracebackType

from bench.fabric.lab import Lab
from mfsd.children import python_module

LAUNCHER = "mfsd.soft_roce.launcher"
FIRST_PORT = 18_515
LISTENING = "0A"


def missing() -> str:
    """What this machine lacks for RDMA flows, or the empty string."""
    if importlib.util.find_spec(LAUNCHER) is None:
        return "the soft RoCE device is not built"
    if shutil.which("ib_write_bw") is None:
        return "perftest is not installed"
    return ""


class RdmaFlow:
    """`ib_write_bw` from one host to another with one DSCP, as fast as it goes, until stopped."""

    def __init__(self, lab: Lab, source: str, target: str, dscp: int) -> None:
        self._lab, self._source, self._target = lab, source, target
        self.dscp = dscp
        self._tcp_port = FIRST_PORT + dscp
        self._processes: list[subprocess.Popen[bytes]] = []

    def pause(self) -> None:
        """Stops both programs where they are, until `go`; what is in the sender's socket still leaves."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            if process.poll() is not None:
                raise OSError(f"ib_write_bw ended with {process.returncode}: {self._log()}")
            process.send_signal(number)

    def _log(self) -> str:
        ended = [p.stdout.read() for p in self._processes if p.stdout and p.poll() is not None]
        return " | ".join(output.decode(errors="replace")[-400:] for output in ended)

    def __enter__(self) -> RdmaFlow:
        try:
            server = self._start(self._target)
            self._wait_listening(server)
            self._start(self._source, self._lab.address(self._target))
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self, host: str, *peer: str) -> subprocess.Popen[bytes]:
        launcher = ("ip", "netns", "exec", self._lab.namespace(host), *python_module(LAUNCHER))
        test = (
            "ib_write_bw",
            "-x",
            "0",
            "-s",
            "65536",
            "-t",
            "4",
            "-n",
            "1000000",
            "-p",
            str(self._tcp_port),
        )
        process = subprocess.Popen(
            [*launcher, "--netdev", "eth0", "--", *test, "--tclass", str(self.dscp << 2), *peer],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._processes.append(process)
        return process

    def _wait_listening(self, server: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 20
        wanted = f":{self._tcp_port:04X} "
        namespace = self._lab.namespace(self._target)
        listing = ("ip", "netns", "exec", namespace, "cat", "/proc/net/tcp", "/proc/net/tcp6")
        while time.monotonic() < end:
            tables = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=10).stdout
            rows = [line.split() for line in tables.splitlines() if wanted in line]
            if any(row[3] == LISTENING for row in rows):
                return
            if server.poll() is not None:
                raise OSError(f"ib_write_bw (server) ended with {server.returncode}: {self._log()}")
            time.sleep(0.02)
        raise TimeoutError("ib_write_bw did not listen within 20 s")

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait(10)
            if process.stdout:
                process.stdout.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
