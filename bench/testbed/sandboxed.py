"""Runs what measures on the testbed in namespaces of its own, and says in a line why it cannot."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.sim.cluster import ConfigError
from bench.testbed.build import BuildError
from bench.testbed.processes import LegError
from mfsd.playground.sandbox import SandboxError, run_sandboxed


def run(command: str, work: Callable[[], None]) -> None:
    """`work` runs in another process: what it keeps, it writes to files. Where it fails the program ends with 2, where
    there can be no namespaces with 1; the line names the command."""

    def inside() -> int:
        try:
            work()
        except (ConfigError, LegError, BuildError, OSError) as error:
            print(f"{command}: {error}", file=sys.stderr)
            return 2
        return 0

    try:
        code = run_sandboxed(inside)
    except SandboxError as error:
        sys.exit(f"{command}: {error}")
    if code:
        sys.exit(code)
