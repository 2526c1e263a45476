"""What the daemon tells the coordinator of its engines' tiers, and when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from mfsd.node.tiers import TierReports
from mfsd.policy.request_tiers import NodeTiers, TierReport
from mfsd.proto import mfs_pb2 as pb
from tests.unit.node.test_link_state import new_state, reported

CHAT = NodeTiers({"chat": TierReport(met=3, late=1, relegated=2, engines=2, policies={"fit": 1, "edf": 1})}, 2, 1)


def run(
    read: Callable[[], NodeTiers], enough: Callable[[list[NodeTiers]], bool], stuck_s: float = 100.0
) -> list[NodeTiers]:
    """What is reported until it is enough."""
    found: list[NodeTiers] = []

    async def main() -> None:
        done = asyncio.Event()

        def report(tiers: NodeTiers) -> None:
            found.append(tiers)
            if enough(found):
                done.set()

        task = asyncio.create_task(TierReports(read, report, 0.0, stuck_s).run())
        await done.wait()
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(main())
    return found


def test_only_what_has_changed_is_reported_and_the_end_too() -> None:
    more = CHAT._replace(engines=3)
    seen = iter([NodeTiers(), CHAT, CHAT, more, more, NodeTiers()])
    assert run(lambda: next(seen, NodeTiers()), lambda found: len(found) == 3) == [CHAT, more, NodeTiers()]


def test_a_file_system_that_does_not_answer_leaves_nothing_shown() -> None:
    goes_on, times = threading.Event(), 0

    def read() -> NodeTiers:
        nonlocal times
        times += 1
        if times == 2:
            goes_on.wait()
        return CHAT

    def enough(found: list[NodeTiers]) -> bool:
        if len(found) == 2:
            goes_on.set()
        return len(found) == 3

    assert run(read, enough, 0.01)[:3] == [CHAT, NodeTiers(), CHAT]


def test_they_are_told_once_and_again_to_a_new_leader() -> None:
    state = new_state()
    assert state.report(0) is None, "no engine, no report"
    state.tiers(CHAT)
    for _ in range(2):
        sent = reported(state).tiers
        (tier,) = sent.tiers
        assert (sent.engines, sent.unreadable) == (2, 1)
        assert (tier.name, tier.met, tier.late, tier.relegated) == ("chat", 3, 1, 2)
        assert tier.policies == {"fit": 1, "edf": 1}
        state.start_snapshot()
    state.report(0)
    state.tiers(NodeTiers())
    gone = reported(state)
    assert gone.HasField("tiers") and gone.tiers == pb.Tiers()
