"""RDMA flows for the lab: unmodified perftest over the soft RoCE device, counted by the switch's own class
counters."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from types import TracebackType

from bench.fabric.lab import Lab
from mfsd.fabric.qdisc import interface_index, open_netlink

LAUNCHER = "mfsd.soft_roce.launcher"
FIRST_PORT = 18_515


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
        self._dscp = dscp
        self._switch_port = f"p{lab.names.index(target)}"
        self._minor = 16 + lab.plan.dscp_to_priority[dscp]
        self._tcp_port = FIRST_PORT + dscp
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def received_bytes(self) -> int:
        """Bytes of this flow's class that left the switch towards the target."""
        with open_netlink(self._lab.switch) as ipr:
            for c in ipr.get_classes(index=interface_index(ipr, self._switch_port)):
                if c["handle"] & 0xFFFF == self._minor:
                    return int(c.get_attr("TCA_STATS2").get_attr("TCA_STATS_BASIC")["bytes"])
        raise OSError(f"{self._switch_port}: no class 1:{self._minor:x}")

    def wait_for(self, more_bytes: int, timeout_s: float = 30) -> int:
        """Waits until `more_bytes` more have left the switch; returns the count. Raises TimeoutError."""
        target = self.received_bytes + more_bytes
        end = time.monotonic() + timeout_s
        while (now := self.received_bytes) < target:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{target - now} of {more_bytes} bytes did not pass the switch in {timeout_s} s"
                )
            for process in self._processes:
                if process.poll() is not None:
                    raise OSError(f"ib_write_bw ended with {process.returncode}: {self._log()}")
            time.sleep(0.002)
        return now

    def _log(self) -> str:
        return " | ".join(
            p.stdout.read().decode(errors="replace")[-400:] for p in self._processes if p.stdout
        )

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
        launcher = (sys.executable, "-m", LAUNCHER, "--netdev", "eth0", "--")
        test = ("ib_write_bw", "-x", "0", "-s", "65536", "-n", "1000000", "-p", str(self._tcp_port))
        command = (
            "ip",
            "netns",
            "exec",
            self._lab.namespace(host),
            *launcher,
            *test,
            "--tclass",
            str(self._dscp << 2),
        )
        process = subprocess.Popen(
            [*command, *peer],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.getcwd()},
        )
        self._processes.append(process)
        return process

    def _wait_listening(self, server: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + 20
        wanted = f":{self._tcp_port:04X} "
        listing = (
            "ip",
            "netns",
            "exec",
            self._lab.namespace(self._target),
            "cat",
            "/proc/net/tcp",
            "/proc/net/tcp6",
        )
        while time.monotonic() < end:
            tables = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=10).stdout
            if any(
                wanted in line and line.split()[3] == "0A"
                for line in tables.splitlines()[1:]
                if len(line.split()) > 3
            ):
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
