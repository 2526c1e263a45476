"""The node daemon: it answers, it is of this version and ABI, it may hold, and it lets programs attach."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from mfsd import _native
from mfsd.node.abi import DAEMON, skewed, without
from mfsd.node.control import StatusReply
from mfsd.node.control_client import Forbidden, Refused, Unreachable
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, names_in, read_line, version

TITLE = "Daemon"
ATTACH_S = 2.0
POLICY_FIELD = 38
"""Field of /proc/PID/task/TID/stat, counted after the name."""
REAL_TIME = ("1", "2")
"""SCHED_FIFO, SCHED_RR."""

UNREACHABLE = Kind(
    "daemon.unreachable",
    "fail",
    "No daemon answers on the socket: programs under mfs-run go on as if MFS were not there.",
    "start it: systemctl start mfsd; or name its socket with --socket or MFS_SOCKET",
)
NO_CONTROL = Kind(
    "daemon.control-out-of-reach",
    "unknown",
    "A daemon's state cannot be read here: its control socket is in a folder of its own, which containers do not "
    "mount, or this user may not open it.",
    "run mfsctl on the node, as root or as a member of the socket's group, or in the daemon's pod; elsewhere name the "
    "socket of socket.control with --control",
)
DENIED = Kind(
    "daemon.attach-refused",
    "fail",
    "The daemon does not let this user attach, so programs of this user run unscheduled.",
    "let the user open the socket (socket.group, socket.mode); where socket.allowed_uids or socket.allowed_gids is "
    "set, add the user or its group; or run as another user",
)
ABI = Kind(
    "daemon.abi",
    "fail",
    "Daemon and shim lay out shared memory differently: the daemon refuses every program of this installation.",
    "install the same MFS version for both, then restart mfsd and the programs",
)
SKEW = Kind(
    "daemon.abi-minor",
    "warn",
    "Programs and daemon have different minor versions: the programs are scheduled, but without what the older side "
    "lacks.",
    "upgrade mfsd first, then restart the programs with the same version",
)
VERSION = Kind(
    "daemon.version",
    "warn",
    "Daemon and installation have different versions. They understand each other, but may behave differently.",
    "restart mfsd after an upgrade: systemctl restart mfsd",
)
OFF = Kind(
    "daemon.off", "fail", "The daemon's mode is off: the shim does nothing.", 'set mode = "enforce" and reload mfsd'
)
OBSERVE = Kind(
    "daemon.observe",
    "warn",
    "The daemon only counts and times: nothing waits for a permit, and queue pairs keep their own DSCP.",
    "mfsctl mode enforce",
)
REFUSALS = Kind(
    "daemon.refusals",
    "warn",
    "Programs tried to attach and were turned away since the daemon started; they run unscheduled.",
    "see the daemon's log for pid, user and reason",
)
UNMARKED = Kind(
    "daemon.no-dscp",
    "warn",
    "No rule writes a DSCP: MFS orders what this host posts, and the network between hosts sees one class.",
    "set wire.profile and rules with `class` in mfsd.toml (mfsctl switch policy lists profiles)",
)
FOREIGN_DSCP = Kind(
    "daemon.foreign-dscp",
    "fail",
    "A rule writes a DSCP that the fabric policy does not know: switches treat those packets as best effort.",
    "use the DSCPs of the policy, or give the policy that the switches run with --profile and --policy-file",
)
ONE_CPU = Kind(
    "daemon.one-cpu",
    "warn",
    "The arbiter is a real-time thread, and the thread that writes its heartbeats when they are late may use no CPU "
    "but the arbiter's: programs mistake a long turn for the daemon's death and post what they hold.",
    "name two CPUs in arbiter.cpus, or let mfsd use two, then restart it",
)
ANSWERS = Kind("daemon.answers", "ok", "The daemon answers, lets this user attach, and enforces.")


def run(host: Host) -> Iterator[Finding]:
    try:
        status = host.status
    except Forbidden as error:  # whether its programs are let in is known all the same
        yield from _attach(host)
        yield NO_CONTROL(str(error))
        return
    except Unreachable as error:
        attaches = not list(_attach(host))
        yield (NO_CONTROL if attaches else UNREACHABLE)(str(error))
        return
    except Refused as error:
        yield UNREACHABLE(f"mfsd at {host.control} refuses to say its state: {error}")
        return
    problems = [*_attach(host), *_skew(status), *_mode(status), *_refusals(status), *_marks(host)]
    problems += one_cpu(host, status.daemon.pid)
    here, there = version(), status.daemon.version
    if here != there:
        problems.append(VERSION(f"mfsd is version {there}, this installation {here}"))
    yield from problems
    if not any(p.severity == "fail" for p in problems):
        yield ANSWERS(
            f"mfsd {there} (pid {status.daemon.pid}, mode {status.daemon.mode}) at {host.socket}, "
            f"{len(status.clients)} programs attached"
        )


def _attach(host: Host) -> Iterator[Finding]:
    """Attaches as a program would, with this installation's own greeting, and detaches at once."""
    hello = _native.hello_encode(_native.HelloKind.ATTACH, pid=os.getpid(), mode=1, process="mfsctl-doctor")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(ATTACH_S)
            connection.connect(str(host.socket))
            connection.send(hello)
            packet, descriptors, _, _ = socket.recv_fds(connection, _native.WELCOME_BYTES, 2)
            for descriptor in descriptors:
                os.close(descriptor)
    except OSError as error:
        yield DENIED(f"attaching at {host.socket} failed: {error.strerror or error}")
        return
    try:
        welcome = _native.welcome_decode(packet)
    except ValueError as error:
        yield ABI(f"mfsd's welcome cannot be read: {error}")
        return
    ours = (_native.ABI_MAJOR, _native.SEGMENT_BYTES)
    same_minor = welcome.minor == _native.ABI_MINOR  # the segment of another minor may be longer or shorter
    if (welcome.major, (same_minor and welcome.segment_bytes) or _native.SEGMENT_BYTES) != ours:
        yield ABI(
            f"mfsd speaks ABI {welcome.major}.{welcome.minor} with {welcome.segment_bytes} bytes a program, this "
            f"installation {_native.ABI_MAJOR}.{_native.ABI_MINOR} with {_native.SEGMENT_BYTES}"
        )
    elif welcome.error == -errno.EPROTO:
        yield ABI(f"mfsd refused: {welcome.reason or os.strerror(errno.EPROTO)}")
    elif welcome.error:
        yield DENIED(f"mfsd refused: {welcome.reason or os.strerror(-welcome.error)}")
    elif not same_minor:
        theirs = f"{welcome.major}.{welcome.minor}"
        yield SKEW(
            f"programs of this installation speak ABI {DAEMON}, this daemon {theirs}: they do without {without(theirs)}"
        )


def _skew(status: StatusReply) -> Iterator[Finding]:
    daemon = status.daemon.abi
    for abi, programs in skewed((client.abi for client in status.clients), daemon).items():
        speak = "program speaks" if programs == 1 else "programs speak"
        yield SKEW(f"{programs} {speak} ABI {abi}, this daemon {daemon}: they do without {without(abi, daemon)}")


def _mode(status: StatusReply) -> Iterator[Finding]:
    if status.daemon.mode == "off":
        yield OFF("mode off")
    elif status.daemon.mode == "observe":
        yield OBSERVE("mode observe")


def _refusals(status: StatusReply) -> Iterator[Finding]:
    refused = {name: count for name, count in status.daemon.refused.items() if count}
    if refused:
        yield REFUSALS(", ".join(f"{count} with {name}" for name, count in refused.items()))


def one_cpu(host: Host, pid: int) -> Iterator[Finding]:
    threads = list(_threads(host.proc / str(pid) / "task"))
    arbiters = {cpus for name, cpus, real_time in threads if name == "mfs-arbiter" and real_time}
    beaters = {cpus for name, cpus, _ in threads if name == "mfs-heartbeat"}
    for cpus in sorted(arbiters & beaters):
        if cpus.isdigit():
            yield ONE_CPU(f"both threads of pid {pid} may use CPU {cpus} alone")


def _threads(tasks: Path) -> Iterator[tuple[str, str, bool]]:
    """Running threads: name, CPUs that it may use as Linux writes them, whether it is a real-time thread."""
    for thread in names_in(tasks):
        stat = read_line(tasks / thread / "stat").rpartition(")")[2].split()
        try:
            status = (tasks / thread / "status").read_text(errors="replace")
        except OSError:
            continue
        allowed = next((line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list:")), "")
        real_time = len(stat) > POLICY_FIELD and stat[POLICY_FIELD] in REAL_TIME
        yield read_line(tasks / thread / "comm"), allowed, real_time


def _marks(host: Host) -> Iterator[Finding]:
    if host.rules is None:
        return
    marks = {rule.dscp for rule in host.rules.rules if rule.dscp is not None}
    known = {d for c in host.profile.classes for d in (c.dscp, *c.also_dscp)} | set(host.profile.control.dscp)
    if not marks:
        yield UNMARKED(f"none of {len(host.rules.rules)} rules has a DSCP")
    elif foreign := sorted(marks - known):
        named = ", ".join(map(str, foreign))
        yield FOREIGN_DSCP(f"DSCP {named} in rules; policy {host.policy_name} has {sorted(known)}")
