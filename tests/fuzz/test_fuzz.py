"""The fuzz targets, built with sanitizers and fed for a moment; `make fuzz` feeds them for long, by coverage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-Icsrc/include",
    "-Icsrc",
)
TARGETS = {
    "segment": [*sorted(ROOT.glob("csrc/arbiter_*.c")), *sorted(ROOT.glob("csrc/rmlq*.c"))],
}
"""What each target is linked with."""


@pytest.mark.parametrize("target", TARGETS)
def test_random_inputs(target: str, tmp_path: Path) -> None:
    program = tmp_path / target
    sources = [ROOT / "tests/fuzz" / f"{target}.c", ROOT / "tests/fuzz/driver.c", *TARGETS[target]]
    subprocess.run(["gcc", *FLAGS, "-o", program, *sources, "-lpthread", "-lm"], check=True, cwd=ROOT)
    result = subprocess.run([program, "1", "300"], capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stderr[-4000:]


def fuzz(target: str, seconds: int) -> None:
    """By coverage, with clang's libFuzzer; what it learns stays under build/fuzz."""
    folder = ROOT / "build" / "fuzz" / target
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    flags = [flag.replace("address,", "fuzzer,address,") for flag in FLAGS]
    sources = [ROOT / "tests/fuzz" / f"{target}.c", *TARGETS[target]]
    subprocess.run(["clang", *flags, "-o", folder / "fuzz", *sources, "-lpthread", "-lm"], check=True, cwd=ROOT)
    command = [folder / "fuzz", f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "corpus"]
    subprocess.run(command, check=True, cwd=folder)


if __name__ == "__main__":
    for name in TARGETS:
        fuzz(name, int(sys.argv[1]))
