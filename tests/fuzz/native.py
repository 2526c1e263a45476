"""The targets in C: sanitizers always, clang's libFuzzer where they run for long."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.native import CorePrograms, core

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "tests" / "fuzz"
FLAGS = (
    *("-std=gnu11", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    *("-Icsrc/include", "-Icsrc"),
)


class Target(NamedTuple):
    linked: tuple[Path, ...]
    """Beside what the target includes."""
    libraries: tuple[str, ...]
    quick: int
    """So many inputs in `make test`."""


def sources(pattern: str, *without: str) -> tuple[Path, ...]:
    return tuple(path for path in sorted(ROOT.glob(pattern)) if path.name not in without)


TARGETS = {
    "segment": Target(tuple(core("arbiter/arbiter.c", "arbiter/command.c")), (), 300),
    "handshake": Target(sources("csrc/client/*.c", "attach.c"), (), 200),
    "outlook": Target(sources("csrc/client/*.c", "outlook.c"), (), 400),
    "frames": Target(sources("csrc/soft_roce/*.c", "handshake.c", "provider.c"), ("-libverbs",), 400),
    "datagrams": Target(sources("csrc/soft_roce/*.c", "provider.c"), ("-libverbs",), 300),
}


def build(name: str, to: Path, compiler: str, linked: Sequence[Path], *more: str) -> None:
    files = [HERE / f"{name}.c", *linked]
    libraries = (*TARGETS[name].libraries, "-lpthread", "-lm")
    command: list[str | Path] = [compiler, *FLAGS, *more, "-o", to, *files, *libraries]
    subprocess.run(command, check=True, cwd=ROOT)


def run_seeded(name: str, folder: Path, seed: int, programs: CorePrograms) -> subprocess.CompletedProcess[str]:
    """Random inputs, without coverage."""
    program = folder / name
    linked = programs.objects("address", TARGETS[name].linked)
    build(name, program, "gcc", linked, str(HERE / "driver.c"))
    command: list[str | Path] = [program, str(seed), str(TARGETS[name].quick)]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=800)


def run_guided(name: str, folder: Path, seconds: int) -> bool:
    """By coverage; what it learns stays under `folder`. False when an input broke a promise."""
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    build(name, folder / "fuzz", "clang", TARGETS[name].linked, "-fsanitize=fuzzer")
    command: list[str | Path] = [
        folder / "fuzz",
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "corpus",
    ]
    return subprocess.run(command, cwd=folder).returncode == 0
