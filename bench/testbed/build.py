"""Compiles the worker if one of its sources is newer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "csrc"
SOURCES = Path(__file__).with_name("worker")
PROGRAM = ROOT / "build" / "testbed" / "worker"


class BuildError(Exception):
    """The worker cannot be compiled; the text contains the compiler's output."""


def build_worker() -> Path:
    # The client functions of mfs/client.h are compiled in, as an engine's extension would do.
    sources = [*sorted(SOURCES.glob("*.c")), *sorted(CORE.glob("client/*.c"))]
    includes = [CORE / "include", CORE]
    newest = max(f.stat().st_mtime for f in [*sources, *SOURCES.glob("*.h"), *CORE.rglob("*.h")])
    if PROGRAM.exists() and PROGRAM.stat().st_mtime >= newest:
        return PROGRAM
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise BuildError("no C compiler: apt-get install gcc")
    command = [compiler, "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", *(f"-I{i}" for i in includes)]
    # Compiled under a name of this process and then renamed: a run that is under way keeps its program, and two that
    # start at once do not write one file.
    fresh = PROGRAM.with_suffix(f".{os.getpid()}")
    command += [*map(str, sources), "-o", str(fresh), "-libverbs", "-ldl", "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BuildError(f"the worker does not compile (is libibverbs-dev installed?):\n{result.stderr[-3000:]}")
    fresh.rename(PROGRAM)
    return PROGRAM
