"""The rings and the whole of client and arbiter under threads, plain and under the sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native import core

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "tests/native"
SANITIZERS = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}


@pytest.fixture(scope="module", params=SANITIZERS)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Compiles programs of tests/native with the native core, each once a sanitizer."""
    folder = tmp_path_factory.mktemp(request.param)
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")
    # The thread sanitizer models no fences; here they only decide who rings a bell, no data hangs on them.
    quiet = ("-Wno-tsan",) if request.param == "thread" else ()

    def compile_program(name: str, sources: list[Path]) -> Path:
        program = folder / name
        command = [shutil.which("cc") or "gcc", *flags, *SANITIZERS[request.param], *quiet]
        done = subprocess.run(
            [*command, str(NATIVE / f"{name}.c"), *map(str, sources), "-o", str(program), "-lpthread", "-lm"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[:3000]
        return program

    return compile_program


def run(program: Path, *arguments: str) -> None:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, f"{program.name}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def test_rings(build) -> None:
    run(build("core_ring", []), "20000")


def test_no_copy_of_the_outlook_page_is_of_two_writings(build) -> None:
    run(build("outlook_page", core()), "2000")


def test_arbiter_and_clients(build, tmp_path: Path) -> None:
    program = build("core_stress", core())
    run(program, str(tmp_path / "s"), "1500")
