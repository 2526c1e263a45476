"""Starts unmodified programs on the soft RoCE device with the shim preloaded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOLD_EVERYTHING = '[[rule]]\naction = "hold"\nstage = "p2d"\n'
"""Configuration in which every queue pair of every program must ask for permits."""


def under_mfs(socket: Path, *command: str | Path, mode: str = "enforce") -> list[str]:
    """Returns the command line that runs ``command`` with the shim, attached to the daemon on ``socket``."""
    launcher = (sys.executable, "-m", "nccl_shim.run", "--socket", str(socket), "--mode", mode, "--")
    return [*launcher, *map(str, command)]


def build_program(name: str, folder: Path, *flags: str, source_folder: str = "tests/programs") -> Path:
    """Compiles ``source_folder/name.c`` into ``folder``, once."""
    program = folder / name
    if not program.exists():
        compiler = shutil.which("cc") or "gcc"
        source = ROOT / source_folder / f"{name}.c"
        strict = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror")
        subprocess.run([compiler, *strict, str(source), "-o", str(program), *flags], check=True)
    return program
