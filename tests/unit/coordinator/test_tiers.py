"""What engines have of each tier, added up over nodes: what is shown is what connected daemons last said."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfsd.coordinator import messages
from mfsd.coordinator.election import Alone
from mfsd.coordinator.service import Service
from mfsd.coordinator.settings import Settings
from mfsd.coordinator.tiers import NAMES_MAX, TierTable
from mfsd.policy.request_tiers import COUNT_MAX, TIERS_MAX, NodeTiers, TierReport, added
from mfsd.proto import mfs_pb2 as pb
from tests.fuzz.targets.cluster import TERM, Lines, Stream
from tests.support.cluster import in_loop, until
from tests.unit.coordinator.world import GRACE_NS, World


def sent(*names: str, policy: str = "fit", **numbers: int) -> pb.Tiers:
    tiers = [pb.RequestTier(name=name, engines=1, policies={policy: 1}, **numbers) for name in names]
    return pb.Tiers(engines=1, tiers=tiers)


def tell(world: World, node: str, row: pb.Tiers) -> None:
    world.cluster.has_tiers(node, messages.node_tiers(row), row.SerializeToString())


def shown(world: World) -> pb.StatusReply:
    reply = pb.StatusReply()
    messages.fill_status(reply, world.cluster, 0)
    return reply


def test_tiers_are_shown_by_node_and_added_up() -> None:
    world = World("a", "b", "c")
    tell(world, "a", sent("chat", "batch", met=9, late=1, relegated=2))
    tell(world, "b", sent("chat", policy="edf", met=1, waiting=5))
    reply = shown(world)
    batch, chat = reply.tiers
    assert (batch.tier.name, batch.nodes, batch.tier.met) == ("batch", 1, 9)
    assert (chat.tier.name, chat.nodes, chat.tier.met, chat.tier.late) == ("chat", 2, 10, 1)
    assert (chat.tier.relegated, chat.tier.waiting, chat.tier.engines) == (2, 5, 2)
    assert dict(chat.tier.policies) == {"fit": 1, "edf": 1}
    rows = {node.node: node for node in reply.nodes}
    assert [tier.name for tier in rows["a"].tiers.tiers] == ["chat", "batch"]
    assert rows["b"].tiers.tiers[0].waiting == 5
    assert not rows["c"].HasField("tiers"), "its daemon says nothing of engines, as an older one does"


def test_a_later_report_stands_instead_of_the_one_before() -> None:
    world = World("a", "b")
    tell(world, "a", sent("chat", "batch", met=9))
    tell(world, "b", sent("chat", met=1))
    tell(world, "a", sent("chat", met=10))
    assert [(row.tier.name, row.tier.met) for row in shown(world).tiers] == [("chat", 11)]
    tell(world, "a", pb.Tiers())
    assert [(row.tier.met, row.nodes) for row in shown(world).tiers] == [(1, 1)]


@pytest.mark.parametrize("back", [False, True])
def test_a_node_that_is_gone_disappears_at_once(back: bool) -> None:
    """Its batches have a grace, since they move bytes all the same; nothing knows what its engines do."""
    world = World("a", "b")
    tell(world, "a", sent("chat", met=9))
    tell(world, "b", sent("chat", met=1))
    world.cluster.disconnect("a", 1)
    if back:
        world.join("a", 2)
    else:
        world.cluster.tick(2 * GRACE_NS)
    reply = shown(world)
    assert [(row.tier.met, row.nodes) for row in reply.tiers] == [(1, 1)]
    assert not any(node.HasField("tiers") for node in reply.nodes if node.node == "a")
    world.cluster.disconnect("b", 3 * GRACE_NS)
    assert not shown(world).tiers


def test_nothing_is_planned_and_no_daemon_is_told_of_it() -> None:
    world = World("a")
    before = (world.cluster.epoch, world.cluster.events, world.cluster.due_ns())
    tell(world, "a", sent("chat", met=9))
    assert (world.cluster.epoch, world.cluster.events, world.cluster.due_ns()) == before
    assert world.tell() == {}


def test_a_cluster_with_more_names_than_it_may_have_leaves_some_out() -> None:
    world = World("a", "b")
    nodes = [f"n{n}" for n in range(NAMES_MAX // TIERS_MAX)]
    for node in nodes:
        world.join(node)
        tell(world, node, sent(*(f"{node}-{n}" for n in range(TIERS_MAX))))
    tell(world, "a", sent("one more", "n0-0"))
    assert len(shown(world).tiers) == NAMES_MAX
    assert world.cluster.tiers.nodes_with["n0-0"] == 2
    assert world.cluster.oddities["more tiers of requests than are counted: ignored"] == 1
    world.cluster.disconnect("n1", 0)
    tell(world, "a", sent("one more"))
    assert "one more" in world.cluster.tiers.sums


@pytest.mark.parametrize(
    "row",
    [
        sent(*map(str, range(TIERS_MAX + 1))),
        sent("x" * 301),
        sent("a\nb"),
        sent("a", policy="\x1b[31m"),
        pb.Tiers(tiers=[pb.RequestTier(name="a", policies={str(n): 1 for n in range(40)})]),
    ],
)
def test_what_no_daemon_says_is_not_taken(row: pb.Tiers) -> None:
    with pytest.raises(ValueError):
        messages.node_tiers(row)


def test_numbers_beyond_any_count_are_cut_so_that_sums_fit() -> None:
    world = World(*(f"n{n}" for n in range(8)))
    for name in list(world.cluster.nodes):
        tell(world, name, sent("chat", met=2**64 - 1, waiting=2**64 - 1))
    assert shown(world).tiers[0].tier.met == 8 * COUNT_MAX


counts = st.integers(0, 3)
reports = st.builds(
    lambda met, waiting, policy: TierReport(met=met, waiting=waiting, engines=1, policies={policy: 1}),
    *(counts, counts, st.sampled_from(["fit", "edf"])),
)
steps = st.tuples(st.sampled_from("abc"), st.none() | st.dictionaries(st.sampled_from("xyz"), reports, max_size=3))


@given(st.lists(steps, max_size=30))
def test_sums_are_those_of_what_is_there_whatever_came_and_went(
    happened: list[tuple[str, dict[str, TierReport] | None]],
) -> None:
    table, there = TierTable(), dict[str, dict[str, TierReport]]()
    for node, tiers in happened:
        if tiers is None:
            table.forget(node)
            there.pop(node, None)
        else:
            table.put(node, NodeTiers(tiers, 1), b"x")
            there[node] = tiers
        expected: dict[str, TierReport] = {}
        for has in there.values():
            for name, report in has.items():
                expected[name] = added(expected.get(name), report)
        assert table.sums == expected
        assert table.nodes_with == {name: sum(name in has for has in there.values()) for name in expected}
        assert set(table.shown) == set(there)


@in_loop
async def test_a_stream_brings_them_and_takes_them_away() -> None:
    """What cannot be read changes nothing, what says nothing of tiers neither, and nothing unknown is kept."""
    good = sent("chat", met=9)
    later = pb.Tiers.FromString(good.SerializeToString() + b"\xfa\x7d\x03abc")  # field 2015
    reports = [pb.Report(term=TERM, tiers=later), pb.Report(term=TERM, tiers=sent("a\nb")), pb.Report(term=TERM)]
    hello = pb.Hello(protocol=1, protocol_oldest=1, node="a", version="1")
    stream = Stream([pb.FromNode(hello=hello), *(pb.FromNode(report=report) for report in reports)], ends=False)
    electorate = Alone("127.0.0.1:1", lambda: TERM)
    service = Service(Settings(listen="127.0.0.1:0", advertise="127.0.0.1:1", version="test"), electorate, Lines())
    leading = asyncio.create_task(electorate.run(service.role_changed))
    await until(lambda: service.cluster is not None, "the lead")
    link = asyncio.create_task(service.link(None, stream))  # type: ignore[arg-type]
    await stream.read_all.wait()
    (row,) = service.seen(0).tiers
    assert (row.tier.name, row.tier.met, row.nodes) == ("chat", 9, 1)
    assert service.seen(0).nodes[0].tiers == good
    assert service.seen(0).oddities == {"tiers of requests that cannot be read: ignored": 1}
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    assert not service.seen(0).tiers and not service.seen(0).nodes[0].HasField("tiers")
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
