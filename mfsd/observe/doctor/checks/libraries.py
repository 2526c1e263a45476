"""NCCL, Mooncake and other libraries that this node's Python would use: the shim gets between them and libibverbs.

Each is loaded (not used) under the shim, and the loader's own record of what it bound is read (LD_DEBUG=bindings).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mfsd.observe.doctor.elf import read_elf
from mfsd.observe.doctor.finding import Finding, Kind
from mfsd.observe.doctor.host import Host, NoAnswer
from mfsd.observe.doctor.launching import Answer, ask_probe, python
from nccl_shim.run import LIBRARY

TITLE = "Libraries"
LIBRARIES_MOST = 12

NONE = Kind(
    "libraries.none",
    "info",
    "Neither NCCL nor Mooncake is installed for this Python.",
    "name the program to have its own Python examined: mfsctl doctor -- vllm serve ...",
)
STATIC = Kind(
    "libraries.static-verbs",
    "fail",
    "The library contains a copy of libibverbs and calls it directly; the shim cannot see these calls.",
    "use a build that links or loads the system's libibverbs (the published NCCL and Mooncake wheels do)",
)
UNREACHED = Kind(
    "libraries.unreached",
    "fail",
    "The library uses libibverbs, and the loader did not bind it to the shim.",
    "look for RTLD_DEEPBIND, -Bsymbolic, or a verbs library of its own; then check with --pid while it runs",
)
NOT_LOADED = Kind(
    "libraries.not-loaded",
    "info",
    "The library cannot be loaded here, so only its file was read; according to the file the shim would reach it.",
    "run the doctor where the program runs (with its GPU driver and its LD_LIBRARY_PATH)",
)
CANNOT_TELL = Kind(
    "libraries.unknown",
    "unknown",
    "It could not be found out what the library binds to.",
    "run the doctor with the program's own Python: mfsctl doctor -- COMMAND",
)
REACHED = Kind("libraries.reached", "ok", "The shim is between this library and libibverbs.")


def run(host: Host) -> Iterator[Finding]:
    if not LIBRARY.is_file():
        return
    try:
        packages = ask_probe(host).packages
        found = [file for folder in packages.values() for file in verbs_users(Path(folder))][:LIBRARIES_MOST]
        answer = ask_probe(host, tuple(map(str, found))) if found else None
    except NoAnswer as error:
        yield CANNOT_TELL(str(error), python(host))
        return
    if answer is None:
        yield NONE(f"no such package in {python(host)}")
        return
    for file in found:
        yield from _judge(file, answer)


def verbs_users(folder: Path) -> Iterator[Path]:
    """Shared objects of a package that use or contain libibverbs. Wheels keep bundled ones in NAME.libs."""
    places = [folder, *folder.parent.glob(f"{folder.name}*.libs")]
    for file in sorted({f for place in places for f in place.rglob("*.so*") if f.is_file() and not f.is_symlink()}):
        try:
            elf = read_elf(file)
        except (OSError, ValueError):
            continue
        if elf and (elf.loads_verbs or elf.carries_verbs or any("libibverbs" in name for name in elf.needed)):
            yield file


def _judge(file: Path, answer: Answer) -> Iterator[Finding]:
    elf = read_elf(file)
    assert elf is not None
    if elf.carries_verbs:
        yield STATIC("its file contains the messages of libibverbs' device discovery", str(file))
        return
    linked = any("libibverbs" in name for name in elf.needed)
    way = "linked with libibverbs" if linked else "loads libibverbs by name"
    if answer.loaded.get(str(file)):
        yield NOT_LOADED(f"{way}; {answer.loaded[str(file)]}", str(file))
        return
    bound = answer.bindings.get(file.name, {})
    past = {symbol: home for symbol, home in bound.items() if Path(home).name != LIBRARY.name}
    if past:
        yield UNREACHED(f"{way}; " + ", ".join(f"{s} is bound to {home}" for s, home in past.items()), str(file))
    elif bound:  # else it names libibverbs and calls nothing of it
        yield REACHED(f"{way}; bound to the shim: {', '.join(sorted(bound))}", str(file))
