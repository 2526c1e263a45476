"""Finds and opens the status files of engines, for readers outside an engine."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final

FORMAT: Final = 1
FOLDER_VARIABLE: Final = "MFS_SERVE_STATUS"
SUFFIX: Final = ".json"
HOST_PID_NAMESPACE: Final = 0xEFFFFFFC
"""Inode of the host's PID namespace (Linux' PROC_PID_INIT_INO)."""
STARTED_SLACK_S: Final = 60.0
"""How far the wall clock may have been set since a file was written."""


def own_folder() -> Path:
    """Returns the folder of this user's engines: $MFS_SERVE_STATUS, else the user's run folder, else one in /tmp."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "mfs-serve" if runtime else Path(f"/tmp/mfs-serve-{os.geteuid()}")


def pid_namespace() -> int:
    """Returns the inode of this process's PID namespace, which is unique on the node; 0 if there is no /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def process_name() -> str:
    """Returns a name of this process that is unique on the node. The process id is not, since each container counts
    its processes from 1."""
    namespace = pid_namespace()
    return f"{os.getpid()}" if namespace in (0, HOST_PID_NAMESPACE) else f"{os.getpid()}.{namespace}"


def still_runs(pid: int, written_s: float, now_s: float) -> bool:
    """Whether the process that wrote a file at that time still runs. Otherwise its number belongs to no process, or by
    now to another one."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now_s - age_s <= written_s + STARTED_SLACK_S


def folders() -> list[Path]:
    """Returns the folders in which this user may read files of engines: its own, and for root those of all users."""
    found = [own_folder()]
    if os.geteuid() == 0 and FOLDER_VARIABLE not in os.environ:
        found += [*sorted(Path("/run/user").glob("*/mfs-serve")), *sorted(Path("/tmp").glob("mfs-serve-*"))]
    return list(dict.fromkeys(found))


def open_regular(path: str | Path, folder: int | None = None) -> int:
    """Opens a file that any user may have put there, and returns its descriptor. No link is followed, and a pipe does
    not block. folder: descriptor of the folder of `path`. OSError, or ValueError if it is no regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("not a regular file")
    return handle


def read_regular(path: Path, most: int) -> bytes:
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)
