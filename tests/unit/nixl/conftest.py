"""Builds what tests/native/nixl_plugin.c needs: a backend that moves nothing, a daemon that does as scripted."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from mooncake_adapter.nixl_plugins import LIBRARY

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "tests/native"
TIMEOUT_S = 600
"""Only ends a test that hangs."""


def cc(*arguments: str | Path) -> None:
    compiler = shutil.which("cc") or "gcc"
    strict = ("-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}/csrc/include")
    subprocess.run([compiler, *strict, *map(str, arguments)], check=True)


@dataclass(frozen=True)
class Plugin:
    """The plugin as it is built, or one with a sanitizer."""

    folder: Path
    library: Path = LIBRARY
    sanitize: tuple[str, ...] = ()

    def build(self) -> Plugin:
        self.folder.mkdir()
        cc(*self.sanitize, "-fPIC", "-shared", NATIVE / "nixl_backend.c", "-o", self.folder / "libplugin_UCX.so")
        driver = (NATIVE / "nixl_plugin.c", NATIVE / "scripted_daemon.c", "-o", self.folder / "nixl_plugin")
        cc(*self.sanitize, *driver, "-ldl", "-lpthread")
        if self.sanitize:
            sources = [*sorted((ROOT / "csrc/nixl").glob("*.c")), *sorted((ROOT / "csrc/client").glob("*.c"))]
            hidden = ("-fPIC", "-fvisibility=hidden", "-shared", f"-Wl,--version-script={ROOT}/csrc/nixl/plugin.map")
            cc(*self.sanitize, *hidden, *sources, "-o", self.library, "-ldl", "-lpthread")
        return self

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
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    return Plugin(tmp_path_factory.mktemp("n") / "b").build()


@pytest.fixture(scope="session")
def with_asan(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    folder = tmp_path_factory.mktemp("a") / "b"
    return Plugin(folder, folder.parent / "libplugin_MFS.so", ("-fsanitize=address,undefined",)).build()


@pytest.fixture(scope="session")
def with_tsan(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    folder = tmp_path_factory.mktemp("t") / "b"
    return Plugin(folder, folder.parent / "libplugin_MFS.so", ("-fsanitize=thread", "-Wno-tsan")).build()
