"""Limits of the programs: locked memory, open files, and the shared memory that NCCL uses.

Those of --pid where given, else of this shell; and the daemon's own number of open files.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host

TITLE = "Limits"
MIB = 1 << 20
MEMLOCK_LEAST = 64 * MIB
SHM_LEAST, SHM_GOOD = 64 * MIB, 1024 * MIB
FILES_LEAST, FILES_GOOD = 256, 4096
FILES_PER_CLIENT = 6
CAP_IPC_LOCK = 14

MEMLOCK = Kind(
    "limits.memlock",
    "fail",
    "The limit of locked memory is too low for RDMA to register its buffers (ibv_reg_mr: ENOMEM).",
    "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1",
)
MEMLOCK_BOUND = Kind(
    "limits.memlock-bound",
    "warn",
    "Locked memory is limited: a large KV cache cannot be registered.",
    "ulimit -l unlimited; systemd: LimitMEMLOCK=infinity; docker: --ulimit memlock=-1",
)
SHM = Kind(
    "limits.shm",
    "fail",
    "/dev/shm is missing or so small that NCCL cannot start (MFS itself does not use it).",
    "docker: --shm-size 16g or --ipc host; Kubernetes: an emptyDir of medium Memory on /dev/shm",
)
SHM_SMALL = Kind(
    "limits.shm-small",
    "warn",
    "/dev/shm is small for NCCL with several GPUs.",
    "docker: --shm-size 16g; mount -o remount,size=16g /dev/shm",
)
FILES = Kind(
    "limits.files",
    "fail",
    "The limit of open files is so low that RDMA programs fail with EMFILE.",
    "ulimit -n 65536; systemd: LimitNOFILE=65536",
)
FILES_FEW = Kind(
    "limits.files-few",
    "warn",
    "The limit of open files is low; every RDMA connection, completion channel and socket needs one.",
    "ulimit -n 65536; systemd: LimitNOFILE=65536",
)
DAEMON_FILES = Kind(
    "limits.daemon-files",
    "warn",
    "The daemon's limit of open files is too low for the programs of this node: later programs cannot attach.",
    "LimitNOFILE=65536 in mfsd.service",
)
UNREADABLE = Kind("limits.unreadable", "unknown", "The limits of the process cannot be read.", "run the doctor as root")
ENOUGH = Kind("limits.enough", "ok", "Locked memory, shared memory and open files suffice.")


def run(host: Host) -> Iterator[Finding]:
    subject = f"pid {host.pid}" if host.pid is not None else "this shell"
    folder = host.proc / (str(host.pid) if host.pid is not None else "self")
    try:
        limits = read_limits(folder)
    except OSError as error:
        yield UNREADABLE(f"{folder / 'limits'}: {error.strerror}", subject)
        return
    memlock, files = limits.get("Max locked memory", 0), limits.get("Max open files", 0)
    problems = [*_memlock(memlock, _may_lock(folder), subject), *_files(files, subject), *_shm(host), *_daemon(host)]
    yield from problems
    if not problems:
        locked = "unlimited" if memlock == resource.RLIM_INFINITY else f"{memlock} bytes, exempt by CAP_IPC_LOCK"
        yield ENOUGH(f"locked memory {locked}; open files {files}; /dev/shm {_shm_bytes(host) // MIB} MiB", subject)


def read_limits(folder: Path) -> dict[str, int]:
    """Soft limits of a process by the names of /proc/PID/limits; RLIM_INFINITY for unlimited. Raises OSError."""
    found = {}
    for line in (folder / "limits").read_text().splitlines()[1:]:
        name, value = line[:26].strip(), line[26:47].strip()
        found[name] = resource.RLIM_INFINITY if value == "unlimited" else int(value)
    return found


def _may_lock(folder: Path) -> bool:
    """Whether CAP_IPC_LOCK lifts the limit. Root has it on the host, but not in most containers."""
    try:
        lines = (folder / "status").read_text().splitlines()
    except OSError:
        return False
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(effective >> CAP_IPC_LOCK & 1)


def _memlock(limit: int, exempt: bool, subject: str) -> Iterator[Finding]:
    if limit == resource.RLIM_INFINITY or exempt:
        return
    yield (MEMLOCK if limit < MEMLOCK_LEAST else MEMLOCK_BOUND)(f"RLIMIT_MEMLOCK is {limit // 1024} KiB", subject)


def _files(limit: int, subject: str) -> Iterator[Finding]:
    if limit != resource.RLIM_INFINITY and limit < FILES_GOOD:
        yield (FILES if limit < FILES_LEAST else FILES_FEW)(f"RLIMIT_NOFILE is {limit}", subject)


def _shm_bytes(host: Host) -> int:
    try:
        found = os.statvfs(host.dev / "shm")
    except OSError:
        return 0
    return found.f_frsize * found.f_bavail


def _shm(host: Host) -> Iterator[Finding]:
    free = _shm_bytes(host)
    if free < SHM_GOOD:
        yield (SHM if free < SHM_LEAST else SHM_SMALL)(f"{host.dev / 'shm'}: {free // MIB} MiB free")


def _daemon(host: Host) -> Iterator[Finding]:
    daemon = host.daemon()
    if daemon is None:
        return
    try:
        limit = read_limits(host.proc / str(daemon.daemon.pid)).get("Max open files", 0)
    except OSError:
        return
    needed = 64 + FILES_PER_CLIENT * (len(daemon.clients) + 16)
    if limit != resource.RLIM_INFINITY and limit < needed:
        yield DAEMON_FILES(f"RLIMIT_NOFILE of mfsd is {limit}; {len(daemon.clients)} programs attached", "mfsd")
