"""Which coordinators the doctor asks, and what it makes of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mfsd.node.control import DaemonStatus, StatusReply
from mfsd.observe.doctor.checks import Check, coordinator
from mfsd.observe.doctor.host import version
from mfsd.proto import mfs_pb2 as pb

Checks = Callable[[str], Check]
PID = 77


def daemon(doctor: Any, *, config: str | None = None, arguments: tuple[str, ...] = ()) -> None:
    """A daemon with this configuration file and command line, as far as the doctor can see."""
    file = None
    if config is not None:
        doctor.write("mfsd.toml", config)
        file = str(doctor.folder / "mfsd.toml")
    (doctor.folder / f"proc/{PID}").mkdir(parents=True)
    (doctor.folder / f"proc/{PID}/cmdline").write_text("\0".join(("mfsd", *arguments, "")))
    values: dict[str, Any] = dict.fromkeys(DaemonStatus.__struct_fields__, 0)
    values |= {"version": "0", "mode": "enforce", "socket": "", "config_file": file, "pid": PID, "refused": {}}
    doctor.host.__dict__["status"] = StatusReply(DaemonStatus(**values), [], [])


def test_addresses_come_from_here_then_the_command_line_then_the_file(doctor: Any) -> None:
    daemon(doctor, config='[cluster]\ncoordinators = ["file:1"]\nnode = "n1"', arguments=())
    assert coordinator.find_cluster(doctor.host).addresses == ("file:1",)
    assert coordinator.find_cluster(doctor.host).node == "n1"
    (doctor.folder / f"proc/{PID}/cmdline").write_text("mfsd\0--coordinator-address\0one:1, two:2\0")
    assert coordinator.find_cluster(doctor.host).addresses == ("one:1", "two:2")
    (doctor.folder / f"proc/{PID}/cmdline").write_text("mfsd\0--coordinator-address=three:3\0")
    assert coordinator.find_cluster(doctor.host).addresses == ("three:3",)
    doctor.host.coordinators = ("mine:1",)
    cluster = coordinator.find_cluster(doctor.host)
    assert (cluster.addresses, cluster.node) == (("mine:1",), ""), "no daemon need be linked to it"


def test_certificates_are_those_of_the_daemon(doctor: Any) -> None:
    files = 'ca = "/a"\ncertificate = "/b"\nkey = "/c"'
    daemon(doctor, config=f'[cluster]\ncoordinators = ["file:1"]\n{files}')
    tls = coordinator.find_cluster(doctor.host).tls
    assert tls is not None and (str(tls.ca), str(tls.certificate), str(tls.key)) == ("/a", "/b", "/c")


def test_a_configuration_that_cannot_be_read_is_not_no_configuration(doctor: Any, checks: Checks) -> None:
    daemon(doctor, config="[cluster\n")
    assert set(doctor(checks("coordinator"))) == {"coordinator.bad-config"}


def answer(nodes: tuple[str, ...] = ("n1", "n2"), **changes: Any) -> pb.StatusReply:
    connected = [*(pb.Node(node=node, connected=True) for node in nodes), pb.Node(node="lost")]
    values = {"address": "a:1", "version": version(), "leads": True, "leader": "a:1", "term": 3, "epoch": 9}
    return pb.StatusReply(**{**values, "nodes": connected, **changes})


@pytest.mark.parametrize(
    ("answers", "found"),
    [
        ([answer()], {"coordinator.leads"}),
        ([answer(), answer(address="b:1", leads=False)], {"coordinator.leads"}),
        ([answer(nodes=("n2",))], {"coordinator.not-linked"}),
        ([answer(leads=False), answer(address="b:1", leads=False)], {"coordinator.no-leader"}),
        ([answer(version="0.0.9")], {"coordinator.leads", "coordinator.version"}),
    ],
)
def test_what_coordinators_answer(
    doctor: Any, checks: Checks, monkeypatch: Any, answers: list[pb.StatusReply], found: set[str]
) -> None:
    addresses = ", ".join(f'"{a.address}"' for a in answers)
    daemon(doctor, config=f'[cluster]\nnode = "n1"\ncoordinators = [{addresses}]')
    by_address = {a.address: a for a in answers}
    monkeypatch.setattr(coordinator, "_ask", lambda text, tls: by_address[text])
    assert set(doctor(checks("coordinator"))) == found
