"""The models of the lock-free protocols, checked over every interleaving (spin), and broken on purpose, since a
property that cannot fail proves nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def errors_of(model: str, defines: tuple[str, ...], folder: Path) -> int:
    """Errors that an exhaustive search finds; it stops at the first."""
    shutil.copy(HERE / model, folder / model)

    def run(*command: str) -> str:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert result.returncode == 0, f"{' '.join(command)}: {result.stdout}{result.stderr}"
        return result.stdout

    run("spin", "-a", *(f"-D{define}" for define in defines), model)
    run("gcc", "-O2", "-DSAFETY", "-DVECTORSZ=2048", "-DCOLLAPSE", "-o", "pan", "pan.c")
    report = run("./pan", "-m2000000")
    assert "max search depth too small" not in report and "out of memory" not in report, report
    found = re.search(r"errors: (\d+)", report)
    assert found, report
    return int(found[1])


@pytest.mark.parametrize("model", ["ring.pml", "doorbell.pml", "slots.pml", "owner.pml"])
def test_no_interleaving_breaks_the_protocol(model: str, tmp_path: Path) -> None:
    assert errors_of(model, (), tmp_path) == 0


@pytest.mark.parametrize(
    ("model", "defect"),
    [
        ("ring.pml", "NO_QUARANTINE"),
        ("ring.pml", "PUBLISH_FIRST"),
        ("ring.pml", "HEAD_FIRST"),
        ("doorbell.pml", "NO_FENCE"),
        ("doorbell.pml", "NO_SECOND_LOOK"),
        ("slots.pml", "LATE_SUBMIT_IS_NEW"),
        ("slots.pml", "LAST_END_WINS"),
        ("owner.pml", "NO_MEMBARRIER"),
        ("owner.pml", "NO_SECOND_LOOK"),
        ("owner.pml", "GIVEN_TWICE"),
    ],
)
def test_a_broken_protocol_is_found_out(model: str, defect: str, tmp_path: Path) -> None:
    assert errors_of(model, (defect,), tmp_path) == 1
