"""A running program (--pid): the shim is in it, it is the only way to libibverbs, and the daemon schedules it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from mfsd.node.control import ClientStatus
from mfsd.observe.doctor.elf import read_elf
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host
from mfsd.observe.doctor.running import Mapped, device_files, mapped_files
from nccl_shim.run import LIBRARY

TITLE = "Running program"
AT_SECURE = 23

GONE = Kind(
    "process.gone",
    "unknown",
    "There is no such process here, so it was not examined.",
    "give the number of a running process, as this PID namespace counts them",
)
UNREADABLE = Kind(
    "process.unreadable",
    "unknown",
    "This user may not read what the process has mapped.",
    "run the doctor as root or as the program's user",
)
NOT_PRELOADED = Kind(
    "process.not-preloaded",
    "fail",
    "The shim is not in this process: everything it sends is unscheduled.",
    "start it with mfs-run; if it was, a program in between cleaned the environment (see program.drops-environment)",
)
SECURE = Kind(
    "process.secure",
    "fail",
    "The kernel marked the process as privileged (setuid, setgid or file capabilities), so the loader drops the shim.",
    "start a file without setuid and capabilities",
)
STALE = Kind(
    "process.old-shim",
    "warn",
    "The shim in this process is not the one installed now; it stays until the program restarts.",
    "restart the program after an upgrade",
)
STATIC = Kind(
    "process.static-verbs",
    "fail",
    "A file mapped by the process contains a copy of libibverbs; queue pairs made through it are not seen.",
    "use a build of that library that links or loads the system's libibverbs",
)
COPIES = Kind(
    "process.several-verbs",
    "info",
    "The process has several copies of libibverbs; the shim follows each that is opened through it.",
)
NOT_ATTACHED = Kind(
    "process.not-attached",
    "fail",
    "The shim is in the process, but the daemon does not know the process.",
    "it attaches when it opens an RDMA device; if it has one open, compare MFS_SOCKET, see daemon.refusals and its "
    "standard error (lines that start with mfs:)",
)
IDLE = Kind(
    "process.no-device",
    "info",
    "The process has the shim and has not opened an RDMA device yet; it attaches when it does.",
    "ask again when it has connected",
)
DETACHED = Kind(
    "process.detached",
    "fail",
    "The daemon gave the process up; it runs on unscheduled and attaches again by itself if it can.",
    "see the daemon's log for the reason",
)
UNSEEN = Kind(
    "process.unseen-device",
    "fail",
    "The process has an RDMA device open past the shim (RTLD_DEEPBIND, a copy of libibverbs, direct verbs, or opened "
    "before a fork).",
    "look at process.static-verbs and bypass findings; dlopen the library without RTLD_DEEPBIND",
)
BYPASSES = Kind(
    "process.bypasses",
    "warn",
    "Some of its requests were posted without a permit: held too long, no slot, or the daemon was gone.",
    "mfsctl status shows the counts; raise arbiter.max_hold or tasks_max if they grow, check the daemon if stale grows",
)
SCHEDULED = Kind("process.scheduled", "ok", "The process is attached, and the daemon schedules its queue pairs.")


def run(host: Host) -> Iterator[Finding]:
    if host.pid is None:
        return
    subject = f"pid {host.pid}"
    folder = host.proc / str(host.pid)
    if not folder.exists():
        yield GONE(f"{folder} does not exist", subject)
        return
    try:
        mapped = mapped_files(folder)
    except OSError as error:
        yield UNREADABLE(f"{folder / 'maps'}: {error.strerror}", subject)
        return
    shims = [m for m in mapped if m.path.name == LIBRARY.name]
    yield from _copies(mapped, subject)
    if not shims:
        if _secure(folder):
            yield SECURE("AT_SECURE is set in its auxiliary vector", subject)
        else:
            yield NOT_PRELOADED(_why_not(host.program_environ[1]), subject)
        return
    yield from _stale(shims[0], subject)
    yield from _attached(host, folder, subject)


def _why_not(environ: Mapping[str, str]) -> str:
    named = environ.get("LD_PRELOAD", "")
    if LIBRARY.name in named:
        return f"{LIBRARY.name} is not mapped although it was started with LD_PRELOAD={named}"
    return f"{LIBRARY.name} is not mapped, it was started with LD_PRELOAD={named or '(unset)'}"


def _secure(folder: Path) -> bool:
    try:
        data = (folder / "auxv").read_bytes()
    except OSError:
        return False
    pairs = dict(struct.iter_unpack("=QQ", data[: len(data) // 16 * 16]))
    return bool(pairs.get(AT_SECURE))


def _stale(shim: Mapped, subject: str) -> Iterator[Finding]:
    if shim.deleted:
        yield STALE(f"{shim.path} was replaced since the process started", subject)
    elif shim.path != LIBRARY and not _same(shim.path, LIBRARY):
        yield STALE(f"it maps {shim.path}, installed is {LIBRARY}", subject)


def _same(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False


def _copies(mapped: list[Mapped], subject: str) -> Iterator[Finding]:
    libraries = {str(m.path) for m in mapped if m.path.name.startswith("libibverbs")}
    if len(libraries) > 1:
        yield COPIES(", ".join(sorted(libraries)), subject)
    for m in mapped:
        try:
            elf = read_elf(m.path)
        except (OSError, ValueError):
            continue
        if elf and elf.carries_verbs:
            yield STATIC(f"{m.path} contains the messages of libibverbs' device discovery", subject)


def _attached(host: Host, folder: Path, subject: str) -> Iterator[Finding]:
    daemon = host.daemon()
    if daemon is None:
        return  # daemon.unreachable reports it
    assert host.pid is not None
    clients = {c.pid: c for c in daemon.clients}
    client = clients.get(host.pid)
    opened = device_files(folder)
    if client is None:
        if opened:
            yield NOT_ATTACHED(f"{', '.join(opened)} open; not among {len(clients)} attached programs", subject)
        else:
            yield IDLE(f"no RDMA device open; not among {len(clients)} attached programs", subject)
    elif client.state != "active":
        yield DETACHED(f"given up by the daemon: {client.detach_reason}", subject)
    elif opened and not client.nics:
        yield UNSEEN(f"{', '.join(opened)} open; the daemon got no NIC", subject)
    else:
        yield from _scheduled(client, subject)


def _scheduled(client: ClientStatus, subject: str) -> Iterator[Finding]:
    bypassed = {
        "overflow": client.bypassed_overflow,
        "hold limit": client.bypassed_hold,
        "daemon gone": client.bypassed_stale,
    }
    if any(bypassed.values()):
        yield BYPASSES(", ".join(f"{why} {count}" for why, count in bypassed.items() if count), subject)
    pairs = ", ".join(f"{count} {role}" for role, count in client.queue_pairs.items() if count) or "none"
    yield SCHEDULED(
        f"client {client.client_id} on {', '.join(client.nics) or 'no NIC yet'}; queue pairs: {pairs}; "
        f"{client.permits} permits, {sum(client.posted_bytes.values())} bytes posted",
        subject,
    )
