"""Which programs get the system's libibverbs preloaded: those whose Python has a package with a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.soft_roce import bundled

COPY = "nixl_cu12.libs/libibverbs-1de1263b.so.1.14.48.0"


def put(path: Path, content: str = "", mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(mode)
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A PATH on which there is a Python without packages, and nothing else."""
    put(tmp_path / "system/bin/python3", mode=0o755)
    return {"PATH": str(tmp_path / "system/bin"), "HOME": str(tmp_path / "home")}


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    put(tmp_path / "venv/bin/python", mode=0o755)
    put(tmp_path / "venv/lib/python3.12/site-packages" / COPY)
    return tmp_path / "venv"


def test_none(environment: dict[str, str]) -> None:
    assert not bundled.has_copy(["python3", "-c", "pass"], environment)
    assert not bundled.has_copy(["no-such-program"], environment)


def test_in_the_python_that_is_started(environment: dict[str, str], venv: Path) -> None:
    assert bundled.has_copy([str(venv / "bin/python"), "worker.py"], environment)
    assert not bundled.has_copy(["python3", "worker.py"], environment)


def test_behind_a_launcher(environment: dict[str, str], venv: Path) -> None:
    assert bundled.has_copy(["mfs-run", "--", str(venv / "bin/python"), "worker.py"], environment)


def test_in_the_python_of_a_script(environment: dict[str, str], venv: Path, tmp_path: Path) -> None:
    script = put(tmp_path / "tools/serve", f"#!{venv}/bin/python -I\n", 0o755)
    assert bundled.has_copy([str(script)], environment)
    script.write_text("#!/no/such/python\n")
    assert not bundled.has_copy([str(script)], environment)


def test_in_the_first_python_of_the_path(environment: dict[str, str], venv: Path) -> None:
    environment["PATH"] = f"{venv}/bin:{environment['PATH']}"
    assert bundled.has_copy(["sh", "-c", "python worker.py"], environment)


def test_in_a_folder_of_python_path(environment: dict[str, str], tmp_path: Path) -> None:
    put(tmp_path / "packages" / COPY)
    environment["PYTHONPATH"] = f":{tmp_path / 'packages'}"
    assert bundled.has_copy(["python3"], environment)


def test_in_the_users_own_packages(environment: dict[str, str]) -> None:
    put(Path(environment["HOME"]) / ".local/lib/python3.11/site-packages" / COPY)
    assert bundled.has_copy(["python3"], environment)


@pytest.mark.parametrize(
    "before, after",
    [
        (None, "libibverbs.so.1"),
        ("", "libibverbs.so.1"),
        ("/x/libmfs_shim.so", "/x/libmfs_shim.so libibverbs.so.1"),
        ("/lib/libibverbs.so.1:/x/libother.so", "/x/libother.so libibverbs.so.1"),
    ],
)
def test_preload_keeps_what_is_there_in_front(before: str | None, after: str) -> None:
    assert bundled.preload(before) == after
