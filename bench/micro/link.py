"""Hosts with one slow link each, a daemon on every one, and real programs on them: what `gate` and `window` measure on.

The hosts and their switch are the testbed's: network namespaces around a bridge. NICs and switch ports are shaped (HTB,
with eight strict priorities by DSCP). They lose nothing, as fabrics for RDMA do: queues are longer than what
connections may have on their way. Everything vanishes with the sandbox that it runs in.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyroute2 import netns

from bench.micro.daemon import ROOT
from bench.micro.traffic import Moved, moved
from bench.testbed.hosts import POLICY, Hosts
from mfsd.children import python_module
from mfsd.fabric.systems.linux.qdisc import run_tc
from mfsd.playground.network import on_node
from mfsd.playground.program import Program

DEVICE = "mfs0"
MARK = "mark"
SHIM = ROOT / "nccl_shim/libmfs_shim.so"
START_S = 90.0
POLL_S = 0.02
COLLECTIVE_CLASS, KV_CLASS = 0, 6
"""Of the eight priorities, where programs are set to travel apart."""
PERFTEST_RULE = '[[rule]]\nprocess = "ib_"\naction = "hold"\nstage = "p2d"\n'


class LinkError(Exception):
    """A program or daemon did not do what it should; the text says which, and its output."""


SEGMENT_BYTES = 16_384
BURST_BYTES = 2 * SEGMENT_BYTES
"""What may leave at once after a rest. The testbed's 2 ms at the link's rate would let a whole message through."""
QUEUE_BYTES = 64 << 20
CONNECTION_BYTES = 131_072
"""What a connection may have unacknowledged: some of them keep the fastest link here full, and a queue stays short."""


class LosslessHosts(Hosts):
    """The testbed's hosts with other queues."""

    def _build(self) -> None:
        super()._build()
        for index, host in enumerate(self.names):
            self.shape(self.namespace(host), "eth0", self.link_bits_per_s)
            self.shape(self.switch, f"p{index}", self.link_bits_per_s)

    def __init__(self, names: list[str], link_bits_per_s: float) -> None:
        super().__init__(names, link_bits_per_s)
        self.link_bits_per_s = link_bits_per_s
        self._segment_bytes, self._socket_bytes = SEGMENT_BYTES, CONNECTION_BYTES

    def _tune(self, host: str) -> None:
        super()._tune(host)
        netns.pushns(self.namespace(host))
        try:
            # Nothing is lost here, so that reno fills a link; bbr would search for its rate, and cubic is not for all.
            Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
        finally:
            netns.popns()

    def shape(self, namespace: str, device: str, bits_per_s: float) -> None:
        run_tc("\n".join(shaper(device, bits_per_s, self.dscp)) + "\n", namespace)

    def reshape(self, namespace: str, device: str, bits_per_s: float) -> None:
        """Another rate for a device, whose queues stay; 0: every packet is lost."""
        lines = [f"class change dev {device} parent 9: {whole(bits_per_s)}"] if bits_per_s else []
        for minor in range(2, len(self.dscp) + 2):
            limit = QUEUE_BYTES if bits_per_s else 1
            lines.append(f"qdisc change dev {device} parent 9:{minor:x} bfifo limit {limit}")
        run_tc("\n".join(lines) + "\n", namespace)


def whole(bits_per_s: float) -> str:
    """The class in which all of a device's classes share its rate."""
    rate = f"{round(bits_per_s)}bit"
    return f"classid 9:1 htb rate {rate} ceil {rate} burst {BURST_BYTES} cburst {BURST_BYTES} quantum {SEGMENT_BYTES}"


def shaper(device: str, bits_per_s: float, dscp: list[int]) -> list[str]:
    """What `tc -batch` reads: a queue for each class, of strict priority, since all of them borrow what they need.
    Packets of no class's DSCP travel in the lowest."""
    rate = f"{round(bits_per_s)}bit"
    lines = [
        f"qdisc replace dev {device} root handle 9: htb default {len(dscp) + 1:x}",
        f"class add dev {device} parent 9: {whole(bits_per_s)}",
    ]
    for priority, value in enumerate(dscp):
        minor = f"{priority + 2:x}"
        lines += [
            f"class add dev {device} parent 9:1 classid 9:{minor} htb rate 8kbit ceil {rate} prio {priority} "
            f"burst 1600 cburst {BURST_BYTES} quantum {SEGMENT_BYTES}",
            f"qdisc add dev {device} parent 9:{minor} bfifo limit {QUEUE_BYTES}",
            f"filter add dev {device} parent 9: protocol ip prio 1 u32 match ip dsfield {value << 2} 0xfc "
            f"flowid 9:{minor}",
        ]
    return lines


class Rig:
    """Hosts and what runs on them. Use as a context manager, in a sandbox; `leg` begins a measurement."""

    def __init__(self, names: list[str], rate_bits_per_s: float) -> None:
        self.hosts = LosslessHosts(names, rate_bits_per_s)
        self.rate_bits_per_s = rate_bits_per_s
        self._cleanup = ExitStack()
        self._legs = 0

    def __enter__(self) -> Rig:
        self._cleanup.enter_context(self.hosts)
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def set_rate(self, bits_per_s: float) -> None:
        """Of every link, and of those that were made slower."""
        self.rate_bits_per_s = bits_per_s
        for host in self.hosts.names:
            self.slow_path_to(host, 1.0)
            self.slow_path_from(host, 1.0)

    @property
    def rate_mb_s(self) -> float:
        return self.rate_bits_per_s / 8e6

    @contextmanager
    def leg(
        self,
        mode: str | None,
        rules: str = "",
        lanes: bool = False,
        on: list[str] | None = None,
        sizes: Sequence[str] = (),
    ) -> Iterator[Leg]:
        """New daemons on these hosts (None: all), in this mode (None: no daemon, and no shim); they end with the block,
        and all programs with them. In mode "mark" there is the shim and no daemon; `sizes` are its options of mfs-run.
        """
        self._legs += 1
        folder = self.hosts.folder / f"leg{self._legs}"
        folder.mkdir()
        with ExitStack() as cleanup:
            leg = Leg(self, folder, cleanup, mode is not None)
            if mode == MARK:
                leg.marks = ["--mode", MARK, "--policy", POLICY, *(f"--sizes={one}" for one in sizes)]
            elif mode is not None:
                leg.start_daemons(on or self.hosts.names, mode, rules, lanes)
            yield leg

    def slow_path_to(self, host: str, share: float) -> None:
        """From now on the switch has only this share of the rate for what goes to the host; 0 loses everything."""
        port = f"p{self.hosts.names.index(host)}"
        self.hosts.reshape(self.hosts.switch, port, share * self.rate_bits_per_s)

    def slow_path_from(self, host: str, share: float) -> None:
        """The same for what the host sends."""
        self.hosts.reshape(self.hosts.namespace(host), "eth0", share * self.rate_bits_per_s)


class Leg:
    """Daemons and programs of one measurement."""

    def __init__(self, rig: Rig, folder: Path, cleanup: ExitStack, shimmed: bool) -> None:
        self.rig, self.folder = rig, folder
        self._cleanup, self._shimmed = cleanup, shimmed
        self.programs: list[Program] = []
        self.marks: list[str] = []
        """How programs mark by themselves, where there are no daemons."""

    def traffic_class(self, wire_class: int) -> int:
        """What a program sets itself to travel in a class of the links, without MFS."""
        return self.rig.hosts.dscp[wire_class] << 2

    def socket(self, host: str) -> Path:
        return self.folder / f"{host}.sock"

    def start_daemons(self, hosts: list[str], mode: str, rules: str, lanes: bool) -> None:
        started = [self._daemon(host, mode, rules, lanes) for host in hosts]
        for program, path in started:
            self.wait(path.exists, program, "start")

    def _daemon(self, host: str, mode: str, rules: str, lanes: bool) -> tuple[Program, Path]:
        config = self.folder / f"{host}.toml"
        config.write_text(configuration(mode, self.rig.rate_bits_per_s, rules, lanes))
        command = [*python_module("mfsd.cli.daemon"), "--config", str(config), "--socket", str(self.socket(host))]
        return self.start(host, f"mfsd on {host}", command, shimmed=False), self.socket(host)

    def start(
        self,
        host: str,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        shimmed: bool = True,
    ) -> Program:
        """A program on the host's device, with the shim if this leg has it; it ends with the leg."""
        launcher = [*python_module("mfsd.soft_roce.launcher"), "--netdev", "eth0", "--device", DEVICE, "--"]
        preload = (
            [*python_module("nccl_shim.run"), "--quiet", *(self.marks or ["--socket", str(self.socket(host))]), "--"]
            if shimmed and self._shimmed
            else []
        )
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        program = Program(
            name,
            on_node(self.rig.hosts.namespace(host), [*launcher, *preload, *command]),
            {"PYTHONPATH": path, **(environment or {})},
        )
        self.programs.append(program)
        self._cleanup.callback(program.kill)
        return program

    def wait(self, condition: Callable[[], object], program: Program, what: str, limit_s: float = START_S) -> None:
        """LinkError when the program ends or the time is over before the condition holds."""
        end_s = time.monotonic() + limit_s
        while not condition():
            if program.ended or time.monotonic() > end_s:
                how = f"ended with code {program.process.returncode}" if program.ended else f"takes over {limit_s:g} s"
                raise LinkError(f"{program.name} did not {what}: {how}. Its output: {program.output() or 'nothing'}")
            time.sleep(POLL_S)

    def moved(self, host: str, program: Program) -> dict[str, Moved]:
        return moved(self.rig.hosts.namespace(host), program.process.pid)

    def check(self, *programs: Program) -> None:
        """LinkError when one of them has ended."""
        for program in programs:
            if program.ended:
                raise LinkError(
                    f"{program.name} ended with code {program.process.returncode}. Its output: {program.output()}"
                )


def configuration(mode: str, rate_bits_per_s: float, rules: str, lanes: bool) -> str:
    """The daemon's file: its defaults, the link's rate, and `rules`; with `lanes` NCCL and KV travel in classes of
    their own."""
    lines = [f'mode = "{mode}"', 'log_level = "warning"']
    lines += ["[wire]", f'profile = "{POLICY}"'] if lanes else []
    lines += [f"[nic.{DEVICE}]", f'rate = "{round(rate_bits_per_s / 1e3)}kbit"', ""]
    if lanes:
        rules = rules.replace('stage = "p2d"\n', f'stage = "p2d"\nclass = {KV_CLASS}\n') + NCCL_LANES + MOONCAKE_LANE
    return "\n".join(lines) + rules


NCCL_LANES = "".join(
    f'[[rule]]\nrole = "nccl-{role}"\naction = "pass"\nstage = "{stage}"\nclass = {COLLECTIVE_CLASS}\n'
    for role, stage in (("data", "collective"), ("cts", "control"), ("flush", "control"))
)
MOONCAKE_LANE = (
    f'[[rule]]\nlibrary = "engine.so"\naction = "hold"\nstage = "p2d"\nset_role = "kv"\nclass = {KV_CLASS}\n'
)


def perftest_version() -> str:
    output = subprocess.run(["ib_write_bw", "--version"], capture_output=True, text=True, check=False).stdout
    return output.strip().removeprefix("Version:").strip() or "unknown"
