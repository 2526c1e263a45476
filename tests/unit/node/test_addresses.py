"""Names of ports: the address that peers use."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd.node.addresses import PortNames, address_of_gid, read_gid_address
from mfsd.node.config import NicConfig
from mfsd.node.values import PortAddress, RateBytesPerS

LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
GLOBAL = "fd00:0000:0000:0000:0000:0000:0000:0007"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a01:0007"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"
SUBNET_ONLY = "fe80:0000:0000:0000:0000:0000:0000:0000"


def sysfs(folder: Path, *gids: str) -> Path:
    table = folder / "rdma0/ports/1/gids"
    table.mkdir(parents=True)
    for at, gid in enumerate(gids):
        (table / str(at)).write_text(gid + "\n")
    return folder


@pytest.mark.parametrize(
    ("gids", "address"),
    [
        ((LINK_LOCAL, LINK_LOCAL, GLOBAL, MAPPED), "10.1.0.7"),
        ((LINK_LOCAL, GLOBAL), "fd00::7"),
        ((EMPTY, LINK_LOCAL), "fe80::5054:ff:fe12:3456"),
        ((EMPTY, SUBNET_ONLY, "nonsense"), ""),
        ((), ""),
    ],
)
def test_the_gid_that_peers_use(tmp_path: Path, gids: tuple[str, ...], address: str) -> None:
    assert read_gid_address("rdma0", sysfs(tmp_path, *gids)) == address


def test_no_device(tmp_path: Path) -> None:
    assert read_gid_address("rdma9", tmp_path) == ""


def test_the_configuration_goes_first_and_a_name_stands_in() -> None:
    config = {"a": NicConfig(rate_bytes_per_s=RateBytesPerS(1), address=PortAddress("10.0.0.1"))}
    found = {"b": ""}
    names = PortNames("host", config, lambda device: found.get(device, "10.9.9.9"))
    assert names.own("a") == "10.0.0.1"
    assert names.own("b") == "host:b"
    found["b"] = "fd00::2"
    assert names.own("b") == "fd00::2"
    peer = b"\0" * 10 + b"\xff\xff\x0a\0\0\2"
    assert names.flow("a", peer, incoming=False) == ("10.0.0.1/out", "10.0.0.2/in")
    assert names.flow("a", peer, incoming=True) == ("10.0.0.1/in", "10.0.0.2/out")
    assert names.flow("a", b"\0" * 16, incoming=False) == ("10.0.0.1/out",)
    assert address_of_gid(b"\0" * 16) == ""
