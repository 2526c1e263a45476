"""The program that loads pyverbs: what it cannot do is said in one line, and no caller waits for it for ever."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from pathlib import Path

import pytest

from mfsd.verbs import ask, program
from mfsd.verbs.ask import (
    VerbsFailed,
    VerbsMissing,
    answer_of,
    ask_devices,
    ask_devices_later,
    ask_message,
    environment,
)


def python_with(folder: Path, **files: str) -> Path:
    """A Python that finds these modules of a package pyverbs."""
    (folder / "pyverbs").mkdir()
    for name in ("__init__", *files):
        (folder / f"pyverbs/{name}.py").write_text(files.get(name, ""))
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


def test_a_python_without_pyverbs(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$2" "$3"\n')
    python.chmod(0o755)
    with pytest.raises(VerbsMissing, match=r"Python 3\.\S+ \(.*\) has no pyverbs$"):
        ask_devices(python)
    with pytest.raises(VerbsMissing, match="there is no /nowhere/python3"):
        ask_devices(Path("/nowhere/python3"))


def test_a_pyverbs_that_does_not_load(tmp_path: Path) -> None:
    """As one that was built for another libibverbs."""
    python = python_with(tmp_path, device="raise ImportError('libibverbs.so.1: no IBVERBS_1.14')")
    with pytest.raises(VerbsMissing) as error:
        ask_devices(python)
    assert str(error.value).endswith("pyverbs does not load: libibverbs.so.1: no IBVERBS_1.14")


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("", "cannot import name 'Context' from 'pyverbs.device'"),
        ("def get_device_list(kind): ...\nclass Context: ...", "missing 1 required positional argument"),
        (
            "import types\ndef get_device_list(): return [types.SimpleNamespace()]\nclass Context: ...",
            "no attribute 'name'",
        ),
    ],
)
def test_a_pyverbs_of_another_version(tmp_path: Path, device: str, said: str) -> None:
    python = python_with(tmp_path, device=device, pyverbs_error="class PyverbsError(Exception): ...")
    with pytest.raises(VerbsMissing, match="pyverbs is of another version") as error:
        ask_devices(python)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_device_that_cannot_be_opened_hides_no_other(tmp_path: Path) -> None:
    device = (
        "from types import SimpleNamespace as N\n"
        "from pyverbs.pyverbs_error import PyverbsError\n"
        "def get_device_list(): return [N(name=b'bad'), N(name=b'good')]\n"
        "class Context:\n"
        "    def __init__(self, name):\n"
        "        if name == 'bad': raise PyverbsError('Failed to open\\ndevice')\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_): pass\n"
        "    def query_device(self):\n"
        "        some = dict(max_qp=1, max_qp_wr=2, max_mr=3, max_cq=4, device_cap_flags=5)\n"
        "        return N(fw_version='1', phys_port_cnt=1, **some)\n"
        "    def query_port(self, number):\n"
        "        return N(state=4, link_layer=2, active_mtu=5, active_speed=64, active_width=2, gid_tbl_len=2)\n"
        "    def query_gid(self, port, i): return N(gid=['::', '0000:0000:0000:0000:0000:ffff:0a00:0001'][i])\n"
        "    def query_gid_type(self, port, i): return 1\n"
    )
    found = ask_devices(python_with(tmp_path, device=device, pyverbs_error="class PyverbsError(Exception): ..."))
    assert found.devices["bad"].error == "Failed to open device" and not found.devices["bad"].ports
    port = found.devices["good"].ports[1]
    assert (port.state, port.link, port.rate_bytes_per_s, port.mtu_bytes) == (
        "ACTIVE",
        "Ethernet",
        25_000_000_000,
        4096,
    )
    assert {i: g.type for i, g in port.gids.items()} == {1: "RoCE v2"}
    assert ipaddress.ip_address(port.gids[1].gid) == ipaddress.ip_address("::ffff:10.0.0.1")


@pytest.mark.parametrize("later", [False, True])
def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: bool) -> None:
    monkeypatch.setattr(ask, "LIMIT_S", 0.2)
    python = python_with(tmp_path, device="import time\ntime.sleep(1000)")
    with pytest.raises(VerbsFailed, match=r"libibverbs has not answered after 0\.2 s"):
        if later:
            asyncio.run(ask_devices_later(python))
        else:
            ask_devices(python)


def test_what_is_no_answer_is_reported() -> None:
    with pytest.raises(VerbsFailed, match="ended with -11: Segmentation fault"):
        answer_of(-11, "", "Segmentation\nfault\n")
    with pytest.raises(VerbsFailed, match="ended with 0: libibverbs: hello"):
        answer_of(0, "libibverbs: hello", "")
    with pytest.raises(VerbsFailed, match=r"^no such device$"):
        answer_of(0, '{"python": "x", "error": "no such device"}', "libibverbs: Warning: couldn't load driver")


def test_the_shim_is_not_preloaded() -> None:
    assert environment({"LD_PRELOAD": "/opt/libmfs_shim.so:/lib/other.so", "A": "b"}) == {
        "LD_PRELOAD": "/lib/other.so",
        "A": "b",
    }
    assert environment({"LD_PRELOAD": "/opt/libmfs_shim.so"}) == {}


def test_packets_are_read_by_their_headers() -> None:
    four = bytes([0x45, 26 << 2]) + bytes(10) + bytes([10, 0, 0, 1]) + bytes([10, 0, 0, 2])
    six = (6 << 28 | 26 << 22).to_bytes(4, "big") + bytes(4) + bytes([1] * 16) + bytes([2] * 16)
    mapped = tuple(ipaddress.IPv6Address(f"::ffff:10.0.0.{i}") for i in (1, 2))
    assert program.ends_of(four) == mapped and program.traffic_class(four) >> 2 == 26
    assert program.ends_of(six) == tuple(ipaddress.IPv6Address(bytes([i] * 16)) for i in (1, 2))
    assert program.traffic_class(six) >> 2 == 26
    assert program.ends_of(b"\0" * 60) is None and program.ends_of(b"\x45") is None


def test_a_device_that_is_not_there(tmp_path: Path) -> None:
    if not Path("/usr/lib/python3/dist-packages/pyverbs").is_dir():
        pytest.skip("python3-pyverbs is not installed")
    with pytest.raises(VerbsFailed, match=r"^Failed to"):
        ask_message("nowhere0", 1, 0, 26)
