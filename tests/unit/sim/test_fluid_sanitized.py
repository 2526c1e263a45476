"""The rate allocator under address and undefined-behaviour sanitizers, driven at random."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def test_random_calls_are_clean_under_sanitizers(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler with sanitizers")
    program = tmp_path / "fuzz"
    sources = [ROOT / "tests/unit/sim/fluid_fuzz.c", *sorted((ROOT / "csrc/fluid").glob("*.c"))]
    flags = ["-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
    include = ["-I", str(ROOT / "csrc/include")]
    build = [
        compiler,
        *flags,
        "-fsanitize=address,undefined",
        *include,
        *map(str, sources),
        "-lm",
        "-o",
        str(program),
    ]
    built = subprocess.run(build, capture_output=True, text=True)
    if "cannot find -lasan" in built.stderr or "libclang_rt.asan" in built.stderr:
        pytest.skip("the compiler's sanitizer libraries are not installed")
    assert built.returncode == 0, built.stderr
    run = subprocess.run([str(program), "0", "150"], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "ok\n", run.stderr
