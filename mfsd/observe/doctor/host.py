"""How checks read this host. Tests give other roots and answers."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mfsd.fabric.dcb import Exchange
from mfsd.fabric.policy import Profile
from mfsd.node.control import RulesReply, RulesRequest, StatusReply, StatusRequest
from mfsd.node.control_client import Refused, Unreachable, ask
from mfsd.node.nics import port_rate
from mfsd.verbs.ask import Devices, Gid, Message, Port, VerbsFailed, VerbsMissing, ask_devices, ask_message

COMMAND_S = 20.0
NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


class NoAnswer(Exception):
    """A program that a check runs is missing, failed, or took too long. The text says which."""


def run_program(argv: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Returns a program's standard output. Raises NoAnswer."""
    try:
        result = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except FileNotFoundError as error:
        raise NoAnswer(f"{argv[0]} is not installed") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise NoAnswer(f"{argv[0]}: {getattr(error, 'strerror', None) or error}") from error
    if result.returncode:
        output = " ".join(result.stderr.split())[-300:]
        raise NoAnswer(f"{argv[0]} ended with {result.returncode}" + (f": {output}" if output else ""))
    return result.stdout


@dataclass
class Host:
    """What is examined, and where it is read.

    Given are: ``socket`` where programs attach, ``control`` where the daemon is asked, ``policy_name`` and ``profile``
    of the fabric, ``pid`` of a running program, ``command`` that is to run, ``peer`` address, ``interfaces`` (none:
    those of the RDMA devices) and ``coordinators`` as HOST:PORT.
    """

    socket: Path
    control: Path
    policy_name: str
    profile: Profile
    port_group: str | None = None
    pid: int | None = None
    command: tuple[str, ...] = ()
    peer: str | None = None
    interfaces: tuple[str, ...] = ()
    coordinators: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    dev: Path = Path("/dev")
    configfs: Path = Path("/sys/kernel/config")
    exchange: Exchange | None = None
    """DCB netlink; None: the kernel's."""
    run: Callable[[list[str]], str] = run_program
    try_verbs: bool = False
    """Whether to move a message over each port."""
    verbs: Callable[[], Devices] = ask_devices
    verbs_message: Callable[[str, int, int, int], Message] = ask_message
    """Takes a device, port, GID index and DSCP."""
    probed: dict[tuple[str, ...], object] = field(default_factory=dict)
    """The probe's answers (:mod:`mfsd.observe.doctor.launching`), by the libraries that it loaded."""

    @functools.cached_property
    def status(self) -> StatusReply:
        """The daemon's status. Raises Unreachable or Refused, anew each time."""
        reply = ask(self.control, StatusRequest())
        if not isinstance(reply, StatusReply):
            raise Unreachable(f"mfsd at {self.control} answered {type(reply).__name__}: is this another version?")
        return reply

    @functools.cached_property
    def rules(self) -> RulesReply | None:
        """The rules in force, or None without a daemon."""
        try:
            reply = ask(self.control, RulesRequest())
        except (Unreachable, Refused):
            return None
        return reply if isinstance(reply, RulesReply) else None

    def daemon(self) -> StatusReply | None:
        try:
            return self.status
        except (Unreachable, Refused):
            return None

    @functools.cached_property
    def devices(self) -> list[str]:
        """Names of the RDMA devices that sysfs shows."""
        return names_in(self.sys / "class/infiniband")

    @functools.cached_property
    def verbs_devices(self) -> Devices:
        """The devices by libibverbs. Raises VerbsMissing or VerbsFailed, anew each time."""
        return self.verbs()

    def port(self, device: str, number: int) -> Port:
        """A port by libibverbs, or by sysfs if libibverbs cannot be asked."""
        try:
            found = self.verbs_devices.devices.get(device)
        except (VerbsMissing, VerbsFailed):
            found = None
        return (found and found.ports.get(number)) or port_in_sysfs(self.sys, device, number)

    def netdevs(self, device: str) -> list[str]:
        """Network interfaces whose addresses are GIDs of the device, or that share its PCI function."""
        found: dict[str, None] = {}
        for file in sorted((self.sys / "class/infiniband" / device / "ports").glob("*/gid_attrs/ndevs/*")):
            if (name := read_line(file)) and (self.sys / "class/net" / name).exists():
                found[name] = None
        for name in names_in(self.sys / "class/infiniband" / device / "device/net"):
            found[name] = None
        return list(found)

    @functools.cached_property
    def links(self) -> list[str]:
        """The interfaces to examine: those given, else those behind RDMA devices. Loopback is no NIC."""
        found = self.interfaces or [n for device in self.devices for n in self.netdevs(device) if n != "lo"]
        return list(dict.fromkeys(found))

    @functools.cached_property
    def program_environ(self) -> tuple[str, Mapping[str, str]]:
        """The environment that programs get, and whose it is: that of ``pid`` at its start, else this shell's."""
        if self.pid is None:
            return "this shell", self.environ
        try:
            data = (self.proc / str(self.pid) / "environ").read_bytes()
        except OSError:
            return f"pid {self.pid}", {}
        pairs = (entry.partition(b"=") for entry in data.split(b"\0") if entry)
        return f"pid {self.pid}", {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}

    @functools.cached_property
    def environ_problem(self) -> str:
        """Why ``program_environ`` could not be read; empty when it was."""
        if self.pid is None:
            return ""
        file = self.proc / str(self.pid) / "environ"
        try:
            file.read_bytes()
        except OSError as error:
            return f"{file}: {error.strerror}"
        return ""


def port_in_sysfs(sysfs: Path, device: str, number: int) -> Port:
    """A port as sysfs shows it. The MTU in use is not there (0)."""
    folder = sysfs / "class/infiniband" / device / "ports" / str(number)
    indices = sorted(int(name) for name in names_in(folder / "gid_attrs/types") if name.isdigit())
    gids = {
        index: Gid(gid, kind)
        for index in indices
        if (kind := read_line(folder / "gid_attrs/types" / str(index)))
        and (gid := read_line(folder / "gids" / str(index))) not in ("", NO_GID)
    }
    state = read_line(folder / "state").rpartition(": ")[2]
    return Port(state, read_line(folder / "link_layer"), port_rate(folder), 0, gids)


def version() -> str:
    """The version of this installation."""
    return importlib.metadata.version("mfsd")


def read_line(path: Path) -> str:
    """The stripped text of a small file; empty if it cannot be read, as with missing files of sysfs."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def names_in(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []
