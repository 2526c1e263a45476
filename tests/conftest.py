"""Programs under soft RoCE: how integration tests start them."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis
import pytest

from bench.ports import free_port
from tests.support.native import CorePrograms
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[1]
CFLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]
WAIT_S = 100


ALONE = {
    "fault/test_soak.py",
    *("integration/test_playground.py", "integration/test_testbed.py", "integration/test_link_benches.py"),
    *("integration/test_fabric_separation.py", "integration/test_fabric_probe.py"),
    "integration/test_busy_arbiter.py",
}
"""Files whose programs fill links or keep a core: they get the machine to themselves."""
LONGEST = [
    *("integration/test_afternoon.py", "integration/test_soft_roce_wheels.py", "integration/test_nixl_stopped.py"),
    *("fault/test_coordinator_fails.py", "integration/test_coordinator_page.py", "integration/test_doctor.py"),
    *("integration/test_wheel.py", "integration/test_documents.py", "fault/test_cluster_hosts.py"),
    *("fault/test_testbed_fails.py", "integration/test_policy_switch.py"),
]
"""Files that take longest, the longest first. They begin first, so that no worker is left with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        file = item.path.relative_to(ROOT / "tests").as_posix()
        if file in ALONE:
            item.add_marker(pytest.mark.alone)
        return LONGEST.index(file) if file in LONGEST else len(LONGEST)

    items.sort(key=place)


def pytest_collection_finish() -> None:
    # Thousands of tests and what they import stay until the end: no collection of garbage need walk over them again.
    gc.collect()
    gc.freeze()


def pytest_configure() -> None:
    # A shell that starts us in the background has SIGINT ignored, and programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says how busy the machine is, not whether the code is right.
    hypothesis.settings.register_profile("any-machine", deadline=None)
    hypothesis.settings.load_profile("any-machine")


@dataclass
class SoftRoce:
    """Starts programs with a soft RoCE device of this test's own; on loopback by default."""

    runtime: Path
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def argv(self, *command: str | Path, options: tuple[str, ...] = (), address: str | None = "127.0.0.1") -> list[str]:
        place = ("--address", address) if address else ()
        return [
            *(sys.executable, "-m", "mfsd.soft_roce.launcher", *place, *options, "--"),
            *map(str, command),
        ]

    def environment(self, **more: str) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime), "PYTHONPATH": path, **more}

    def run(
        self,
        *command: str | Path,
        options: tuple[str, ...] = (),
        address: str | None = "127.0.0.1",
        check: bool = True,
        env: dict[str, str] | None = None,
        timeout_s: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a program to its end; with ``check`` a failure shows what it wrote."""
        result = subprocess.run(
            self.argv(*command, options=options, address=address),
            capture_output=True,
            text=True,
            env=self.environment(**(env or {})),
            timeout=timeout_s,
        )
        if check and result.returncode != 0:
            pytest.fail(f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    def start(
        self,
        *command: str | Path,
        options: tuple[str, ...] = (),
        address: str | None = "127.0.0.1",
        env: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Starts a program, killed at the end of the test if need be. stdout and stderr are one pipe."""
        process = subprocess.Popen(
            self.argv(*command, options=options, address=address),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(**(env or {})),
        )
        self.started.append(process)
        return process

    def pair(
        self, *command: str, options: tuple[str, ...] = (), port_option: str = "-p", timeout_s: float = 300
    ) -> tuple[str, str]:
        """Runs server and client of a program in the manner of perftest; returns what the two wrote."""
        port = free_port()
        server = self.start(*command, port_option, str(port), options=options)
        wait_for_listener(port, server)
        client = self.run(*command, port_option, str(port), "127.0.0.1", options=options, timeout_s=timeout_s)
        output, _ = server.communicate(timeout=WAIT_S)
        assert server.returncode == 0, output
        return output, client.stdout

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            if process.stdout and not process.stdout.closed:
                process.communicate()


def listens(port: int, prefix: Sequence[str] = ()) -> bool:
    """Whether a process listens on the TCP port of this network namespace, or of the one that `prefix` enters. It is
    not connected to."""
    tables = subprocess.run([*prefix, "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True).stdout
    rows = [line.split() for line in tables.splitlines()]
    return any(row[1].endswith(f":{port:04X}") and row[3] == "0A" for row in rows)


def wait_for_listener(port: int, server: subprocess.Popen[str]) -> None:
    seen = eventually(
        lambda: "it" if listens(port) else "its end" if server.poll() is not None else None,
        f"a listener on port {port}",
        pause_s=0.02,
    )
    if seen != "it":
        pytest.fail(f"the server ended with {server.returncode}: {server.communicate()[0]}")


@pytest.fixture
def soft_roce(tmp_path: Path) -> Iterator[SoftRoce]:
    runtime = Path(tempfile.mkdtemp(prefix="mfs-test-"))
    helper = SoftRoce(runtime, tmp_path)
    yield helper
    helper.end()
    shutil.rmtree(runtime, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that all workers of a run have in common, for what takes long to compile."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def core_programs(shared_folder: Path) -> CorePrograms:
    return CorePrograms(shared_folder)


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> NativePrograms:
    return NativePrograms(tmp_path_factory.mktemp("native"))


@dataclass
class NativePrograms:
    """Compiles test programs of tests/native, NAME.c with all NAME_*.c, each once a session."""

    folder: Path

    def __call__(self, name: str, *flags: str) -> Path:
        program = self.folder / name
        if not program.exists():
            sources = [ROOT / f"tests/native/{name}.c", *sorted((ROOT / "tests/native").glob(f"{name}_*.c"))]
            subprocess.run(["gcc", *CFLAGS, *map(str, sources), "-o", str(program), *flags], check=True)
        return program


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a short path (socket paths are short) that other users can enter."""
    path = Path(tempfile.mkdtemp(prefix="mfs-", dir="/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
