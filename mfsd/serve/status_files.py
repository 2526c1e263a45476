"""Where engines leave their status files, and how one is opened: for those who read them without an engine."""

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
"""Its inode (Linux' PROC_PID_INIT_INO)."""
STARTED_SLACK_S: Final = 60.0
"""By so much the wall clock may have been set since a file was written."""


def own_folder() -> Path:
    """Where this user's engines write: $MFS_SERVE_STATUS, else the user's run folder, else one of its own in /tmp."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "mfs-serve" if runtime else Path(f"/tmp/mfs-serve-{os.geteuid()}")


def pid_namespace() -> int:
    """The inode of the process numbers that this process sees, unique on the node; 0 where there is no /proc."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def process_name() -> str:
    """This process as no other of the node is called: containers number their processes by themselves, each from 1."""
    namespace = pid_namespace()
    return f"{os.getpid()}" if namespace in (0, HOST_PID_NAMESPACE) else f"{os.getpid()}.{namespace}"


def still_runs(pid: int, written_s: float, now_s: float) -> bool:
    """Whether the process that wrote a file then is still there: else the number is no process' or another one's by
    now."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return now_s - age_s <= written_s + STARTED_SLACK_S


def folders() -> list[Path]:
    """Where engines may have written that this user may read: its own folder, and for root those of all users."""
    found = [own_folder()]
    if os.geteuid() == 0 and FOLDER_VARIABLE not in os.environ:
        found += [*sorted(Path("/run/user").glob("*/mfs-serve")), *sorted(Path("/tmp").glob("mfs-serve-*"))]
    return list(dict.fromkeys(found))


def open_regular(path: str | Path, folder: int | None = None) -> int:
    """A descriptor of a file that may have been left there by anyone: no link is followed, and a pipe does not block.
    folder: of the folder that `path` is in. OSError, or ValueError where it is no regular file."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("not a regular file")
    return handle


def read_regular(path: Path, most: int) -> bytes:
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)
