"""Other programs of this host that use RDMA without the shim: what they send competes with what MFS schedules."""

from __future__ import annotations

from collections.abc import Iterator

from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, names_in
from mfsd.observe.doctor.running import device_files, mapped_files, name_of
from nccl_shim.run import LIBRARY

TITLE = "Other programs"
SOFT_ROCE = "libmfs-rdmav"
"""The soft RoCE device has no device file. Every program that looks for devices loads its provider."""

UNSCHEDULED = Kind(
    "others.unscheduled",
    "warn",
    "The program uses RDMA without the shim; the scheduler sees its bytes only as a slower NIC.",
    "start it with mfs-run, or keep it off this NIC",
)
HIDDEN = Kind(
    "others.hidden",
    "info",
    "Programs of other users cannot be examined.",
    "run the doctor as root, in a container also with CAP_SYS_PTRACE, to have them examined, too",
)
NONE = Kind("others.none", "ok", "No running program uses RDMA without the shim.")


def run(host: Host) -> Iterator[Finding]:
    hidden, examined, found = 0, 0, False
    for pid in (int(name) for name in names_in(host.proc) if name.isdigit()):
        folder = host.proc / str(pid)
        if pid == host.pid:
            continue
        try:
            names = {m.path.name for m in mapped_files(folder)}
        except PermissionError:
            hidden += 1
            continue
        except OSError:
            continue  # the process has ended
        examined += 1
        opened = device_files(folder)
        soft = sorted(name for name in names if name.startswith(SOFT_ROCE))
        if LIBRARY.name in names or not (opened or soft):
            continue
        found = True
        uses = ", ".join(opened or soft)
        yield UNSCHEDULED(f"{name_of(folder) or 'it'} uses {uses}", f"pid {pid}")
    if hidden:
        seen = "" if found else f"; none of the {examined} others uses RDMA without the shim"
        yield HIDDEN(f"{hidden} processes of other users{seen}")
    if not found and examined and not hidden:
        yield NONE(f"{examined} processes examined")
