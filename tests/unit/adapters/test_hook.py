"""Mooncake's classes are adapted whichever module imports them and whenever, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mooncake_adapter.hook import wanted

ROOT = Path(__file__).parents[3]
INSTALL = "import mooncake_adapter as a; a.install()"
ADAPTED = "getattr(mooncake.engine.TransferEngine, '_mfs_adapted', False)"
STORE = "getattr(mooncake.store.MooncakeDistributedStore, '_mfs_adapted', False)"


def python(program: str, *, mode: str = "enforce", first: str = "") -> str:
    """What a fresh interpreter prints."""
    environment = {**os.environ, "MFS_MODE": mode, "MFS_SOCKET": "/nowhere/mfsd.sock", "PYTHONPATH": f"{first}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_before_the_import() -> None:
    program = f"{INSTALL}; import mooncake.engine, mooncake.store; print({ADAPTED}, {STORE})"
    assert python(program) == "True True"


def test_after_the_import_and_twice() -> None:
    program = (
        "import mooncake.engine, mooncake_adapter as a; k = mooncake.engine.TransferEngine; a.install(); a.install();"
        f"print({ADAPTED}, mooncake.engine.TransferEngine.__mro__[1] is k)"
    )
    assert python(program) == "True True"


def test_the_line_that_mfs_run_relies_on() -> None:
    program = (
        f"import site; site.addsitedir({str(ROOT / 'mooncake_adapter')!r});"
        f"from mooncake.engine import TransferEngine; print(TransferEngine._mfs_adapted)"
    )
    assert python(program) == "True"


@pytest.mark.parametrize("how", ["import mooncake_adapter as a; a.install()", "import site; site.addsitedir('{}')"])
def test_off_means_untouched(how: str) -> None:
    program = f"{how.format(ROOT / 'mooncake_adapter')}; import mooncake.engine; print({ADAPTED})"
    assert python(program, mode="off") == "False"


def test_without_mooncake_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    program = (
        "import mooncake_adapter as a; a.install()\n"
        "try:\n import mooncake.engine\nexcept ModuleNotFoundError as error:\n print(error)"
    )
    (tmp_path / "mooncake/__init__.py").touch()
    assert python(program, first=str(tmp_path)) == "No module named 'mooncake.engine'"


def test_a_class_that_cannot_be_adapted_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/__init__.py").touch()
    (tmp_path / "mooncake/engine.py").write_text("class TransferEngine:\n    pass\n")
    program = f"{INSTALL}; import mooncake.engine; print(mooncake.engine.TransferEngine())"
    assert "TransferEngine object" in python(program, first=str(tmp_path))


def test_nothing_is_imported_before_mooncake_is() -> None:
    program = f"{INSTALL}; import sys; print([m for m in sys.modules if m in ('msgspec', 'ctypes')])"
    assert python(program) == "[]"


def test_without_a_daemon_transfers_are_as_ever() -> None:
    program = """
import mooncake_adapter; mooncake_adapter.install()
from mooncake.engine import TransferEngine
from tests.support.mooncake_peer import memory, started
import os
area, address = memory()
engine = started(TransferEngine(), address)
area[:4] = b"data"
own = f"127.0.0.1:{engine.get_rpc_port()}"
assert engine.transfer_sync_write(own, address, address + 8192, 4096) == 0
print(bytes(area[8192:8196]), flush=True)
os._exit(0)
"""
    assert python(program).splitlines()[-1] == "b'data'"


@pytest.mark.parametrize(("value", "adapted"), [("", False), ("0", False), ("1", True)])
def test_nixl_is_adapted_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch, value: str, adapted: bool) -> None:
    monkeypatch.setenv("MFS_NIXL", value)
    assert wanted("nixl_cu12._api") is adapted
    assert wanted("mooncake.engine") and not wanted("json")
