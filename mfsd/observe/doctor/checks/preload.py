"""The shim: it is installed, the loader takes it, and it comes before libibverbs however a program looks that up.

A small program is started under the shim, in the Python of COMMAND if that is one, and asks the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mfsd.observe.doctor.elf import read_elf
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, NoAnswer, read_line
from mfsd.observe.doctor.launching import INTERPOSED, ask_probe, python
from nccl_shim.run import LIBRARY

TITLE = "Shim"

MISSING = Kind(
    "preload.missing",
    "fail",
    "The shim is not installed.",
    "install MFS with its native parts: pip install . in its checkout",
)
PROBE = Kind(
    "preload.probe-failed",
    "unknown",
    "The doctor's small program under the shim did not run, so it is not known how programs find libibverbs.",
    "read the reason; run the doctor with the same user and Python as the program",
)
IGNORED = Kind(
    "preload.ignored",
    "fail",
    "The loader does not map the shim although LD_PRELOAD names it: nothing is scheduled.",
    "the library must be readable for the user, built for this machine and C library, and on a path without spaces",
)
NO_VERBS = Kind(
    "preload.no-verbs",
    "warn",
    "The system has no libibverbs; only programs with a copy of their own can use RDMA.",
    "apt-get install libibverbs1 ibverbs-providers",
)
NOT_FIRST = Kind(
    "preload.not-first",
    "fail",
    "Programs find libibverbs' own functions before those of the shim: their queue pairs are not seen.",
    "another preloaded library comes first or wraps dlsym: put libmfs_shim.so first in LD_PRELOAD, as mfs-run does",
)
SYSTEM_WIDE = Kind(
    "preload.system-wide",
    "info",
    "Libraries are preloaded into every program of this host; one that wraps verbs or dlsym may come before the shim.",
    "if preload.not-first is reported, remove the line",
)
REACHES = Kind("preload.reaches", "ok", "The shim comes first, however a program looks libibverbs up.")


def run(host: Host) -> Iterator[Finding]:
    if not LIBRARY.is_file():
        yield MISSING(f"{LIBRARY} does not exist")
        return
    if everywhere := read_line(Path("/etc/ld.so.preload")):
        yield SYSTEM_WIDE(f"/etc/ld.so.preload: {' '.join(everywhere.split())}")
    try:
        answer = ask_probe(host)
    except NoAnswer as error:
        yield PROBE(str(error), python(host))
        return
    if not answer.shim:
        yield IGNORED(f"{LIBRARY} is not mapped in {python(host)} under LD_PRELOAD")
    elif earlier := [f"{file} defines {', '.join(names)}" for file in answer.before if (names := _shared(Path(file)))]:
        yield NOT_FIRST(f"looked into before the shim: {'; '.join(earlier)}")
    elif answer.homes_error:
        yield NO_VERBS(answer.homes_error)
    elif wrong := {way: home for way, home in answer.homes.items() if Path(home).name != LIBRARY.name}:
        yield NOT_FIRST("; ".join(f"{way} finds ibv_open_device in {home or 'nothing'}" for way, home in wrong.items()))
    else:
        yield REACHES(
            f"{LIBRARY} comes first for linked programs, {' and '.join(answer.homes)}; Python {answer.python}"
        )


def _shared(file: Path) -> list[str]:
    """Symbols that both the file and the shim define."""
    try:
        elf = read_elf(file)
    except (OSError, ValueError):
        return []
    return sorted(elf.defines & set(INTERPOSED)) if elf else []
