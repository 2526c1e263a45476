"""Builds what tests/native/nixl_plugin.c needs: a backend that moves nothing, a daemon that does as scripted."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mooncake_adapter.nixl_plugins import LIBRARY
from tests.support.native import locked

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "tests/native"
TIMEOUT_S = 600
"""Only ends a test that hangs."""


def cc(*arguments: str | Path) -> None:
    compiler = shutil.which("cc") or "gcc"
    strict = ("-std=gnu11", "-g1", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")
    subprocess.run([compiler, *strict, *map(str, arguments)], check=True)


@dataclass(frozen=True)
class Plugin:
    """The plugin as it is built, or one with a sanitizer."""

    folder: Path
    library: Path = LIBRARY
    sanitize: tuple[str, ...] = ()

    def build(self) -> None:
        self.folder.mkdir()
        cc(*self.sanitize, "-fPIC", "-shared", NATIVE / "nixl_backend.c", "-o", self.folder / "libplugin_UCX.so")
        driver = (NATIVE / "nixl_plugin.c", NATIVE / "scripted_daemon.c", "-o", self.folder / "nixl_plugin")
        cc(*self.sanitize, *driver, "-ldl", "-lpthread")
        if self.sanitize:
            sources = [*sorted((ROOT / "csrc/nixl").glob("*.c")), *sorted((ROOT / "csrc/client").glob("*.c"))]
            hidden = ("-fPIC", "-fvisibility=hidden", "-shared", f"-Wl,--version-script={ROOT}/csrc/nixl/plugin.map")
            cc(*self.sanitize, *hidden, *sources, "-o", self.library, "-ldl", "-lpthread")

    def run(self, test: str, **environment: str) -> list[str]:
        """Runs a test to its end; the lines that it said on standard error."""
        done = subprocess.run(
            [str(self.folder / "nixl_plugin"), test, str(self.library), str(self.folder)],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith("MFS_")},
                "ASAN_OPTIONS": "detect_leaks=0",
                "TSAN_OPTIONS": "exitcode=66",
                "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
                **environment,
            },
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, f"{test}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr}"
        return done.stderr.splitlines()


@pytest.fixture(scope="session")
def built(shared_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Plugin]:
    """Builds one for all workers, by the one that comes first. Each runs a copy: the daemon's socket is beside it."""

    def build(name: str, sanitize: tuple[str, ...] = ()) -> Plugin:
        shared = shared_folder / f"nixl-{name}"
        shared.mkdir(exist_ok=True)
        made = Plugin(shared / "b", shared / LIBRARY.name if sanitize else LIBRARY, sanitize)
        with locked(shared):
            if not (shared / "complete").exists():
                made.build()
                (shared / "complete").touch()
        return replace(made, folder=shutil.copytree(made.folder, tmp_path_factory.mktemp("n") / "b"))

    return build


@pytest.fixture(scope="session")
def plugin(built: Callable[..., Plugin]) -> Plugin:
    return built("plain")


@pytest.fixture(scope="session")
def with_asan(built: Callable[..., Plugin]) -> Plugin:
    return built("address", ("-fsanitize=address,undefined",))


@pytest.fixture(scope="session")
def with_tsan(built: Callable[..., Plugin]) -> Plugin:
    return built("thread", ("-fsanitize=thread", "-Wno-tsan"))
