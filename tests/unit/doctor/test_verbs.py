"""What the doctor says of libibverbs, by what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mfsd.observe.doctor.checks import Check
from mfsd.verbs.ask import Device, Devices, Gid, Message, Port, VerbsFailed, VerbsMissing

GIDS = {0: Gid("fe80::1", "IB/RoCE v1"), 3: Gid("::ffff:10.0.0.1", "RoCE v2")}
PORT = Port("ACTIVE", "Ethernet", 12_500_000_000, 4096, GIDS)


def found(**changes: Any) -> Devices:
    return Devices(
        "Python 3.11", {"mlx5_0": Device(firmware="16.35", ports={1: msgspec.structs.replace(PORT, **changes)})}
    )


@pytest.fixture
def verbs(checks: Callable[[str], Check]) -> Check:
    return checks("verbs")


def test_without_pyverbs_it_says_that_sysfs_was_read(doctor: Any, verbs: Check) -> None:
    assert doctor(verbs) == {}, "no device, nothing to say"
    doctor.device()
    doctor.verbs = VerbsMissing("Python 3.12 has no pyverbs")
    assert doctor(verbs)["verbs.sysfs"].reason == "Python 3.12 has no pyverbs"
    doctor.host.try_verbs = True
    assert set(doctor(verbs)) == {"verbs.sysfs", "verbs.untried"}
    doctor.verbs = VerbsFailed("hangs")
    assert doctor(verbs)["verbs.failed"].reason == "hangs"


def test_what_libibverbs_finds(doctor: Any, verbs: Check) -> None:
    doctor.device(rate="100 Gb/sec (4X EDR)")
    doctor.verbs = found()
    assert "100 Gbit/s, MTU 4096, GID indices 0 3" in doctor(verbs)["verbs.agrees"].reason
    doctor.verbs = Devices("Python", {"mlx4_0": Device()})
    assert "names mlx4_0" in doctor(verbs)["verbs.no-provider"].reason
    doctor.verbs = Devices("Python", {"mlx5_0": Device(error="Permission denied")})
    assert doctor(verbs)["verbs.not-opened"].reason == "Permission denied"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "DOWN"}, "state: DOWN by libibverbs, ACTIVE in sysfs"),
        ({"link": "InfiniBand"}, "link layer: InfiniBand by libibverbs, Ethernet in sysfs"),
        ({"rate_bytes_per_s": 5}, "rate in bytes/s: 5 by libibverbs, 12500000000 in sysfs"),
    ],
)
def test_differences_are_reported(doctor: Any, verbs: Check, changes: dict[str, Any], reason: str) -> None:
    doctor.device(rate="100 Gb/sec (4X EDR)")
    doctor.verbs = found(**changes)
    assert doctor(verbs)["verbs.differs"].reason == reason


@pytest.mark.parametrize(
    ("dscps", "finding"),
    [([0, 34], "verbs.dscp-seen"), ([0], "verbs.dscp-other"), ([], "verbs.dscp-unseen"), (None, "verbs.dscp-unseen")],
)
def test_a_message_over_each_port(doctor: Any, verbs: Check, dscps: list[int] | None, finding: str) -> None:
    asked = []

    def moved(*what: Any) -> Message:
        asked.append(what)
        return Message(4096, dscps)

    doctor.device()
    doctor.verbs, doctor.message = found(), moved
    assert set(doctor(verbs)) == {"verbs.agrees"} and not asked, "only where it is asked for"
    doctor.host.try_verbs = True
    assert set(doctor(verbs)) == {"verbs.agrees", "verbs.moved", finding}
    assert asked == [("mlx5_0", 1, 3, doctor.host.profile.classes[0].dscp)], "by the RoCE v2 address"


def test_a_message_that_does_not_arrive(doctor: Any, verbs: Check) -> None:
    def refused(*_: Any) -> Message:
        raise VerbsFailed("Cannot allocate memory")

    doctor.device()
    doctor.verbs, doctor.message, doctor.host.try_verbs = found(), refused, True
    assert doctor(verbs)["verbs.not-moved"].reason == "Cannot allocate memory"
    doctor.verbs = found(gids={})
    assert "verbs.not-moved" not in doctor(verbs), "devices.no-roce-v2 says it"


def test_ports_are_read_by_libibverbs_where_it_answers(doctor: Any, checks: Callable[[str], Check]) -> None:
    doctor.device(mtu=4200)
    doctor.verbs = found(state="DOWN")
    assert "state is DOWN" in doctor(checks("devices"))["devices.port-down"].reason
    doctor.verbs = found(mtu_bytes=1024)
    assert "active_mtu is 1024" in doctor(checks("mtu"))["mtu.active-smaller"].reason
    doctor.verbs = VerbsMissing("gone")
    assert "devices.usable" in doctor(checks("devices")) and "mtu.active-smaller" not in doctor(checks("mtu"))
