"""Finds copies of libibverbs in Python packages, such as the wheels of NIXL.

Such a copy has another name, and the provider registers only with the system's libibverbs. If that library is
preloaded, programs that link the copy find the system's functions first.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SYSTEM_LIBRARY = "libibverbs.so.1"
COPIES = "*.libs/libibverbs*.so*"  # auditwheel puts them beside the package
PACKAGES = ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages")
MAX_SHEBANG_BYTES = 512


def _interpreters(program: Path, path: str | None) -> Iterator[Path]:
    """Yields the program, and the interpreters that its first line names."""
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
    """Yields the package folders of the Pythons that COMMAND may start.

    All words of COMMAND are tried, since a launcher names its program in a later word. Shell scripts are not read; for
    them, the first Python on PATH is tried."""
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
    """Whether the program may use a bundled copy of libibverbs."""
    folders = dict.fromkeys(_package_folders(command, environment))
    return any(True for folder in folders for _ in folder.glob(COPIES))


def preload(before: str | None) -> str:
    """Returns the value of LD_PRELOAD with the system's libibverbs last, because a shim must stay in front of it."""
    others = [part for part in (before or "").replace(":", " ").split() if Path(part).name != SYSTEM_LIBRARY]
    return " ".join([*others, SYSTEM_LIBRARY])
