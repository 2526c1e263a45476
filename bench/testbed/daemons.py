"""MFS itself in a leg: a daemon on every host that posts work requests, and the coordinator beside the fabric."""

from __future__ import annotations

import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from bench.testbed.hosts import CONTROL_ADDRESS, POLICY, Hosts
from bench.testbed.modes import Mode
from bench.testbed.processes import LegError
from bench.testbed.scale import Scale
from mfsd.node.config import Config, PolicyKeys
from mfsd.node.schema import keys
from mfsd.node.values import DurationNs
from mfsd.playground.program import Program

COORDINATOR_PORT = 7400
START_TIMEOUT_S = 60.0
MAX_HOLD_S = 5
"""The longest allowed: links here are slower than real ones by a larger factor than this is above the default."""
STALE_AFTER = "500ms"
"""A few busy cores carry seven hosts and may stall themselves, so a late heartbeat means less than on a node."""
WINDOW_MESSAGES = 4
"""Messages permitted and not completed in each direction of a NIC, as in the simulator."""
DEFAULTS = Config()
STRETCH_MOST = 10.0
"""Limit of the stretching of MFS's own periods: a coordinator's heartbeat above 10 s cannot be configured."""


class Daemons:
    """The daemons of a mode's leg, ended with the `with` block. Starts nothing for modes that schedule nothing."""

    def __init__(self, hosts: Hosts, names: list[str], mode: Mode, device: str, scale: Scale, web: str = "") -> None:
        """`web`: address where the coordinator answers routers; empty: none."""
        self._web = web
        self._hosts, self._names, self._mode = hosts, names, mode
        self._device, self._scale = device, scale
        self._cleanup = ExitStack()
        self.nodes: dict[str, Program] = {}
        self.coordinator: Program | None = None

    def __enter__(self) -> Daemons:
        if self._mode.scheduled:
            try:
                self._start()
            except BaseException:
                self._cleanup.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def socket(self, host: str) -> Path:
        return self._hosts.folder / "run" / f"{host}.sock"

    def cpu_s(self) -> float:
        """Returns the processor time of all daemons and the coordinator so far."""
        programs = [*self.nodes.values(), *([self.coordinator] if self.coordinator else [])]
        return sum(p.cpu_s() for p in programs)

    def check(self) -> None:
        """Raises LegError if one has ended by itself."""
        for program in (*self.nodes.values(), *([self.coordinator] if self.coordinator else [])):
            if program.ended:
                raise LegError(
                    f"{program.name} ended with code {program.process.returncode}. Its output: {program.output()}"
                )

    def _start(self) -> None:
        if self._mode.coordinator:
            self.start_coordinator()
        for host in self._names:
            self.start_node(host)
        for host in self._names:
            self._wait(self.nodes[host], self.socket(host).exists)
        if self.coordinator:
            self._wait(self.coordinator, _listens)

    def start_node(self, host: str) -> None:
        """Starts a host's daemon, also after it was killed."""
        config = self._hosts.folder / f"{host}.toml"
        config.write_text(self._configuration(host))
        self.socket(host).unlink(missing_ok=True)
        inside = ["ip", "netns", "exec", self._hosts.namespace(host)]
        # Under the launcher, so that the daemon finds the NIC in sysfs as it would a real one.
        device = [_tool("mfs-soft-roce"), "--netdev", "eth0", "--device", self._device, "--"]
        command = [_tool("mfsd"), "--config", str(config), "--socket", str(self.socket(host))]
        if self._mode.coordinator:
            command += ["--coordinator-address", f"{CONTROL_ADDRESS}:{COORDINATOR_PORT}"]
        program = Program(f"mfsd on {host}", [*inside, *device, *command], {})
        self._cleanup.callback(program.stop)
        self.nodes[host] = program

    def start_coordinator(self) -> None:
        config = self._hosts.folder / "coordinator.toml"
        # Ports that no daemon reports (the pool's, the decode workers') are as fast as all others.
        heartbeat = stretched(DEFAULTS.coordinator.heartbeat_ns, self._scale)
        web = f'web = "{self._web}"\n' if self._web else ""
        config.write_text(
            self._policy() + f'[coordinator]\nrate_default = "{self._rate()}"\nheartbeat = "{heartbeat}"\n{web}'
        )
        listen = f"{CONTROL_ADDRESS}:{COORDINATOR_PORT}"
        command = [_tool("mfsd"), "--coordinator", "--listen", listen, "--advertise", listen, "--config", str(config)]
        self.coordinator = Program("the coordinator", command, {})
        self._cleanup.callback(self.coordinator.stop)

    def _policy(self) -> str:
        by_attribute = {key.attribute: key for key in keys(PolicyKeys)}
        lines = []
        for name, value in (self._mode.policy or {}).items():
            key = by_attribute[name]
            is_duration = isinstance(key.default, DurationNs)
            written = str(DurationNs(round(value * self._scale.time))) if is_duration else value
            lines.append(f"{key.name} = {_toml(written)}")
        return "\n".join(["[policy]", *lines, ""])

    def _rate(self) -> str:
        return f"{round(self._scale.link_bits_per_s / 1e3)}kbit"

    def _configuration(self, host: str) -> str:
        window_us = round(WINDOW_MESSAGES * self._scale.message_bytes * 8e6 / self._scale.link_bits_per_s)
        wire = f'[wire]\nprofile = "{POLICY}"\n' if self._mode.apart else ""
        return (
            f'log_level = "warning"\n[arbiter]\nwindow = "{window_us}us"\nstale_after = "{STALE_AFTER}"\n'
            f'max_hold = "{MAX_HOLD_S}s"\n'
            f'heartbeat = "{stretched(DEFAULTS.arbiter.heartbeat_ns, self._scale)}"\n'
            f'{wire}[nic.{self._device}]\nrate = "{self._rate()}"\n'
            f'[cluster]\nnode = "{host}"\nunit = "{host.partition("r")[0]}"\n'
            f'ttl = "{stretched(DEFAULTS.cluster.ttl_ns, self._scale)}"\n' + self._policy()
        )

    def _wait(self, program: Program, condition: object) -> None:
        end = time.monotonic() + START_TIMEOUT_S
        assert callable(condition)
        while not condition():
            if program.ended or time.monotonic() > end:
                raise LegError(f"{program.name} did not start. Its output: {program.output() or 'nothing'}")
            time.sleep(0.02)


def stretched(default_ns: float, scale: Scale) -> str:
    """Returns a period of MFS for its configuration. It is stretched like all other times; otherwise MFS's periodic
    work would be related to too few bytes."""
    return f"{round(default_ns / 1e3 * min(max(scale.time, 1.0), STRETCH_MOST))}us"


def _listens() -> bool:
    try:
        socket.create_connection((CONTROL_ADDRESS, COORDINATOR_PORT), 1).close()
    except OSError:
        return False
    return True


def _tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
