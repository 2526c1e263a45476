"""Feeds every target for long: ``python -m tests.fuzz [--seconds N] [TARGET ...]``.

By coverage: clang's libFuzzer for C, atheris for Python; without a wheel of atheris, mutations of good inputs, each
time others. What is learned stays under build/fuzz.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import native
from tests.fuzz.registry import TARGETS
from tests.fuzz.seeded import run

FOLDER = Path(__file__).resolve().parents[2] / "build" / "fuzz"
PER_ROUND = 2000


def run_guided(name: str, seconds: int) -> bool:
    folder = FOLDER / name
    options = [f"-max_total_time={seconds}", "-max_len=65536", "-timeout=10", "-rss_limit_mb=2048"]
    command = [sys.executable, "-m", "tests.fuzz.guided", name, str(folder), *options]
    return subprocess.run(command).returncode == 0


def run_unguided(name: str, seconds: int) -> bool:
    until_s, seed = time.monotonic() + seconds, int(time.time())
    try:
        while time.monotonic() < until_s:
            run(name, seed, PER_ROUND if seconds > 60 else TARGETS[name].quick)
            seed += 1
    except AssertionError as error:
        print(error, file=sys.stderr)
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Feeds the parsers of foreign bytes.")
    parser.add_argument("--seconds", type=int, default=600, help="for each target (default: 600)")
    parser.add_argument("target", nargs="*", help=f"of {', '.join([*native.TARGETS, *TARGETS])}; default: all")
    asked = parser.parse_args()
    unknown = set(asked.target) - {*native.TARGETS, *TARGETS}
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}")
    guided = importlib.util.find_spec("atheris") is not None
    broken = []
    for name in asked.target or [*native.TARGETS, *TARGETS]:
        print(f"== {name}: {asked.seconds} s", flush=True)
        if name in native.TARGETS:
            held = native.run_guided(name, FOLDER / name, asked.seconds)
        else:  # a program started for each input shows no coverage
            held = (run_guided if guided and name != "environment" else run_unguided)(name, asked.seconds)
        if not held:
            broken.append(name)
    print(f"broken: {', '.join(broken)}" if broken else "all promises held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
