"""Builds the shim's native tests: a recording device, a daemon that does as scripted, one program for each theme."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support.native import locked

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "tests/native"
SHIM = ROOT / "nccl_shim/libmfs_shim.so"
CALLERS = ("libnccl.so.2", "mooncake/store.so", "mooncake/engine.so", "libother.so")
PROGRAMS = (
    *("shim_hold", "shim_fault", "shim_daemon", "shim_threads", "shim_cq_ex"),
    *("shim_trace", "shim_roles", "shim_metadata", "shim_profiler", "shim_mark"),
)
HELPERS = (NATIVE / "shim_test.c", NATIVE / "scripted_daemon.c", *sorted(ROOT.glob("csrc/client/*.c")))
TSAN_OPTIONS = "exitcode=66 atexit_sleep_ms=300"
"""At the end threads that are still there have the time to race with what goes away: the shim's own rests for 250 ms at
most (`IDLE_TICK_NS`), so it comes by once more."""
TIMEOUT_S = 600
"""Only ends a test that hangs."""


def names_of(program: str) -> list[str]:
    """The names in the program's own table of tests."""
    return re.findall(r'\{"(\w+)", \w+\}', (NATIVE / f"{program}.c").read_text())


def cc(*arguments: str | Path) -> None:
    compiler = shutil.which("cc") or "gcc"
    subprocess.run([compiler, "-std=gnu11", "-g1", "-O1", "-Wall", "-Wextra", *map(str, arguments)], check=True)


@dataclass(frozen=True)
class Native:
    """One build of everything: plain, or with a sanitizer in the shim, the device and the programs."""

    folder: Path
    sockets: Path
    """Of this worker alone."""
    sanitize: tuple[str, ...] = ()
    shim: Path = SHIM
    runtime: str = ""

    def build(self) -> None:
        """On all cores: workers that need it, too, wait for it."""
        include = f"-I{ROOT}/csrc/include"
        (self.folder / "mooncake").mkdir(exist_ok=True)
        fake = self.folder / "libibverbs.so.1"
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = pool.map(partial(self._object, include), self._sources()) if self.sanitize else iter(())
            helpers = [*pool.map(partial(self._helper, include), HELPERS)]
            self._build_fake(fake)

            def program(name: str) -> None:
                own = ("-Werror", include, NATIVE / f"{name}.c", "-o", self.folder / name)
                cc(*self.sanitize, *own, *helpers, fake, f"-Wl,-rpath,{self.folder}", "-lpthread", "-ldl")

            done = pool.map(program, PROGRAMS)
            if self.sanitize:
                script = f"-Wl,--version-script={ROOT}/nccl_shim/src/libmfs_shim.map"
                cc(*self.sanitize, "-shared", *objects, "-o", self.shim, script, "-ldl", "-lpthread")
            else:
                daemon = self.folder / "scripted_daemon.o"
                reach = (NATIVE / "shim_reach.c", daemon, "-o", self.folder / "shim_reach", "-lpthread", "-ldl")
                cc("-Werror", include, *reach)
                for caller in CALLERS:
                    cc("-fPIC", "-shared", NATIVE / "shim_caller.c", "-o", self.folder / caller, fake)
            list(done)  # raises what went wrong

    def _build_fake(self, fake: Path) -> None:
        link = ("-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={NATIVE}/fake_verbs.map")
        cc(*self.sanitize, "-fPIC", "-shared", *sorted(NATIVE.glob("fake_verbs*.c")), "-o", fake, *link, "-lpthread")

    def _helper(self, include: str, source: Path) -> Path:
        """What all programs are linked with. Of the client it is the copy that an engine has."""
        client = source.parent != NATIVE
        result = self.folder / f"{'engine_' if client else ''}{source.stem}.o"
        cc(*self.sanitize, *(() if client else ("-Werror",)), include, "-c", source, "-o", result)
        return result

    @staticmethod
    def _sources() -> list[Path]:
        return [*sorted((ROOT / "nccl_shim/src").glob("*.c")), *sorted((ROOT / "csrc/client").glob("*.c"))]

    def _object(self, include: str, source: Path) -> Path:
        # dlsym is asked by the sanitizer's runtime before its own memory is laid out
        flags = () if source.stem in ("symbols", "interpose") else self.sanitize
        result = self.folder / f"{source.parent.name}-{source.stem}.o"
        cc(*flags, include, "-fPIC", "-fvisibility=hidden", "-c", source, "-o", result)
        return result

    def run(self, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end. Its output; a failure is reported with everything it said."""
        everything = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MFS_")},
            "MFS_SOCKET": f"{self.sockets}/{program}.sock",
            "ASAN_OPTIONS": "detect_leaks=0",
            "TSAN_OPTIONS": TSAN_OPTIONS,
            "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
            "LD_PRELOAD": f"{self.runtime} {self.shim}".strip(),
            **environment,
        }
        done = subprocess.run(
            [str(self.folder / program), *arguments], env=everything, text=True, capture_output=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
        return done


def runtime_of(name: str) -> str:
    """The sanitizer's runtime, which must be the first library of the process."""
    compiler = shutil.which("cc") or "gcc"
    path = subprocess.run([compiler, f"-print-file-name=lib{name}.so"], capture_output=True, text=True).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"the compiler has no lib{name}.so")
    return path


@pytest.fixture(scope="session")
def built(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Native]:
    """Builds one for all workers, by the worker that comes first."""

    def build(name: str, flags: tuple[str, ...] = (), runtime: str = "") -> Native:
        folder = shared_folder / f"shim-{name}"
        folder.mkdir(exist_ok=True)
        shim = folder / SHIM.name if flags else SHIM
        found = Native(folder, tmp_path_factory.mktemp("s"), flags, shim, runtime)
        with locked(folder):
            if not (folder / "complete").exists():
                found.build()
                (folder / "complete").touch()
        return found

    return build


@pytest.fixture(scope="session")
def native(built: Callable[..., Native]) -> Native:
    return built("plain")


@pytest.fixture(scope="session")
def with_asan(built: Callable[..., Native]) -> Native:
    return built("address", ("-fsanitize=address,undefined", "-fno-omit-frame-pointer"), runtime_of("asan"))


@pytest.fixture(scope="session")
def with_tsan(built: Callable[..., Native]) -> Native:
    return built("thread", ("-fsanitize=thread", "-Wno-tsan"), runtime_of("tsan"))
