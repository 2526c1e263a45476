"""The DCB codec against iproute2's `dcb`: both work on one device, each must see what the other did."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mfsd.fabric.dcb import SELECTOR_DSCP, SELECTOR_PCP, DcbLink, Ets

Dcb = Callable[..., Any]
pytestmark = pytest.mark.skipif(shutil.which("dcb") is None, reason="iproute2's dcb is not installed")


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("bridge") / "dcb_bridge.so"
    source = Path(__file__).with_name("dcb_bridge.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture
def dcb(dcb_device: Any, bridge: Path, tmp_path: Path) -> Iterator[Dcb]:
    """Runs `dcb -j ARGUMENTS` on the device and returns what it printed."""
    path = tmp_path / "kernel"
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                while request := connection.recv(1 << 16):
                    connection.send(dcb_device.exchange(request))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def run(*arguments: str) -> Any:
        environment = os.environ | {"LD_PRELOAD": str(bridge), "DCB_BRIDGE": str(path)}
        result = subprocess.run(["dcb", "-j", *arguments], env=environment, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout) if result.stdout.strip() else None

    yield run
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join(5)


def test_dcb_sees_the_ets_we_write(dcb_device: Any, dcb: Dcb) -> None:
    ets = Ets((0, 1, 2, 3, 4, 5, 6, 7), (2, 2, 0, 2, 0, 0, 0, 0), (20, 10, 0, 70, 0, 0, 0, 0))
    DcbLink("eth0", dcb_device.exchange).write_ets(ets)
    shown = dcb("ets", "show", "dev", "eth0")
    assert shown["prio_tc"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert shown["tc_bw"] == [20, 10, 0, 70, 0, 0, 0, 0]
    assert shown["tc_tsa"] == ["ets", "ets", "strict", "ets", "strict", "strict", "strict", "strict"]
    assert shown["willing"] is False


def test_we_see_the_ets_dcb_writes(dcb_device: Any, dcb: Dcb) -> None:
    dcb(
        "ets",
        "set",
        "dev",
        "eth0",
        "prio-tc",
        "0:0",
        "3:2",
        "tc-tsa",
        "all:strict",
        "2:ets",
        "tc-bw",
        "2:100",
    )
    assert DcbLink("eth0", dcb_device.exchange).read().ets == Ets(
        (0, 0, 0, 2, 0, 0, 0, 0), (0, 0, 2, 0, 0, 0, 0, 0), (0, 0, 100, 0, 0, 0, 0, 0)
    )


def test_pfc_both_ways(dcb_device: Any, dcb: Dcb) -> None:
    link = DcbLink("eth0", dcb_device.exchange)
    link.write_pfc((3, 4))
    assert dcb("pfc", "show", "dev", "eth0", "prio-pfc")["prio_pfc"] == [
        False,
        False,
        False,
        True,
        True,
        False,
        False,
        False,
    ]
    dcb("pfc", "set", "dev", "eth0", "prio-pfc", "all:off", "5:on")
    assert link.read().pfc == (5,)


def test_dscp_map_both_ways(dcb_device: Any, dcb: Dcb) -> None:
    link = DcbLink("eth0", dcb_device.exchange)
    link.add_dscps({26: 3, 34: 4, 48: 6})
    link.remove_dscps({34: 4})
    assert sorted(dcb("-N", "app", "show", "dev", "eth0", "dscp-prio")["dscp_prio"]) == [[26, 3], [48, 6]]
    dcb("app", "add", "dev", "eth0", "dscp-prio", "10:1")
    assert link.read().dscp_to_priority == {10: 1, 26: 3, 48: 6}


def test_dcbx_both_ways(dcb_device: Any, dcb: Dcb) -> None:
    link = DcbLink("eth0", dcb_device.exchange)
    link.write_dcbx(0x05)
    shown = dcb("dcbx", "show", "dev", "eth0")
    assert {name for name, on in shown.items() if on is True} == {"host", "cee"}
    dcb("dcbx", "set", "dev", "eth0", "host", "ieee")
    assert link.read_dcbx() == 0x09


def _settled(request: bytes) -> bytes:
    """A request without what two programs may choose freely: flags, sequence, sender, the nested-attribute
    mark."""
    size, kind = struct.unpack_from("IH", request)
    body = bytearray(request[16:size])
    for at in range(4, len(body) - 3, 4):
        if body[at + 3] & 0x80 and body[at + 2] in (1, 3, 13):
            body[at + 3] &= 0x7F
    return struct.pack("H", kind) + bytes(body)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda link: link.write_pfc((3,)), ("pfc", "set", "dev", "eth0", "prio-pfc", "all:off", "3:on")),
        (
            lambda link: link.write_ets(Ets((0, 1) * 4, (0, 2) * 4, (0, 25) * 4)),
            (
                "ets",
                "set",
                "dev",
                "eth0",
                "prio-tc",
                "all:0",
                "1:1",
                "3:1",
                "5:1",
                "7:1",
                "tc-tsa",
                "all:strict",
                "1:ets",
                "3:ets",
                "5:ets",
                "7:ets",
                "tc-bw",
                "all:0",
                "1:25",
                "3:25",
                "5:25",
                "7:25",
                "willing",
                "off",
            ),
        ),
        (
            lambda link: link.add_dscps({26: 3, 48: 6}),
            ("app", "add", "dev", "eth0", "dscp-prio", "26:3", "48:6"),
        ),
        (lambda link: link.write_dcbx(0x09), ("dcbx", "set", "dev", "eth0", "host", "ieee")),
        (lambda link: link.read(), ("ets", "show", "dev", "eth0")),
    ],
    ids=["pfc", "ets", "app", "dcbx", "read"],
)
def test_the_bytes_are_those_of_dcb(
    ours: Callable[[DcbLink], object], theirs: tuple[str, ...], dcb_device: Any, dcb: Dcb
) -> None:
    ours(DcbLink("eth0", dcb_device.exchange))
    mine = dcb_device.requests[-1]
    fresh = type(dcb_device)()
    vars(dcb_device).update(vars(fresh))
    dcb(*theirs)
    assert _settled(mine) == _settled(dcb_device.requests[-1])


def test_trust_table_round_trip(dcb_device: Any) -> None:
    """Kernels since 6.2 have it; this release of dcb does not, so only the device judges."""
    link = DcbLink("eth0", dcb_device.exchange)
    assert link.read().trust is None
    dcb_device.has_trust = True
    link.write_trust((SELECTOR_DSCP, SELECTOR_PCP))
    assert dcb_device.trust == [5, 24]
    assert link.read().trust == (5, 24)
