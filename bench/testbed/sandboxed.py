"""Runs a measurement of the testbed in namespaces of its own, or prints a line why that is not possible."""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.sim.cluster import ConfigError
from bench.testbed.build import BuildError
from bench.testbed.processes import LegError
from mfsd.playground.sandbox import SandboxError, run_sandboxed


def run(command: str, work: Callable[[], None]) -> None:
    """Runs `work` in another process; what it keeps, it writes to files. The program ends with 2 if it fails, with 1 if
    namespaces are not possible; the line names the command."""

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
