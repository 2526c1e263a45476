"""Finds copies of libibverbs that Python packages bring along, as the wheels of NIXL do.

Such a copy has a name of its own, and the provider registers with the system's libibverbs only. What links the copy
finds the system's functions first when that library is preloaded.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SYSTEM_LIBRARY = "libibverbs.so.1"
COPIES = "*.libs/libibverbs*.so*"  # where auditwheel puts them, beside the package
PACKAGES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages")
MAX_SHEBANG_BYTES = 512


def _interpreters(program: Path, path: str | None) -> Iterator[Path]:
    """The program, and what its first line says to run it with."""
    yield program
    try:
        with program.open("rb") as file:
            first = file.readline(MAX_SHEBANG_BYTES)
    except OSError:
        return
    if first.startswith(b"#!"):
        for word in first[2:].split():
            if found := shutil.which(os.fsdecode(word), path=path):
                yield Path(found)


def _package_folders(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Path]:
    """Where the Pythons that COMMAND may start look for packages. Launchers in front of a program name it in a later
    word; a shell script is not read, but for the Python that it would find first."""
    path = environment.get("PATH")
    for word in (*command, "python3", "python"):
        if not (found := shutil.which(word, path=path)):
            continue
        for program in _interpreters(Path(found), path):
            for pattern in PACKAGES:
                yield from program.parent.parent.glob(pattern)
    if home := environment.get("HOME"):
        yield from Path(home).glob(".local/lib/python3*/site-packages")
    for folder in environment.get("PYTHONPATH", "").split(os.pathsep):
        if folder:
            yield Path(folder)


def has_copy(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether the program may use a libibverbs of its own."""
    folders = dict.fromkeys(_package_folders(command, environment))
    return any(True for folder in folders for _ in folder.glob(COPIES))


def preload(before: str | None) -> str:
    """The value of LD_PRELOAD with the system's libibverbs last: a shim must stay in front of it."""
    others = [part for part in (before or "").replace(":", " ").split() if Path(part).name != SYSTEM_LIBRARY]
    return " ".join([*others, SYSTEM_LIBRARY])
