"""Three hosts, two coordinators and etcd, two units that contend: a leader is killed, a host is cut off and healed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bench.ports import free_port
from mfsd.node.control import TraceReply, TraceRequest
from mfsd.node.control_client import ask
from tests.conftest import SoftRoce, listens
from tests.support.cluster import Coordinator, etcd
from tests.support.daemon import Daemon
from tests.support.engine import Engine
from tests.support.hosts import Host, Hosts
from tests.support.running_clock import RunningClock
from tests.support.under_mfs import under_mfs
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")

TTL_S = 10.0
"""Longer than a takeover: the last order holds meanwhile."""
HEAL_S = 5.0
"""From the healed link to the leader's order: a connection attempt, at most `backoff_max` after the last."""
COORDINATOR = '[coordinator]\nheartbeat = "200ms"\ngrace = "1s"\n[policy]\ndrop_budget = 0.5\n'
REUSE, P2D = 1, 3


def daemon_config(host: Host, coordinators: list[str]) -> str:
    return (
        f'[cluster]\ncoordinators = {coordinators!r}\nnode = "{host.address}"\nttl = "{TTL_S:g}s"\n'
        f'[nic."mfs0"]\nrate = "1gbit"\naddress = "{host.address}"\n'
        '[arbiter]\nmax_hold = "5s"\n'
        '[[rule]]\naction = "hold"\nstage = "p2d"\n'
    )


class Owner:
    """The third host holds cached KV: one of its programs sends to both units, and its NIC is what they contend for."""

    BUSY_BYTES = 1 << 30
    """Fills the NIC's window for as long as a test lasts."""

    def __init__(self, daemon: Daemon, engine: Engine) -> None:
        self._daemon, self._engine = daemon, engine

    def serves(self, *batches: int) -> None:
        """In this order. Each batch waits for about as much and nothing is due here, so that what the owner knows by
        itself would put the one that came first in front: the last one of these."""
        eventually(lambda: self._serves_once(batches), f"the owner serves {batches}")

    def _serves_once(self, batches: tuple[int, ...]) -> bool:
        """False: the order did not come within the hold limit, which a machine that is busy enough can bring about."""
        names = [str(batch) for batch in batches]
        self._engine("submit", task="busy", size_bytes=self.BUSY_BYTES, stage=REUSE)
        self._engine("wait", task="busy")
        for batch in reversed(batches):
            self._engine("batch", batch_id=batch, layers=4, requests=[{"request_id": 1000 + batch}])
            self._engine("submit", task=str(batch), size_bytes=3 << 20, stage=REUSE, batch=batch)
        eventually(
            lambda: self._waiting() == list(batches) or set(names) & set(self._engine("ready")), "the order, or permits"
        )
        served = self._waiting() == list(batches)
        self._engine("complete", task="busy")
        for batch in batches:
            self._engine("wait", task=str(batch))
            self._engine("complete", task=str(batch))
            self._engine("end", batch_id=batch)
        return served

    def _waiting(self) -> list[int]:
        """Batches as their tasks would go. Programs that send meanwhile wait, too, and are of none."""
        reply = ask(self._daemon.control, TraceRequest(), 20)
        assert isinstance(reply, TraceReply)
        return [t.batch_id for t in reply.tasks if t.state == "held" and t.batch_id is not None]


class Traffic:
    """Unmodified programs send checked bytes from one host to another, one run after the other, until stopped."""

    COMMAND = ("ibv_rc_pingpong", "-d", "mfs0", "-g", "0", "-c", "-s", "65536", "-n")

    def __init__(self, soft_roce: SoftRoce, source: Host, target: Host, sockets: tuple[Path, Path]) -> None:
        self.runs = 0
        self.problems: list[str] = []
        self.allowed = threading.Event()
        self.allowed.set()
        self._idle = threading.Event()
        self._soft_roce, self._source, self._target, self._sockets = soft_roce, source, target, sockets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._repeat)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.allowed.set()
        self._thread.join(200)

    def wait_run(self) -> None:
        """Until a run that began after this call has ended."""
        wanted = self.runs + 2
        eventually(lambda: self.runs >= wanted or self.problems, f"traffic from {self._source.address}")
        assert not self.problems, self.problems[0]

    def pause(self) -> None:
        """No run is under way afterwards, and none begins until `allowed` is set."""
        self.allowed.clear()
        assert self._idle.wait(100)

    def start(self, messages: int) -> list[subprocess.Popen[str]]:
        """One run: its two programs."""
        port = str(free_port())
        server = self._program(self._target, self._sockets[1], str(messages), "-p", port)
        eventually(
            lambda: server.poll() is not None or listens(int(port), self._target.prefix), "the server", pause_s=0.05
        )
        return [self._program(self._source, self._sockets[0], str(messages), "-p", port, self._target.address), server]

    def finish(self, programs: list[subprocess.Popen[str]]) -> None:
        """Notes what is wrong with a run."""
        for process in programs:
            try:
                output, _ = process.communicate(timeout=200)
            except subprocess.TimeoutExpired:
                process.kill()
                output = process.communicate()[0] + "\nstill running after 200 s"
            if process.returncode != 0 or "invalid data" in output:
                self.problems.append(f"exit {process.returncode}: {output}")
        self.runs += 1

    def _program(self, host: Host, socket: Path, *more: str) -> subprocess.Popen[str]:
        program = self._soft_roce.argv(*under_mfs(socket, *self.COMMAND, *more), address=host.address)
        return subprocess.Popen(
            [*host.prefix, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._soft_roce.environment(),
        )

    def _repeat(self) -> None:
        while not self._stop.is_set() and not self.problems:
            if not self.allowed.is_set():
                self._idle.set()
                self.allowed.wait()
                self._idle.clear()
                continue
            self.finish(self.start(200))


def within(poll: Callable[[], object], what: str, limit_s: float) -> None:
    """A promised bound, not a measurement."""
    with RunningClock() as clock:
        eventually(poll, what)
        assert clock.ran_s() <= limit_s, f"{what} took more than {limit_s:g} s"


class Cluster:
    def __init__(self, hosts: list[Host], folder: Path, soft_roce: SoftRoce, stack: ExitStack) -> None:
        self.hosts = hosts
        endpoint, _ = stack.enter_context(etcd(folder, hosts[2].address, hosts[2].prefix))
        self.coordinators: list[Coordinator] = []
        for host in hosts[:2]:
            one = Coordinator(folder, etcd=endpoint, config=COORDINATOR, host=host.address, prefix=host.prefix)
            stack.enter_context(one)
            one.wait_line("event=leads" if not self.coordinators else "event=stands-by")
            self.coordinators.append(one)
        addresses = [c.address for c in self.coordinators]
        self.daemons = []
        for number, host in enumerate(hosts):
            own = folder / str(number)
            own.mkdir()
            self.daemons.append(stack.enter_context(Daemon(own, daemon_config(host, addresses), prepare=host.enter())))
        for daemon in self.daemons:
            daemon.wait_line("event=coordinator ")
        self.units = [
            stack.enter_context(Engine(daemon.socket, "mfs0", f"unit{number}"))
            for number, daemon in enumerate(self.daemons[:2])
        ]
        self.owner = Owner(self.daemons[2], stack.enter_context(Engine(self.daemons[2].socket, "mfs0", "owner")))
        self.traffic = [
            stack.enter_context(
                Traffic(soft_roce, host, hosts[2], (self.daemons[number].socket, self.daemons[2].socket))
            )
            for number, host in enumerate(hosts[:2])
        ]

    def order(self, coordinator: Coordinator) -> list[int]:
        """Asked on its own host, where nothing is cut off from it. Nothing while no leader answers."""
        status = (sys.executable, "-m", "mfsd.cli.ctl", "coordinator", "status", "--json", "--address")
        host = self.hosts[self.coordinators.index(coordinator)]
        output = subprocess.run([*host.prefix, *status, coordinator.address], capture_output=True, text=True)
        return [row["batch_id"] for row in json.loads(output.stdout)["batches"]] if output.returncode == 0 else []

    def wait_traffic(self) -> None:
        for traffic in self.traffic:
            traffic.wait_run()


@pytest.fixture
def cluster(folder: Path, soft_roce: SoftRoce) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack.enter_context(Hosts(3)), folder, soft_roce, stack)


def granted_bytes(daemon: Daemon) -> int:
    return sum(c.granted_bytes for nic in daemon.status().nics for c in nic.classes)


def due_in(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


@pytest.mark.slow
def test_leader_killed_host_cut_off_and_healed(cluster: Cluster) -> None:
    first, second = cluster.coordinators
    unit_a, unit_b = cluster.units
    target = cluster.hosts[2].address

    def flow(size_bytes: int) -> dict[str, object]:
        return {"stage": P2D, "peer": target, "size_bytes": size_bytes}

    def request(number: int, due_s: float, size_bytes: int) -> dict[str, object]:
        return {"request_id": number, "deadline_ns": due_in(due_s), "flows": [flow(size_bytes)]}

    # Both units ship to the third host, whose port takes 1 Gbit/s: an hour and 20 minutes of it. Alone each is in time.
    unit_a("batch", batch_id=1, layers=4, requests=[request(100, 4000, 450 * 10**9), request(101, 4000, 1000)])
    unit_b("batch", batch_id=2, layers=4, requests=[request(200, 4500, 150 * 10**9)])
    eventually(lambda: unit_a("pruned", request_id=100), "the request with most on the port is pruned")
    assert not unit_a("pruned", request_id=101)
    assert not unit_b("pruned", request_id=200)
    assert cluster.order(first) == [1, 2]
    cluster.owner.serves(1, 2)
    cluster.wait_traffic()

    first.process.kill()  # how soon it is replaced: test_coordinator_fails, three times
    eventually(
        lambda: all(sum("event=coordinator " in line for line in d.lines) >= 2 for d in cluster.daemons),
        "every daemon follows the next leader",
    )
    unit_b("batch", batch_id=3, layers=4, requests=[request(300, 3000, 10**6)])
    eventually(lambda: cluster.order(second) == [3, 1, 2], "the next leader's order")
    cluster.owner.serves(1, 2)
    eventually(lambda: unit_a("pruned", request_id=100), "it is pruned again")
    assert not any("event=order-expired" in line for d in cluster.daemons for line in d.lines), "the last order held"
    cluster.wait_traffic()

    cluster.traffic[0].pause()  # a program that starts while its host is cut off fails by itself
    before = granted_bytes(cluster.daemons[0])
    under_way = cluster.traffic[0].start(5_000)
    eventually(lambda: granted_bytes(cluster.daemons[0]) > before + 2**20, "a transfer is under way")
    cluster.hosts[0].cut()
    assert under_way[0].poll() is None
    cluster.daemons[0].wait_line("event=order-expired")
    eventually(lambda: not unit_a("pruned", request_id=100), "cut off, nothing is pruned")
    eventually(lambda: cluster.order(second) == [3, 2], "the others go on without it")
    cluster.hosts[0].heal()
    within(lambda: unit_a("pruned", request_id=100), "the leader's order after healing", HEAL_S)
    assert cluster.order(second) == [3, 1, 2]
    cluster.owner.serves(1, 2)
    cluster.traffic[0].finish(under_way)
    cluster.traffic[0].allowed.set()
    cluster.wait_traffic()
    assert [d.process.poll() for d in cluster.daemons] == [None] * 3
