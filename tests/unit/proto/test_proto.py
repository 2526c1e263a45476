"""The checked-in message classes, addresses, and what is loaded without a coordinator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mfsd.cli.cluster_page import view
from mfsd.cli.commands.cluster import verdict_of
from mfsd.proto import generate
from mfsd.proto.wire import address_problem


def test_generating_the_message_classes_again_gives_the_same(tmp_path: Path) -> None:
    """In another process: a protocol file can be loaded only once."""
    subprocess.run(
        [
            *(sys.executable, "-c"),
            f"from pathlib import Path; from mfsd.proto.generate import generate; generate(Path({str(tmp_path)!r}))",
        ],
        check=True,
    )
    names = {p.name for p in (tmp_path / "mfsd/proto").iterdir()}
    assert names == {f"{name}_pb2.{kind}" for name in generate.FILES for kind in ("py", "pyi")}
    for name in names:
        assert (tmp_path / "mfsd/proto" / name).read_text() == (generate.PACKAGE / name).read_text(), (
            f"{name} is out of date: run python -m mfsd.proto.generate"
        )


def test_field_numbers_are_never_reused() -> None:
    """What version 1 has given out, for good: change this list only by adding to it."""
    from mfsd.proto import mfs_pb2 as pb

    known = {
        "Hello": "protocol protocol_oldest node version epoch ports authority term",
        "Report": "ports departed arrived updated loads routed snapshot_end term",
        "Batch": "batch_id unit compute_left_ns requests port size_bytes",
        "Request": "request_id budget_left_ns port size_bytes",
        "Welcome": "protocol authority term heartbeat_ns",
        "Standby": "leader authority term heartbeat_ns",
        "Order": "term epoch snapshot batch_id key pruned restored_batch_id restored_request_id refused",
        "Pruned": "batch_id request_id for_batch port",
        "Heartbeat": "term epoch stamp_ns",
        "FromNode": "hello report echo",
        "ToNode": "welcome standby refusal order heartbeat",
        "Outcome": "request_id met",
        "Attainment": "met missed recent_met recent_missed window_ns",
    }
    for message, fields in known.items():
        numbers = {f.name: f.number for f in pb.DESCRIPTOR.message_types_by_name[message].fields}
        for number, name in enumerate(fields.split(), start=1):
            assert numbers[name] == number, f"{message}.{name}"
    later = {
        ("Report", "outcomes"): 20,
        ("Report", "tiers"): 11,
        ("StatusReply", "attainment"): 20,
        ("StatusReply", "tiers"): 24,
        ("Node", "tiers"): 10,
    }
    for (message, name), number in later.items():
        assert pb.DESCRIPTOR.message_types_by_name[message].fields_by_name[name].number == number


def without_tiers() -> Callable[[str], Any]:
    """The messages of a version that knows no tiers of requests."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    from mfsd.proto import mfs_pb2 as pb

    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    for message in file.message_type:
        kept = [field for field in message.field if field.name != "tiers"]
        del message.field[:]
        message.field.extend(kept)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def test_versions_without_tiers_understand_the_rest_and_are_understood() -> None:
    from mfsd.proto import mfs_pb2 as pb

    old = without_tiers()
    tiers = pb.Tiers(engines=1, tiers=[pb.RequestTier(name="chat", met=3)])
    new_daemon = pb.Report(term=7, departed=[5], outcomes=[pb.Outcome(request_id=1, met=True)], tiers=tiers)
    at_old = old("Report").FromString(new_daemon.SerializeToString())
    assert (at_old.term, list(at_old.departed), at_old.outcomes[0].met) == (7, [5], True)
    old_daemon = old("Report")(term=7, departed=[5])
    at_new = pb.Report.FromString(old_daemon.SerializeToString())
    assert list(at_new.departed) == [5] and not at_new.HasField("tiers"), "as before, not: no engines any more"
    old_coordinator = old("StatusReply")(leads=True, nodes=[old("Node")(node="a", connected=True)])
    reply = pb.StatusReply.FromString(old_coordinator.SerializeToString())
    assert (verdict_of(reply, 1, {}, "", {}).tiers, view(reply, "", history=False, ports_known="")["tiers"]) == ([], [])


@pytest.mark.parametrize(
    ("imported", "spared"),
    [
        ("mfsd.cli.daemon, mfsd.node.daemon, mfsd.node.link, mfsd.cli.ctl", ("grpc", "h2", "google.protobuf.internal")),
        ("mfsd.cli.daemon, mfsd.node.daemon, mfsd.node.link_stream", ("grpc",)),
    ],
)
def test_daemons_load_what_they_need(imported: str, spared: tuple[str, ...]) -> None:
    """Without a coordinator neither its protocol's libraries nor protobuf; with one not grpcio, which has threads."""
    program = f"import sys, {imported}; print([m for m in sys.modules if m.startswith({spared!r})])"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert output.stdout.strip() == "[]"


@pytest.mark.parametrize("good", ["a:1", "10.0.0.1:7400", "[::]:7400", "[fd00::1]:65535", "coord.example.com:0"])
def test_addresses(good: str) -> None:
    assert address_problem(good) is None


@pytest.mark.parametrize("bad", ["", "a", ":1", "a:", "::1:7400", "a:x", "a:65536", "a:-1", "a:١"])
def test_what_is_no_address(bad: str) -> None:
    assert address_problem(bad) is not None


@pytest.mark.parametrize("url", ["http://etcd-1:2379", "https://[::1]:2379", "coord://a:1"])
def test_a_url_is_not_taken_for_an_ipv6_address(url: str) -> None:
    assert address_problem(url) == "it is a URL: leave out the scheme"
