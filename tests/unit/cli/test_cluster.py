"""One verdict over the cluster: what is fatal, what is worth a check, and how it is reported."""

from __future__ import annotations

import pytest

from mfsd.cli.commands.cluster import Health, show, verdict_of
from mfsd.node.control import HealthFinding, HealthReply
from mfsd.proto import mfs_pb2 as pb


def leader(*nodes: pb.Node, met: int = 100, missed: int = 0) -> pb.StatusReply:
    reply = pb.StatusReply(address="coord-1:7400", leads=True, nodes=nodes)
    reply.attainment.recent_met, reply.attainment.recent_missed = met, missed
    return reply


def node(name: str = "a", connected: bool = True, silent_s: float = 0.0, rho: float = 0.5) -> pb.Node:
    found = pb.Node(node=name, connected=connected, silent_ns=int(silent_s * 1e9))
    found.ports.add(name=f"{name}/out", rho=rho)
    return found


def subjects(reply: pb.StatusReply | None, silent: dict[str, str] | None = None) -> tuple[str, list[tuple[str, str]]]:
    found = verdict_of(reply, 2, silent or {}, "remedy", {})
    return found.verdict, [(point.severity, point.subject) for point in found.points]


def test_all_is_well() -> None:
    assert subjects(leader(node())) == ("well", [("ok", "requests")])
    assert subjects(leader(node(), met=1)) == ("well", [("ok", "coord-1:7400")])


def test_a_lost_node_is_not_well_and_comes_first() -> None:
    verdict, points = subjects(leader(node("b", rho=0.99), node("a", connected=False, silent_s=7), met=5, missed=25))
    assert verdict == "not well"
    assert points == [("fail", "a"), ("warn", "b/out"), ("warn", "requests")]


def test_what_is_worth_a_look_does_not_spoil_the_verdict() -> None:
    reply = leader(node(silent_s=6))
    reply.oddities["reports out of order"] = 3
    verdict, points = subjects(reply, {"coord-2:7400": "connection refused"})
    assert verdict == "well"
    assert {subject for severity, subject in points if severity == "warn"} == {"coord-2:7400", "a", "reports"}
    assert subjects(leader())[1][0][0] == "warn", "no daemon is connected"


def test_without_a_leader() -> None:
    assert subjects(None, {"one:1": "refused", "two:1": "refused"})[0] == "no answer"
    verdict, points = subjects(pb.StatusReply(address="one:1", leader="two:1"), {"two:1": "refused"})
    assert verdict == "no leader" and ("fail", "one:1") in points


def health(mode: str = "enforce", *failed: str, clock_s: float = 0.0) -> Health:
    findings = [HealthFinding("fail", name, "mlx5_0", "what was read", "what to do") for name in failed]
    findings.append(HealthFinding("warn", "limits.low", "", "only a warning", ""))
    verdict = "not scheduled" if failed else "scheduled"
    return Health(HealthReply("0.1.0", mode, verdict, findings, 0), clock_s=clock_s)


def test_what_doctors_find_is_said_once_for_all_nodes() -> None:
    names = [f"node-{n}" for n in range(5)]
    found = verdict_of(
        leader(*map(node, names)), 1, {}, "", {name: health("enforce", "nic.trust", "devices.none") for name in names}
    )
    assert found.verdict == "well"
    assert [(p.subject, p.reason, p.remedy) for p in found.points if p.severity == "warn"] == [
        ("node-0, node-1, node-2 and 2 more", "mfsctl doctor fails: nic.trust: mlx5_0: what was read", "what to do"),
        ("node-0, node-1, node-2 and 2 more", "mfsctl doctor fails: devices.none: mlx5_0: what was read", "what to do"),
    ]
    assert {(n.mode, n.doctor) for n in found.nodes} == {("enforce", "not scheduled")}


def test_modes_versions_and_clocks_that_differ_are_reported() -> None:
    nodes = [node("a"), node("b"), node("c", connected=False)]
    for one, version in zip(nodes, ("0.1.0", "0.2.0", "0.0.1"), strict=True):
        one.version = version
    found = verdict_of(leader(*nodes), 1, {}, "", {"a": health(), "b": health("observe", clock_s=-61.0)})
    reasons = {p.subject: p.reason for p in found.points if p.severity == "warn"}
    assert reasons["versions"] == "0.1.0 on a; 0.2.0 on b", "which node is lost is another matter"
    assert reasons["modes"] == "enforce on a; observe on b"
    assert reasons["b"].startswith("its wall clock is 1m 1s behind")
    assert "a" not in reasons
    assert [n.clock_s for n in found.nodes] == [0.0, -61.0, None]


def test_a_node_that_cannot_be_asked_is_reported() -> None:
    found = verdict_of(leader(node("a")), 1, {}, "", {"a": Health(None, "mfsd 0.0.9 is too old to answer")})
    assert ("a", "its doctor did not answer: mfsd 0.0.9 is too old to answer") in {
        (p.subject, p.reason) for p in found.points
    }


def bypassed(name: str, *permille: int) -> pb.Node:
    found = pb.Node(node=name, connected=True)
    for value in permille:
        found.ports.add(name=f"{name}/{value}").used.bypass_permille = value
    return found


def test_what_bypasses_is_shown_of_the_port_that_has_most_of_it_and_is_no_load() -> None:
    found = verdict_of(leader(bypassed("a", 20, 250), bypassed("b")), 1, {}, "", {})
    assert [(n.node, n.bypass, n.load) for n in found.nodes] == [("a", 0.25, 0.0), ("b", 0.0, 0.0)]


def test_the_table_has_a_column_for_what_bypasses(capsys: pytest.CaptureFixture[str]) -> None:
    show(verdict_of(leader(bypassed("a", 20, 250), bypassed("b")), 1, {}, "", {}), "table")
    title, first, second = capsys.readouterr().out.splitlines()[-3:]
    assert title.split()[-1] == "BYPASS"
    assert (first.split()[-1], second.split()[-1]) == ("25%", "-")


def with_tiers() -> pb.StatusReply:
    one, two = pb.Node(node="a", connected=True), pb.Node(node="b", connected=True)
    one.tiers.tiers.add(name="chat", met=9, late=1, relegated=2, engines=1, policies={"fit": 1})
    two.tiers.tiers.add(name="chat", met=1, waiting=5, engines=1, policies={"edf": 1})
    two.tiers.tiers.add(name="batch", no_deadline=4, engines=1, policies={"edf": 1})
    two.tiers.unreadable = 2
    reply = leader(one, two)
    reply.tiers.add(nodes=1).tier.CopyFrom(two.tiers.tiers[1])
    total = reply.tiers.add(nodes=2).tier
    total.MergeFrom(pb.RequestTier(name="chat", met=10, late=1, relegated=2, waiting=5, engines=2))
    total.policies.update({"fit": 1, "edf": 1})
    return reply


def test_tiers_are_shown_of_all_nodes_and_in_the_wide_form_by_node(capsys: pytest.CaptureFixture[str]) -> None:
    found = verdict_of(with_tiers(), 1, {}, "", {})
    assert [(line.tier, line.in_time, line.policies) for line in found.tiers] == [
        ("batch", None, {"edf": 1}),
        ("chat", pytest.approx(10 / 11), {"fit": 1, "edf": 1}),
    ]
    assert [[line.tier for line in node.tiers] for node in found.nodes] == [["chat"], ["chat", "batch"]]
    show(found, "table")
    title, batch, chat = capsys.readouterr().out.splitlines()[-3:]
    assert title.split()[-5:] == ["PAUSED", "RELEGATED", "LOST", "ENGINES", "POLICY"]
    assert batch.split() == ["batch", *"--------1", "edf"]
    assert chat.split() == ["chat", "91%", "10", *"15--2-2", "edf", "1,", "fit", "1"]
    show(found, "wide")
    shown = capsys.readouterr().out
    assert [line.split()[:3] for line in shown.splitlines()[-3:]] == [
        ["a", "chat", "90%"],
        ["b", "chat", "100%"],
        ["b", "batch", "-"],
    ]
    assert "NO DEADLINE" in shown


def test_status_files_that_cannot_be_read_are_worth_a_look_at_the_log() -> None:
    found = verdict_of(with_tiers(), 1, {}, "", {})
    assert found.verdict == "well"
    assert ("warn", "b", "2 status files of its engines cannot be read", "see the log of its mfsd") in {
        (p.severity, p.subject, p.reason, p.remedy) for p in found.points
    }


def test_without_engines_that_publish_nothing_is_said_of_tiers(capsys: pytest.CaptureFixture[str]) -> None:
    show(verdict_of(leader(node()), 1, {}, "", {}), "wide")
    assert "TIER" not in capsys.readouterr().out
