"""The playground itself: builds the nodes, starts what runs on them, and starts again what ends.

Runs as the first process of a sandbox; what it makes vanishes with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from mfsd.children import python_module
from mfsd.playground.load import link_share
from mfsd.playground.network import CONTROL_ADDRESS, build_nodes, node_address, on_node
from mfsd.playground.program import Program
from mfsd.playground.state import Coordinator, Node, PlaygroundError, State

DEVICE = "mfs0"
START_TIMEOUT_S = 60.0
RESTART_S = 1.0
WATCH_S = 0.1
"""As the systemd units have it."""
ETCD_PORT = 2379
COORDINATOR_PORT = 7400
PAGE_PORT = 7480
DROP_BUDGET = 0.25
"""Share of requests that may be pruned: few are under way here, and some of them shall be seen."""
RATE_LEAST_BYTES_PER_S, RATE_MOST_BYTES_PER_S = 10**6 // 8, 10**13 // 8
"""As configurations have it."""
MAX_HOLD = "5s"
"""The most that a configuration may have."""
CHECKOUT_ETCD = Path(__file__).parents[2] / "build/debian/etcd-server/usr/bin/etcd"
"""Where a checkout's setup puts it."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    nodes: int
    rate_bytes_per_s: int
    """Of every node's device."""
    load: bool
    etcd: str | None
    """The program; None: one coordinator leads alone."""

    @property
    def coordinators(self) -> int:
        return 2 if self.etcd else 1

    @property
    def fastest_bytes_per_s(self) -> int:
        """Of the link of the node that decodes: where there is a load, it has as much as all that prefill."""
        return self.rate_bytes_per_s * (link_share(self.nodes - 1, self.nodes) if self.load else 1)


def find_etcd() -> str | None:
    """etcd of this machine or of the checkout."""
    return shutil.which("etcd") or (str(CHECKOUT_ETCD) if os.access(CHECKOUT_ETCD, os.X_OK) else None)


def layout(options: Options, folder: Path, doors: list[tuple[int, int]]) -> State:
    """Names and addresses of everything. `doors`: loopback ports of each coordinator and of its page, outside."""
    nodes = [
        Node(f"node{n}", node_address(n), DEVICE, str(folder / "run" / f"node{n}.sock"))
        for n in range(1, options.nodes + 1)
    ]
    coordinators = [
        Coordinator(f"{CONTROL_ADDRESS}:{COORDINATOR_PORT + at}", f"localhost:{port}", f"http://localhost:{page}/")
        for at, (port, page) in enumerate(doors)
    ]
    return State(0, str(folder), nodes, coordinators, options.etcd is not None)


def doors_inside(folder: Path, count: int) -> Iterator[tuple[Path, str]]:
    """(socket in the shared folder, address behind it) of each coordinator and of its page, in turn."""
    for at in range(count):
        yield folder / f"coordinator{at}.sock", f"{CONTROL_ADDRESS}:{COORDINATOR_PORT + at}"
        yield folder / f"page{at}.sock", f"{CONTROL_ADDRESS}:{PAGE_PORT + at}"


def _always() -> bool:
    return True


def _nothing() -> None:
    pass


@dataclass
class _Part:
    """A program, how to start it again, and how to know that it is up."""

    name: str
    command: list[str]
    up: Callable[[], bool] = _always
    before: Callable[[], object] = _nothing
    pass_fds: tuple[int, ...] = ()
    program: Program | None = None

    def start(self) -> None:
        self.before()
        self.program = Program(self.name, self.command, {}, self.pass_fds)

    def wait(self) -> None:
        program = self.program
        assert program is not None
        end = time.monotonic() + START_TIMEOUT_S
        while not self.up():
            if program.ended or time.monotonic() > end:
                raise PlaygroundError(f"{self.name} did not start. Its output: {program.output() or 'nothing'}")
            time.sleep(0.02)


class Cluster:
    """Everything that runs. `say` takes a line about what happens."""

    def __init__(self, options: Options, state: State, say: Callable[[str], None]) -> None:
        self._options, self._state, self._say = options, state, say
        self._folder = Path(state.folder)
        self._parts: list[_Part] = []
        self._listeners: list[socket.socket] = []

    def start(self) -> None:
        """Returns when everything is up. PlaygroundError or OSError when something is not."""
        try:
            build_nodes([node.name for node in self._state.nodes])
        except FileNotFoundError:
            raise PlaygroundError("needs the program ip: apt-get install iproute2") from None
        stages = [[self._etcd()] if self._options.etcd else [], self._coordinators(), self._daemons(), self._others()]
        for stage in stages:
            for part in stage:
                self._parts.append(part)
                part.start()
            for part in stage:
                part.wait()

    def watch(self) -> None:
        """Starts again what ends, until interrupted. PlaygroundError when it does not come up."""
        while True:
            # Not os.waitid without end: a signal that comes just before it blocks would be seen when a child ends.
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if child is None:
                time.sleep(WATCH_S)
                continue
            part = next((p for p in self._parts if p.program and p.program.process.pid == child.si_pid), None)
            if part is None:
                os.waitpid(child.si_pid, 0)  # an orphan of some node: the first process here is its parent
                continue
            assert part.program is not None
            code = part.program.process.wait()
            how = f"killed by signal {-code}" if code < 0 else f"exit {code}"
            self._say(f"{part.name} ended ({how}); it is started again, as a service manager would")
            time.sleep(RESTART_S)
            part.start()
            part.wait()

    def stop(self) -> None:
        for part in reversed(self._parts):
            if part.program is not None:
                part.program.stop()

    def _etcd(self) -> _Part:
        url, peer = f"http://127.0.0.1:{ETCD_PORT}", "http://127.0.0.1:2380"
        command = [
            *(str(self._options.etcd), "--name=playground", f"--data-dir={self._folder}/etcd", "--log-level=error"),
            *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}"),
            *(f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=playground={peer}", "--logger=zap"),
        ]
        return _Part("etcd", command, _listening("127.0.0.1", ETCD_PORT))

    def _coordinators(self) -> list[_Part]:
        parts = []
        for at, coordinator in enumerate(self._state.coordinators):
            config = self._folder / f"coordinator{at}.toml"
            config.write_text(
                'log_level = "warning"\n[coordinator]\n'
                f'rate_default = "{_bits(self._options.rate_bytes_per_s)}"\n'
                f'web = "{CONTROL_ADDRESS}:{PAGE_PORT + at}"\n'
                f"[policy]\ndrop_budget = {DROP_BUDGET}\n"
            )
            command = [*_mfsd(), "--coordinator", "--config", str(config)]
            command += ["--listen", coordinator.inside, "--advertise", coordinator.inside]
            command += ["--etcd", f"127.0.0.1:{ETCD_PORT}"] if self._options.etcd else []
            up = _listening(CONTROL_ADDRESS, COORDINATOR_PORT + at)
            parts.append(_Part(f"coordinator {coordinator.outside}", command, up))
        return parts

    def _daemons(self) -> list[_Part]:
        parts = []
        for node in self._state.nodes:
            config, path = self._folder / f"{node.name}.toml", Path(node.socket)
            config.write_text(self._configuration(node))
            command = [*_mfsd(), "--config", str(config), "--socket", node.socket]
            parts.append(
                _Part(
                    f"mfsd of {node.name}",
                    on_node(node.name, [*with_device(node, self._rate(node)), *command]),
                    path.exists,
                    partial(path.unlink, missing_ok=True),  # of the daemon before; `up` waits for a new one
                )
            )
        return parts

    def _rate(self, node: Node) -> str:
        """Of its link: where there is a load, the node that decodes has as much as all that prefill."""
        times = link_share(self._state.nodes.index(node), len(self._state.nodes)) if self._options.load else 1
        return _bits(self._options.rate_bytes_per_s * times)

    def _configuration(self, node: Node) -> str:
        addresses = ", ".join(f'"{c.inside}"' for c in self._state.coordinators)
        return (
            'log_level = "warning"\n\n'
            f'[cluster]\nnode = "{node.name}"\nunit = "{node.name}"\ncoordinators = [{addresses}]\n\n'
            f'[nic.{node.device}]\nrate = "{self._rate(node)}"\naddress = "{node.address}"\n\n'
            f"# A link here is a thousandth of a real one, and what waits for it waits longer.\n"
            f'[arbiter]\nmax_hold = "{MAX_HOLD}"\n\n'
            "# What is not known passes at once. Programs of perftest (ib_write_bw ...) ask here, so that there is "
            "something to see.\n"
            '[[rule]]\nprocess = "ib_"\naction = "hold"\nstage = "p2d"\n'
        )

    def _others(self) -> list[_Part]:
        """The doors in the sandbox's wall, and the load."""
        doors = list(doors_inside(self._folder, len(self._state.coordinators)))
        relay = python_module("mfsd.playground.relay")
        for path, target in doors:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(str(path))
            listener.listen()
            self._listeners.append(listener)  # open for as long as there may be another relay
            relay += [str(listener.fileno()), target]
        fds = tuple(listener.fileno() for listener in self._listeners)
        parts = [_Part("the relay", relay, pass_fds=fds)]
        if self._options.load:
            for at, node in enumerate(self._state.nodes):
                command = ["env", f"MFS_SOCKET={node.socket}", *python_module("mfsd.playground.load")]
                command += [str(at), str(self._options.rate_bytes_per_s), *(n.address for n in self._state.nodes)]
                parts.append(_Part(f"the load of {node.name}", on_node(node.name, command)))
        return parts


def with_device(node: Node, rate: str | None = None) -> list[str]:
    """In front of a command that shall find the node's RDMA device."""
    command = [*python_module("mfsd.soft_roce.launcher"), "--netdev", "eth0", "--device", node.device]
    return [*command, *(["--rate", rate] if rate else []), "--"]


def _bits(rate_bytes_per_s: int) -> str:
    """As all programs here read it; people write rates in more ways than each of them takes."""
    return f"{rate_bytes_per_s * 8}bit"


def _mfsd() -> list[str]:
    return python_module("mfsd.cli.daemon")


def _listening(host: str, port: int) -> Callable[[], bool]:
    def poll() -> bool:
        with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
            return True
        return False

    return poll
