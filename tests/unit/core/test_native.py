"""The rings and the whole of client and arbiter under threads, plain and under the sanitizers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.native import SANITIZERS, CorePrograms

Build = Callable[..., Path]


@pytest.fixture(scope="module", params=SANITIZERS)
def build(request: pytest.FixtureRequest, core_programs: CorePrograms) -> Build:
    """Compiles programs of tests/native with the native core, each once a sanitizer."""

    def compile_program(name: str, sources: list[Path] | None = None) -> Path:
        return core_programs.build(name, request.param, sources)

    return compile_program


def run(program: Path, *arguments: str) -> None:
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    done = subprocess.run([str(program), *arguments], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, f"{program.name}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def test_rings(build: Build) -> None:
    run(build("core_ring", []), "20000")


def test_no_copy_of_the_outlook_page_is_of_two_writings(build: Build) -> None:
    run(build("outlook_page"), "2000")


def test_arbiter_and_clients(build: Build, tmp_path: Path) -> None:
    program = build("core_stress")
    run(program, str(tmp_path / "s"), "1500")
