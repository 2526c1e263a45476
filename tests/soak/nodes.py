"""What a soak kills and starts again: the nodes' daemons, the coordinators, etcd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.ports import free_port
from mfsd.node.address import control_beside
from mfsd.node.config import ArbiterConfig
from mfsd.node.control import StatusReply, StatusRequest, TraceReply, TraceRequest
from mfsd.node.control_client import Refused, Unreachable, ask
from mfsd.node.values import DurationNs
from tests.soak.hostile import PROCESS as HOSTILE
from tests.support.cluster import ask_status
from tests.support.debian import program
from tests.support.wheels import mooncake_environment

COME_BACK_S = 60.0
"""Far above what anything here takes to serve again; reaching it is a failure."""
SETTLED_S = 3.0
"""A daemon is measured from then on: what it makes at its start does not count as growth."""


def wait_for(poll: Callable[[], Any], until_s: float) -> bool:
    """Whether `poll` answers something true before that moment of the monotonic clock."""
    while time.monotonic() < until_s:
        if poll():
            return True
        time.sleep(0.02)
    return False


class Service:
    """One process that is started again after it was killed. Its log goes to a file."""

    def __init__(self, name: str, folder: Path, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self.log = folder / f"{name.replace(' ', '-')}.log"
        self._command, self._environment = command, environment
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.started_s = 0.0

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        self.started_s = time.monotonic()

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.stopped = False

    def stop(self) -> None:
        """SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def go_on(self) -> None:
        if self.stopped and self.alive:
            assert self.process is not None
            self.process.send_signal(signal.SIGCONT)
        self.stopped = False

    def output(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


class Growth:
    """How much more of everything a daemon holds than after its start, in the worst of its lives."""

    def __init__(self) -> None:
        self._first: dict[int, tuple[int, int, int]] = {}
        self.most = {"memory_bytes": 0, "descriptors": 0, "threads": 0}

    def sample(self, pid: int) -> None:
        with contextlib.suppress(OSError, KeyError, ValueError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            now = (
                int(fields["VmRSS"].split()[0]) * 1024,
                sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
                int(fields["Threads"]),
            )
            first = self._first.setdefault(pid, now)
            for name, before, after in zip(self.most, first, now, strict=True):
                self.most[name] = max(self.most[name], after - before)


class Waits:
    """How long held tasks were seen to wait, and how often one went without a permit, in all lives of a daemon."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""
        self._open: dict[int, dict[str, int]] = {}

    def sample(self, status: StatusReply, tasks: TraceReply) -> None:
        for task in tasks.tasks:
            if task.state == "held" and task.process != HOSTILE and task.waited_s > self.longest_s:
                self.longest_s, self.longest = task.waited_s, f"{task.process}, {task.stage}"
        totals = [total for total in status.totals if total.process != HOSTILE]
        self._open[status.daemon.epoch] = {
            "full": sum(total.bypassed_overflow for total in totals),
            "held too long": sum(total.bypassed_hold for total in totals),
            "no daemon": sum(total.bypassed_stale for total in totals),
            **{f"{reason}, all programs": n for reason, n in status.events.get("failed_open", {}).items()},
        }

    def failed_open(self) -> dict[str, int]:
        """As far as was seen: what a program did right before it or its daemon was killed is not."""
        total: Counter[str] = Counter()
        for life in self._open.values():
            total.update(life)
        return dict(total)


class Node:
    """A host of the cluster: an address on loopback, a soft RoCE device, a daemon."""

    def __init__(self, number: int, folder: Path, coordinators: list[str]) -> None:
        self.name = f"node{number}"
        self.address = f"127.0.0.{number}"
        self.folder = folder / self.name
        self.folder.mkdir()
        self.socket = self.folder / "run" / "mfsd.sock"
        self.control = control_beside(self.socket)
        self.config = self.folder / "mfsd.toml"
        self._coordinators = coordinators
        self._max_hold = None if number == 1 else DurationNs.parse("5s")
        self.write_config()
        runtime = self.folder / "runtime"
        runtime.mkdir(mode=0o700)
        self.environment = {
            **os.environ,
            **mooncake_environment(self.folder),
            "XDG_RUNTIME_DIR": str(runtime),
            "MFS_LOG": "quiet",
        }
        command = [sys.executable, "-m", "mfsd.cli.daemon", "--config", str(self.config), "--socket", str(self.socket)]
        self.daemon = Service(f"daemon {self.name}", folder, command)
        self.growth, self.waits = Growth(), Waits()

    @property
    def max_hold_s(self) -> float:
        """The first node has the default that ships; on others waits last long enough to be hurt."""
        return (self._max_hold or ArbiterConfig().max_hold_ns) / 1e9

    def write_config(self, extra: str = "") -> None:
        arbiter = f'[arbiter]\nmax_hold = "{self._max_hold}"\n' if self._max_hold else ""
        self.config.write_text(
            f"{arbiter}[cluster]\ncoordinators = {self._coordinators!r}\n"
            f'node = "{self.name}"\nttl = "3s"\n[nic."mfs0"]\nrate = "2gbit"\naddress = "{self.address}"\n'
            f'[[rule]]\naction = "hold"\nstage = "p2d"\n{extra}'
        )

    def soft_roce(self, *command: str) -> list[str]:
        """The command line that runs the command with this node's device."""
        launcher = (sys.executable, "-m", "mfsd.soft_roce.launcher", "--device", f"mfs0={self.address}", "--")
        return [*launcher, *command]

    def status(self) -> StatusReply | None:
        try:
            reply = ask(self.control, StatusRequest(), 2.0)
        except (Unreachable, Refused):
            return None
        return reply if isinstance(reply, StatusReply) else None

    def sample(self) -> None:
        status = self.status()
        with contextlib.suppress(Unreachable, Refused):
            tasks = ask(self.control, TraceRequest(), 2.0)
            if status is not None and isinstance(tasks, TraceReply):
                self.waits.sample(status, tasks)

    def grants(self) -> int | None:
        """Permits given in this life; None when the daemon does not answer."""
        status = self.status()
        return None if status is None else status.daemon.grants


class Cluster:
    """Nodes, two coordinators and their etcd, on loopback."""

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        client, peer = f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
        endpoint = client.removeprefix("http://")
        self.etcd = Service(
            "etcd",
            folder,
            [
                *(program("etcd-server", "etcd"), "--name=t", f"--data-dir={folder}/etcd", "--logger=zap"),
                *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}", "--log-level=error"),
                *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=t={peer}"),
            ],
        )
        config = folder / "coordinator.toml"
        config.write_text('[coordinator]\nheartbeat = "200ms"\ngrace = "1s"\n')
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.coordinators = [
            Service(
                f"coordinator {number}",
                folder,
                [
                    *(sys.executable, "-m", "mfsd.cli.daemon", "--coordinator", "--config", str(config)),
                    *("--listen", address, "--advertise", address, "--etcd", endpoint),
                ],
            )
            for number, address in enumerate(self.addresses, 1)
        ]
        self.nodes = [Node(number, folder, self.addresses) for number in range(1, nodes + 1)]
        self._watching = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)

    def services(self) -> Iterator[Service]:
        yield self.etcd
        yield from self.coordinators
        yield from (node.daemon for node in self.nodes)

    def __enter__(self) -> Cluster:
        for service in self.services():
            service.start()
        until_s = time.monotonic() + COME_BACK_S
        for what, poll in (("a daemon", lambda: all(n.status() for n in self.nodes)), ("a coordinator", self.leads)):
            if not wait_for(poll, until_s):
                output = "\n".join(f"{service.name}: {service.output()}" for service in self.services())
                self.__exit__()
                raise RuntimeError(f"{what} does not serve within {COME_BACK_S:g} s\n{output}")
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watching.set()
        for service in self.services():
            service.kill()

    def leads(self) -> bool:
        """Whether some coordinator leads."""
        for service, address in zip(self.coordinators, self.addresses, strict=True):
            if service.alive and not service.stopped:
                with contextlib.suppress(Exception):  # not yet, or no more
                    if ask_status(address).leads:
                        return True
        return False

    def _watch(self) -> None:
        while not self._watching.wait(1.0):
            for node in self.nodes:
                daemon = node.daemon
                if daemon.alive and not daemon.stopped and time.monotonic() - daemon.started_s > SETTLED_S:
                    assert daemon.process is not None
                    node.growth.sample(daemon.process.pid)
                    node.sample()
