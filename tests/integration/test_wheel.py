"""The wheel in an environment of its own: what other programs find of it by its metadata and by site."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.packaged import digest

FINDER = "import sys; print([type(f).__module__ for f in sys.meta_path].count('mooncake_adapter.hook'))"
ENTRY = """
from importlib.metadata import entry_points
(found,) = [one for one in entry_points(group={group!r}) if one.name == "mfs"]
register = found.load()
print(found.value, found.dist.name, register.__module__)
"""


def wheel(folder: Path) -> Path:
    """Of these very sources: the one of `make dist`, which is made of the sdist as a user's is, or one built now."""
    made = ROOT / "dist/of"
    if made.exists() and made.read_text().strip() == digest():
        folder = made.parent
    else:
        build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
        subprocess.run((sys.executable, *build), check=True)
    (found,) = folder.glob("mfsd-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python of a clean environment that has the wheel and what the wheel asks for."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv/bin/python"
    subprocess.run((python, "-m", "pip", "install", "-q", wheel(folder)), check=True)
    yield python


def run(tmp_path: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program of that environment, where the checkout is not seen."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MFS_MODE", "MFS_SOCKET")}
    return subprocess.run(
        command, cwd=tmp_path, env={**kept, **environment}, capture_output=True, text=True, timeout=300
    )


def output(python: Path, program: str, tmp_path: Path, **environment: str) -> str:
    done = run(tmp_path, python, "-c", program, **environment)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("group", "module", "adapter"),
    [
        ("vllm.general_plugins", "mooncake_adapter.vllm_plugin", "mooncake_adapter.vllm.plugin"),
        ("sglang.srt.plugins", "mooncake_adapter.sglang_plugin", "mooncake_adapter.sglang.plugin"),
    ],
)
def test_engines_find_their_plugin(installed: Path, tmp_path: Path, group: str, module: str, adapter: str) -> None:
    assert output(installed, ENTRY.format(group=group), tmp_path) == f"{module}:register mfsd {adapter}"


def test_programs_under_mfs_run_are_adapted_by_site(installed: Path, tmp_path: Path) -> None:
    assert output(installed, FINDER, tmp_path, MFS_MODE="enforce") == "1"
    assert output(installed, FINDER, tmp_path, MFS_MODE="off") == "0"
    assert output(installed, FINDER, tmp_path) == "0"


def test_what_the_wheel_brings_works(installed: Path, tmp_path: Path) -> None:
    program = (
        "import mfsd.client, mfsd._native, mooncake_adapter; print(mooncake_adapter.current_session() is not None)"
    )
    assert output(installed, program, tmp_path, MFS_SOCKET=str(tmp_path / "none")) == "True"


def test_nixls_backend_is_there_and_loads(installed: Path, tmp_path: Path) -> None:
    program = (
        "import ctypes, mooncake_adapter.nixl_plugins as p, nccl_shim.run as r; assert r.NIXL_PLUGINS == p.FOLDER;"
        "print(len([ctypes.CDLL(str(one)).nixl_plugin_init for one in p.FOLDER.glob('lib*.so')]))"
    )
    assert int(output(installed, program, tmp_path)) == 14


@pytest.mark.parametrize("command", ["mfsd", "mfsctl", "mfs-run", "mfs-soft-roce"])
def test_commands_are_there(installed: Path, tmp_path: Path, command: str) -> None:
    done = run(tmp_path, installed.with_name(command), "--version")
    assert done.returncode == 0 and "version" in done.stdout, done.stderr


@pytest.mark.parametrize("file", ["share/man/man8/mfsd.8", "include/mfs/api.h"])
def test_what_is_no_python_is_there(installed: Path, file: str) -> None:
    assert (installed.parents[1] / file).is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ["doctor", "--quiet"],
        ["host", "show", "--dev", "lo"],
        ["switch", "render", "--nos", "cumulus", "--ports", "swp[1-2]"],
        ["switch", "render", "--nos", "linux", "--ports", "lo"],
    ],
    ids=" ".join,
)
def test_commands_need_nothing_else(installed: Path, tmp_path: Path, arguments: list[str]) -> None:
    """What the README names works with what `pip install .` brings."""
    done = run(tmp_path, installed.with_name("mfsctl"), *arguments)
    assert "No module named" not in done.stdout + done.stderr and "Traceback" not in done.stderr, done.stderr
    assert done.stdout
