"""A real mfsd process for benchmarks, and programs that run beside it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from mfsd.children import python_module

ROOT = Path(__file__).parents[2]
NATIVE = Path(__file__).with_name("native")
BUILD = ROOT / "build/bench/micro"
START_S = 20.0


def realtime() -> None:
    """For preexec_fn: runs a program before all ordinary ones where that is allowed, so that what else the
    machine does is not measured. Nothing happens where it is not allowed."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@contextlib.contextmanager
def mfsd(*, first: bool = False, config: str = "") -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A daemon with its defaults or this configuration: its socket and its process. `first`: at real-time priority."""
    with tempfile.TemporaryDirectory(prefix="mfs-") as folder:
        path = Path(folder) / "run" / "mfsd.sock"
        (Path(folder) / "mfsd.toml").write_text(config)
        process = subprocess.Popen(
            [
                *python_module("mfsd.cli.daemon"),
                *("--config", f"{folder}/mfsd.toml", "--socket", str(path)),
            ],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=realtime if first else None,
        )
        try:
            deadline_s = time.monotonic() + START_S
            while not path.exists():
                if process.poll() is not None or time.monotonic() > deadline_s:
                    process.kill()
                    output = process.stderr.read() if process.stderr else ""
                    sys.exit(f"mfsd does not start: {output.strip()}")
                time.sleep(0.01)
            yield path, process
        finally:
            process.terminate()
            process.wait()
            if process.stderr:
                process.stderr.close()


def compiler(name: str, package: str) -> str:
    """The compiler's path; exits with the remedy when there is none."""
    found = shutil.which(name)
    if found is None:
        sys.exit(f"bench: no {name} found; install it: apt-get install {package}")
    return found
