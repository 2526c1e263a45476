"""Which rate of a NIC is believed, and that made-up NICs cannot displace real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mfsd._native import NICS_MAX
from mfsd.node.config import NicConfig
from mfsd.node.nics import NicTable, read_host_rates, read_physical, read_rate_text
from mfsd.node.values import RateBytesPerS

MBIT = 125_000
GBIT = 1000 * MBIT


class Registry:
    """Stands for the arbiter: a NIC is its name and guid, a rate of 0 keeps what is known."""

    def __init__(self) -> None:
        self.keys: list[tuple[str, int]] = []
        self.rates: dict[str, int] = {}

    def nic(self, name: str, guid: int, rate_bytes_per_s: int) -> int:
        if (name, guid) not in self.keys:
            self.keys.append((name, guid))
        if rate_bytes_per_s:
            self.rates[name] = rate_bytes_per_s
        return self.keys.index((name, guid))


def test_configuration_goes_before_the_host_and_the_host_before_clients() -> None:
    registry = Registry()
    host = {"mlx5_0": 200, "mlx5_1": 100}
    table = NicTable(registry, {"mlx5_0": NicConfig(rate_bytes_per_s=RateBytesPerS(50))}, lambda: host)
    for client, name in enumerate(("mlx5_0", "mlx5_1", "soft0")):
        table.register(client, name, client, MBIT)
    assert registry.rates == {"mlx5_0": 50, "mlx5_1": 100, "soft0": MBIT}


def test_one_client_cannot_change_the_rate_that_another_reported() -> None:
    registry = Registry()
    table = NicTable(registry, {}, dict)
    table.register(1, "soft0", 7, GBIT)
    table.register(2, "soft0", 7, MBIT)
    assert registry.rates == {"soft0": GBIT}
    table.register(1, "soft0", 7, GBIT // 2)
    assert registry.rates == {"soft0": GBIT}, "client 2 plans with it too"
    table.forget(1)
    table.forget(2)
    table.register(3, "soft0", 7, MBIT)
    assert registry.rates == {"soft0": MBIT}, "no other has it open"


def test_a_reload_changes_rates() -> None:
    registry = Registry()
    table = NicTable(registry, {}, dict)
    table.register(1, "soft0", 7, GBIT)
    table.reconfigure({"soft0": NicConfig(rate_bytes_per_s=RateBytesPerS(50))})
    assert registry.rates == {"soft0": 50}
    table.reconfigure({})
    assert registry.rates == {"soft0": GBIT}


def test_one_nic_is_one_nic_whatever_a_client_calls_it() -> None:
    registry = Registry()
    table = NicTable(
        registry, {"mlx5_2": NicConfig(rate_bytes_per_s=RateBytesPerS(100))}, lambda: {"mlx5_0": 100, "mlx5_1": 100}
    )
    first = table.register(1, "soft0", 0, 1000)
    assert table.register(2, "soft0", 7, 1000) == first, "an engine does not know the GUID, the verbs library does"
    assert table.register(3, "soft0", 8, 1000) == first, "a name is unique on a host"
    assert table.register(4, "renamed", 7, 1000) == first, "the same device under its former name"
    assert table.names() == {first: "soft0"} and table.count == 1
    host = [table.register(5, name, 7, 0) for name in ("mlx5_0", "mlx5_1", "mlx5_2")]
    assert len({first, *host}) == 4, "functions that share a GUID are devices of their own to the host"
    assert table.register(6, "unknown", 0, 0) not in (first, *host), "no GUID belongs to no device"
    table.reconfigure({"soft0": NicConfig(rate_bytes_per_s=RateBytesPerS(50))})
    assert registry.rates["soft0"] == 50 and len(registry.keys) == 5


def test_made_up_names_leave_room_for_real_devices() -> None:
    table = NicTable(Registry(), {}, lambda: {"mlx5_0": 1, "mlx5_1": 1})
    for n in range(NICS_MAX - 2):
        table.register(1, f"fake{n}", n + 10, 0)
    for guid in range(2):
        with pytest.raises(OSError, match=f"{NICS_MAX} NICs are known .* fewer devices"):
            table.register(1, "fake", 99 + guid, 0)
    table.register(2, "mlx5_0", 5, 0)
    table.register(1, "mlx5_0", 6, 0)
    assert table.count == NICS_MAX - 1, "the second takes no room"
    table.register(2, "mlx5_1", 5, 0)
    assert table.count == NICS_MAX
    table.register(3, "mlx5_1", 5, 0)


def test_rates_of_the_host(tmp_path: Path) -> None:
    for device, ports in {
        "mlx5_0": ["100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)"],
        "odd": ["fast"],
        "vain": ["inf Gb/sec", "nan Gb/sec", "-100 Gb/sec", "1e300 Gb/sec", "100000 Gb/sec", "0 Gb/sec"],
        "none": [],
    }.items():
        (tmp_path / device).mkdir()
        for number, rate in enumerate(ports):
            (tmp_path / device / "ports" / str(number)).mkdir(parents=True)
            (tmp_path / device / "ports" / str(number) / "rate").write_text(rate + "\n")
    assert read_host_rates(tmp_path) == {"mlx5_0": 12_500_000_000, "odd": 0, "vain": 0, "none": 0}
    assert read_rate_text("mlx5_0", tmp_path) == "100 Gb/sec (4X EDR), 2.5 Gb/sec (1X SDR)"
    assert read_rate_text("none", tmp_path) == read_rate_text("absent", tmp_path) == ""
    assert read_host_rates(tmp_path / "absent") == {}


class Lines:
    def __init__(self) -> None:
        self.found: list[tuple[object, ...]] = []

    def warning(self, event: str, **values: object) -> None:
        self.found.append((event, values["nic"], values["says"], values["planned_with"]))


@pytest.mark.parametrize("told", [1, 999, 10_000 * GBIT + 1, 2**64 - 1])
def test_a_rate_that_no_port_has_is_not_believed_of_a_program_and_is_said_once(told: int) -> None:
    registry, lines = Registry(), Lines()
    table = NicTable(registry, {}, dict, log=lines)
    for _ in range(3):
        table.register(1, "soft0", 7, told)
    assert registry.rates == {}, "a rate of 0: the arbiter's default"
    expected = ("nic-rate-unbelievable", "soft0", f"{told * 8} bit/s, as a program found", "arbiter.rate_default")
    assert lines.found == [expected]
    table.register(2, "soft0", 7, GBIT)
    assert registry.rates == {"soft0": GBIT} and len(lines.found) == 1


def test_a_port_that_says_nonsense_is_named_unless_the_configuration_knows_better() -> None:
    registry, lines = Registry(), Lines()
    known = {"mlx5_1": NicConfig(rate_bytes_per_s=RateBytesPerS(GBIT))}
    table = NicTable(registry, known, lambda: {"mlx5_0": 0, "mlx5_1": 0}, log=lines, host_text=lambda name: "fast")
    for name in ("mlx5_0", "mlx5_1", "mlx5_0"):
        table.register(1, name, 7, 100 * GBIT)
    assert lines.found == [("nic-rate-unbelievable", "mlx5_0", "fast", "100gbit")]
    quiet = NicTable(Registry(), {}, lambda: {"mlx5_0": 0}, log=lines, host_text=lambda name: "")
    quiet.register(1, "mlx5_0", 7, 0)
    assert len(lines.found) == 1, "a port that says nothing says no nonsense"


def test_virtual_functions_share_the_window_of_their_port() -> None:
    registry = Registry()
    physical = {f"mlx5_{n}": "mlx5_0" for n in range(2, 60)}
    host = dict.fromkeys(["mlx5_0", "mlx5_1", *physical], 200)
    table = NicTable(
        registry,
        {"mlx5_3": NicConfig(rate_bytes_per_s=RateBytesPerS(50))},
        lambda: host,
        lambda name: physical.get(name, name),
    )
    indices = {name: table.register(1, name, number, 9) for number, name in enumerate(host)}
    assert {indices[name] for name in physical if name != "mlx5_3"} == {indices["mlx5_0"]}
    assert len({indices["mlx5_0"], indices["mlx5_1"], indices["mlx5_3"]}) == 3, "the configuration names one for itself"
    assert table.register(1, "soft0", 99, 9) not in indices.values(), "functions take no slots"


def test_a_function_that_the_host_does_not_show_shares_the_port_that_the_configuration_names() -> None:
    """A program in a network namespace names it, with a rate and a GUID of its own."""
    registry = Registry()
    config = {"mlx5_7": NicConfig(port="mlx5_0"), "mlx5_8": NicConfig(port="mlx5_1")}
    table = NicTable(registry, config, lambda: {"mlx5_0": 200}, lambda name: name)
    port = table.register(1, "mlx5_0", 1, 9)
    assert table.register(2, "mlx5_7", 77, 400) == port
    assert table.register(3, "mlx5_8", 78, 400) != port, "its port is not shown either"
    assert table.names() == {port: "mlx5_0", port + 1: "mlx5_1"}
    assert table.configured("mlx5_7") == 0
    table.reconfigure({})
    assert table.register(4, "mlx5_7", 77, 400) == port, "the GUID is known by then"


def make_device(folder: Path, at: Path, name: str) -> None:
    (at / "infiniband" / name).mkdir(parents=True)
    (folder / name).mkdir()
    (folder / name / "device").symlink_to(at)


def test_the_physical_function_is_read_from_sysfs(tmp_path: Path) -> None:
    port, virtual = tmp_path / "pci/0000:05:00.0", tmp_path / "pci/0000:05:00.1"
    make_device(tmp_path, port, "mlx5_0")
    make_device(tmp_path, virtual, "mlx5_2")
    (virtual / "physfn").symlink_to(port)
    assert read_physical("mlx5_2", tmp_path) == "mlx5_0"
    assert read_physical("mlx5_0", tmp_path) == "mlx5_0"
    assert read_physical("nothing", tmp_path) == "nothing"


def test_functions_of_bonded_ports_are_the_one_device_that_these_have(tmp_path: Path) -> None:
    ports = [tmp_path / f"pci/0000:05:00.{number}" for number in range(2)]
    make_device(tmp_path, ports[0], "mlx5_bond_0")
    bond = tmp_path / "virtual/net/bond0"
    bond.mkdir(parents=True)
    for number, port in enumerate(ports):
        interface = port / f"net/eth{number}"
        interface.mkdir(parents=True)
        (interface / "device").symlink_to(port)
        (interface / "master").symlink_to(bond)
        (bond / f"lower_eth{number}").symlink_to(interface)
        virtual = tmp_path / f"pci/0000:05:01.{number}"
        make_device(tmp_path, virtual, f"mlx5_{2 + number}")
        (virtual / "physfn").symlink_to(port)
    assert [read_physical(name, tmp_path) for name in ("mlx5_bond_0", "mlx5_2", "mlx5_3")] == ["mlx5_bond_0"] * 3


def test_a_subfunction_is_the_device_below_which_it_lies(tmp_path: Path) -> None:
    port = tmp_path / "pci/0000:05:00.0"
    make_device(tmp_path, port, "mlx5_0")
    make_device(tmp_path, port / "mlx5_core.sf.4", "mlx5_2")
    make_device(tmp_path, tmp_path / "pci/0000:06:00.0", "mlx5_1")
    assert [read_physical(f"mlx5_{number}", tmp_path) for number in range(3)] == ["mlx5_0", "mlx5_1", "mlx5_0"]
