"""Submit to permit: how long a held work request waits when nothing is in its way.

A real daemon and a client of its own process (`native/permit.c`), both before ordinary processes where the system
allows it. On a machine with fewer than three cores the two and the rest of the system share them.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from bench.micro.daemon import BUILD, NATIVE, ROOT, compiler, mfsd, realtime

BLOCKS, ROUNDS, WAKES = 20, 2000, 200


def build() -> str:
    BUILD.mkdir(parents=True, exist_ok=True)
    program = str(BUILD / "permit")
    sources = [NATIVE / "permit.c", *sorted((ROOT / "csrc/client").glob("*.c"))]
    flags = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")
    subprocess.run([compiler("cc", "gcc"), *flags, *map(str, sources), "-o", program], check=True)
    return program


def run(blocks: int = BLOCKS, rounds: int = ROUNDS, wakes: int = WAKES) -> dict[str, Any]:
    """rtt_us_*: arbiter spinning; wake_us_*: arbiter asleep, client polling; wait_us_*: both asleep; credit_us_*:
    the daemon is not asked, since nothing waits."""
    program = build()
    with mfsd(first=True) as (socket, _):
        command = [program, str(socket), str(blocks), str(rounds), str(wakes)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, preexec_fn=realtime)
    measured: dict[str, dict[str, float]] = json.loads(done.stdout)
    return {f"{name}_us_{key}": value for name, figures in measured.items() for key, value in figures.items()}
