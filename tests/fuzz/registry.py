"""Every target, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.targets import files


class Target(NamedTuple):
    """A parser, good inputs for it, and what must hold for any other."""

    good: Callable[[], Sequence[bytes]]
    open: Callable[[Path], AbstractContextManager[Callable[[bytes], None]]]
    """Gets an empty folder; answers what takes one input and raises when a promise is broken."""
    quick: int
    """So many inputs in `make test`."""


TARGETS: dict[str, Target] = {
    "configuration": Target(lambda: files.CONFIGURATIONS, files.configuration, 1500),
    "policy": Target(files.policies, files.policy, 400),
    "switch": Target(files.switches, files.switch, 300),
    "trace": Target(lambda: files.TRACES, files.trace, 3000),
    "parquet-trace": Target(files.parquet_traces, files.parquet_trace, 1500),
}
