"""Finds the container of a process, according to the kernel. Quotas go by it.

Root of one pod has the same uid as root of every other, and may become any uid inside. What tells pods apart is their
control group, which the container runtime makes, or the pid namespace if there is no group of a known form. Names that
an ordinary user can make up do not count: below `user.slice` users name groups as they like, and any user may make a
pid namespace together with a user namespace.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

NS_GET_USERNS = 0xB701
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?=[/:]|$)")
_CONTAINER = re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?=[/:]|$)")


def container_of(pid: int, proc: Path = Path("/proc")) -> str:
    """Pod, container or pid namespace of the process. Empty if it is in none, or in the daemon's own namespace."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError:
        return ""
    return container_in(groups) or _pid_namespace(pid, proc)


def container_in(groups: str) -> str:
    """The pod or container by the text of ``/proc/PID/cgroup`` alone. The outermost name counts: root of a container
    may make groups of any name further in."""
    paths = [line.split(":", 2)[2] for line in groups.splitlines() if line.count(":") >= 2]
    for what, pattern in (("pod", _POD), ("container", _CONTAINER)):
        for path in paths:
            outermost = next((folder for folder in path.split("/") if folder not in ("", "..")), "")
            if not outermost.startswith("user") and (match := pattern.search(path)):
                return f"{what} {match[1].replace('_', '-')}"
    return ""


def _pid_namespace(pid: int, proc: Path) -> str:
    """The pid namespace. Empty also if it cannot be read (without CAP_SYS_PTRACE), or if this daemon's user namespace
    does not own it: only one that it owns was made by root of the host."""
    try:
        found = os.open(proc / str(pid) / "ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            number = os.fstat(found).st_ino
            if number == (proc / "self/ns/pid").stat().st_ino:
                return ""
            owner = fcntl.ioctl(found, NS_GET_USERNS)
        finally:
            os.close(found)
        try:
            ours = os.fstat(owner).st_ino == (proc / "self/ns/user").stat().st_ino
        finally:
            os.close(owner)
    except OSError:
        return ""
    return f"pid namespace {number}" if ours else ""
