"""Runs a target in Python with mutated inputs: ``python -m tests.fuzz.seeded TARGET SEED INPUTS``."""

from __future__ import annotations

import itertools
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.fuzz.inputs import mutations
from tests.fuzz.registry import TARGETS

INPUT_S_MAX = 10.0
"""Of processor time, however busy the host: an input that takes more is a hang. One that sleeps ends with its test."""
MEMORY_BYTES_MAX = 512 << 20
"""By which a run may grow."""


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(name: str, seed: int, inputs: int) -> None:
    """AssertionError, or whatever the parser let through, with the input that did it."""
    target = TARGETS[name]
    with tempfile.TemporaryDirectory(prefix="mfs-fuzz-", dir="/tmp") as folder, target.open(Path(folder)) as check:
        before = peak_bytes()
        for number, data in enumerate(itertools.islice(mutations(target.good(), seed), inputs)):
            began_s = time.process_time()
            try:
                check(data)
            except BaseException as error:
                shown = data if len(data) < 2000 else data[:2000] + b"..."
                raise AssertionError(
                    f"{name}, seed {seed}, input {number}: {error!r:.500}\ninput: {shown!r}"
                ) from error
            assert time.process_time() - began_s < INPUT_S_MAX, f"{name}, seed {seed}, input {number} hangs"
        assert peak_bytes() - before < MEMORY_BYTES_MAX, f"{name}: memory grew by {peak_bytes() - before} bytes"


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
