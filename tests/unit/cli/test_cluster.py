"""One verdict over the cluster: what is fatal, what is worth a look, and what is said of it."""

from __future__ import annotations

from mfsd.cli.commands.cluster import judged
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
    found = judged(reply, 2, silent or {}, "look")
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
