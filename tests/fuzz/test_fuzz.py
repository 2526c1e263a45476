"""The fuzz targets, fed for a moment with inputs that are the same in every run; `make fuzz` feeds them for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import native
from tests.fuzz.registry import TARGETS
from tests.fuzz.seeded import run
from tests.support.native import CorePrograms


@pytest.mark.parametrize("target", native.TARGETS)
def test_random_inputs(target: str, tmp_path: Path, core_programs: CorePrograms) -> None:
    result = native.run_seeded(target, tmp_path, 1, core_programs)
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize("target", TARGETS)
def test_mutated_inputs(target: str) -> None:
    run(target, 1, TARGETS[target].quick)
