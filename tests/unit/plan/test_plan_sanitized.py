"""The plan core under address and undefined-behaviour sanitizers, driven at random, with allocations that fail."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def build(program: Path, *defines: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler with sanitizers")
    sources = [ROOT / "tests/unit/plan/plan_fuzz.c", *sorted((ROOT / "csrc/plan").glob("*.c"))]
    flags = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
    failing = [f"-D{name}=fuzz_{name}" for name in ("malloc", "calloc", "realloc")]
    command = [
        compiler,
        *flags,
        *failing,
        *defines,
        "-fsanitize=address,undefined",
        "-I",
        str(ROOT / "csrc/include"),
        *map(str, sources),
        "-o",
        str(program),
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    if "cannot find -lasan" in built.stderr or "libclang_rt.asan" in built.stderr:
        pytest.skip("the compiler's sanitizer libraries are not installed")
    assert built.returncode == 0, built.stderr
    return program


def test_random_calls_are_clean_under_sanitizers(tmp_path: Path) -> None:
    program = build(tmp_path / "fuzz")
    run = subprocess.run([str(program), "0", "60"], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "ok\n", run.stderr


def test_chunks_of_every_size_give_the_same(tmp_path: Path) -> None:
    """One chunk (as the comparison with the reference has it), some, and as many as there can be."""
    sizes = {"one": 64, "some": 7, "many": 2}

    def state(size: str) -> str:
        program = build(tmp_path / size, f"-DCHUNK_SLOTS={sizes[size]}")
        run = subprocess.run([str(program), "3", "60", "calm"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout

    with ThreadPoolExecutor() as pool:
        digests = dict(zip(sizes, pool.map(state, sizes), strict=True))
    assert digests == dict.fromkeys(sizes, digests["one"])
