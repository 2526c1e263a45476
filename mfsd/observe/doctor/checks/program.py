"""COMMAND: the loader will honour LD_PRELOAD for the file that is started. It is not run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mfsd.observe.doctor.elf import read_elf
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host
from mfsd.observe.doctor.launching import executable, interpreter
from nccl_shim.run import unreachable

TITLE = "Program"

NOT_FOUND = Kind("program.not-found", "fail", "There is no such program.", "check the name and PATH")
SECURE = Kind(
    "program.not-preloadable",
    "fail",
    "The loader ignores LD_PRELOAD for this program, so the shim is never mapped.",
    "use a dynamically linked build without setuid and file capabilities (getcap, setcap -r); give rights to the "
    "service instead (AmbientCapabilities=)",
)
STATIC = Kind(
    "program.static-verbs",
    "fail",
    "The program contains a copy of libibverbs and calls it directly; the shim cannot see these calls.",
    "link it with the system's libibverbs",
)
SANITIZED = Kind(
    "program.drops-environment",
    "warn",
    "The program starts others and cleans their environment: LD_PRELOAD and MFS_* do not reach them.",
    "put mfs-run after it: COMMAND ... mfs-run -- PROGRAM; or keep the variables (sudo --preserve-env)",
)
PRELOADABLE = Kind("program.preloadable", "ok", "The loader honours LD_PRELOAD for this program.")
CLEANING = (
    "sudo",
    "su",
    "runuser",
    "setpriv",
    "docker",
    "podman",
    "kubectl",
    "srun",
    "mpirun",
    "mpiexec",
    "ssh",
    "ray",
)


def run(host: Host) -> Iterator[Finding]:
    if not host.command:
        return
    program = executable(host)
    if program is None:
        yield NOT_FOUND(f"{host.command[0]}: not found in PATH", host.command[0])
        return
    if program.name in CLEANING:
        yield SANITIZED(f"{program.name} starts programs elsewhere or with an environment of their own", str(program))
    chain = [program]
    while (next_one := interpreter(chain[-1])) is not None and len(chain) < 4:
        chain.append(next_one)
    started = chain[-1]
    reason = unreachable(started) or ("has file capabilities" if _has_capabilities(started) else None)
    elf = read_elf(started)
    if reason:
        yield SECURE(f"{started} {reason}", host.command[0])
    elif elf and elf.carries_verbs:
        yield STATIC(f"{started} contains the messages of libibverbs' device discovery", host.command[0])
    else:
        yield PRELOADABLE(" -> ".join(map(str, chain)), host.command[0])


def _has_capabilities(file: Path) -> bool:
    try:
        return "security.capability" in os.listxattr(file)
    except OSError:
        return False
