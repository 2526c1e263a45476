"""Compiles test programs with the native core."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

APART = ("soft_roce", "nixl", "nixl_stand_in")
"""Folders of csrc that are separate libraries, loaded by programs of others."""
CSRC = Path(__file__).resolve().parents[2] / "csrc"


def core(*left_out: str) -> list[Path]:
    """Returns every source of the core except those named by folder and file (`arbiter/command.c`), which the program
    includes itself."""
    sources = sorted(path for path in CSRC.glob("*/*.c") if path.parent.name not in APART)
    excluded = {CSRC / name for name in left_out}
    assert excluded <= {*sources}, f"no source: {excluded - {*sources}}"
    return [path for path in sources if path not in excluded]


SANITIZERS = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # The thread sanitizer models no fences. Here they only decide which side rings a bell; no data depends on them.
    "thread": ("-fsanitize=thread", "-Wno-tsan"),
}
FLAGS = ("-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}/include", f"-I{CSRC}")


class CorePrograms:
    """Compiles programs of tests/native that are linked with the native core.

    Each program is compiled once, and the core once for each sanitizer, into a folder that all workers of a run share:
    to compile the core for each of a dozen programs would take minutes."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared

    def build(self, name: str, sanitizer: str = "plain", sources: Sequence[Path] | None = None) -> Path:
        """Compiles tests/native/NAME.c with these sources of the core (None: all)."""
        folder = self._shared / f"core-{sanitizer}" / name
        folder.mkdir(parents=True, exist_ok=True)
        program = folder / name
        with locked(folder):
            if not program.exists():
                objects = self.objects(sanitizer, core() if sources is None else sources)
                source = CSRC.parent / "tests/native" / f"{name}.c"
                part = program.with_suffix(".part")
                compile_c(*SANITIZERS[sanitizer], source, *objects, "-o", part, "-lpthread", "-lm")
                part.rename(program)
        return program

    def objects(self, sanitizer: str, sources: Sequence[Path]) -> list[Path]:
        folder = self._shared / f"core-{sanitizer}"
        folder.mkdir(exist_ok=True)

        def compiled(source: Path) -> Path:
            result = folder / f"{source.parent.name}-{source.stem}.o"
            if not result.exists():
                part = result.with_suffix(".part")
                compile_c(*SANITIZERS[sanitizer], "-c", source, "-o", part)
                part.rename(result)
            return result

        with locked(folder), ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(compiled, sources))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lets only one worker of the tests run the block at a time."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compile_c(*words: str | Path) -> None:
    command = [shutil.which("cc") or "gcc", *FLAGS, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]


def foreign_shim(folder: Path, *flags: str) -> Path:
    """Compiles a library of another version to preload in place of ours. `-DEARLIER`: of an earlier version."""
    library = folder / "libforeign_shim.so"
    source = CSRC.parent / "tests/native/foreign_shim.c"
    compile_c("-fPIC", "-shared", *flags, source, "-o", library)
    return library
