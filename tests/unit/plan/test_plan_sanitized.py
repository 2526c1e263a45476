"""The plan core under address and undefined-behaviour sanitizers, driven at random, with allocations that fail."""

from __future__ import annotations

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SIZED = ROOT / "csrc/plan/order.c"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """With chunks as they are, and with one (as the comparison with the reference has it), some, and as many as there
    can be. Their size is a matter of one file; the others are compiled once."""
    folder = tmp_path_factory.mktemp("plan")
    sized = {"shipped": (), "one": ("-DCHUNK_SLOTS=64",), "some": ("-DCHUNK_SLOTS=7",), "many": ("-DCHUNK_SLOTS=2",)}
    sources = [ROOT / "tests/unit/plan/plan_fuzz.c", *sorted((ROOT / "csrc/plan").glob("*.c"))]
    sources.remove(SIZED)
    with ThreadPoolExecutor() as pool:
        common = [*pool.map(lambda source: compiled(source, folder / f"{source.stem}.o", "-c"), sources)]
        made = pool.map(lambda name: compiled(SIZED, folder / name, *sized[name], *map(str, common)), sized)
        return dict(zip(sized, made, strict=True))


def compiled(source: Path, result: Path, *more: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler with sanitizers")
    flags = ["-std=gnu11", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all"]
    flags += [f"-D{name}=fuzz_{name}" for name in ("malloc", "calloc", "realloc")]
    flags += ["-fsanitize=address,undefined", "-I", str(ROOT / "csrc/include")]
    built = subprocess.run([compiler, *flags, str(source), *more, "-o", str(result)], capture_output=True, text=True)
    if "cannot find -lasan" in built.stderr or "libclang_rt.asan" in built.stderr:
        pytest.skip("the compiler's sanitizer libraries are not installed")
    assert built.returncode == 0, built.stderr
    return result


def test_random_calls_are_clean_under_sanitizers(programs: dict[str, Path]) -> None:
    run = subprocess.run([str(programs["shipped"]), "0", "60"], capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "ok\n", run.stderr


def test_chunks_of_every_size_give_the_same(programs: dict[str, Path]) -> None:
    def state(size: str) -> str:
        run = subprocess.run([str(programs[size]), "3", "60", "calm"], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        return run.stdout

    digests = {size: state(size) for size in programs}
    assert digests == dict.fromkeys(programs, digests["one"])
