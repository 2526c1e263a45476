"""With a real session, calls of one buffer go the native way: with their metadata, and in the lanes that the Python
side opens behind them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mooncake.engine
import pytest

from mfsd._native import Arbiter, Stage
from mfsd.client import Session
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.mooncake.engine import adapted as adapted_engine
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce
from tests.support.arbiter import Server
from tests.support.mooncake_peer import Peer, memory, started
from tests.support.scripted_session import DSCP
from tests.support.waiting import eventually
from tests.unit.adapters.test_engine import content

SIZE = 65536


class Side:
    """This process's end, with a daemon of its own and an engine that says when a call goes the long way."""

    def __init__(self, path: Path) -> None:
        self.arbiter = Arbiter(stale_after_ns=1000 * 10**9, max_hold_ns=1000 * 10**9)
        self.arbiter.start()
        self.arbiter.wire(DSCP)
        self.server = Server(path, self.arbiter)
        self.session = Session.open(socket_path=str(path))
        once = WarnOnce()
        self.sources = MetadataSources(once)
        kind: Any = adapted_engine(mooncake.engine.TransferEngine, Holder(lambda: self.session), self.sources, once)
        self.area, self.address = memory()
        self.engine = started(kind(), self.address)
        scheduling = self.engine._mfs_scheduling
        self.lanes = scheduling._lanes
        self.long_way = 0
        long_way = scheduling.synchronous

        def counted(*arguments: Any) -> int:
            self.long_way += 1
            return int(long_way(*arguments))

        scheduling.synchronous = counted

    def send(self, peer: Peer, seed: int) -> None:
        """Writes and reads back, and checks every byte."""
        self.area[:SIZE] = content(seed, SIZE)
        assert self.engine.transfer_sync_write(peer.name, self.address, peer.address, SIZE) == 0
        assert peer.read(0, SIZE) == content(seed, SIZE)
        assert self.engine.transfer_sync_read(peer.name, self.address + SIZE, peer.address, SIZE) == 0
        assert self.area[SIZE : 2 * SIZE] == content(seed, SIZE)

    def posted(self) -> list[int]:
        return list(self.arbiter.client_stats(min(self.server.segments))["posted_bytes"])


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    """Made once a module: an engine takes a second to end."""
    made = Side(tmp_path_factory.mktemp("daemon") / "s")
    yield made
    made.session.close()
    made.server.close()
    made.arbiter.close()


@pytest.fixture(scope="module")
def adapted_peer() -> Iterator[Peer]:
    with Peer(adapted=True) as peer:
        yield peer


def test_a_simple_call_goes_the_native_way_with_its_stage(side: Side, stock_peer: Peer) -> None:
    before, posted = side.long_way, side.posted()
    side.send(stock_peer, 1)
    with side.sources.transfer(Metadata(7, int(Stage.BACKGROUND))):
        side.send(stock_peer, 2)
    assert side.long_way == before
    pairs = enumerate(zip(posted, side.posted(), strict=True))
    added = {stage: after - was for stage, (was, after) in pairs if after > was}
    assert added == {Stage.P2D: SIZE, Stage.REUSE: SIZE, Stage.BACKGROUND: 2 * SIZE}


def test_memory_that_has_an_owner_goes_the_long_way(side: Side, stock_peer: Peer) -> None:
    before, posted = side.long_way, side.posted()[Stage.BACKGROUND]
    mine = Metadata(7, int(Stage.BACKGROUND))
    side.sources.ranges.add(side.address, 2 * SIZE, mine)
    side.send(stock_peer, 3)
    side.sources.ranges.remove(mine)
    assert (side.long_way, side.posted()[Stage.BACKGROUND]) == (before + 2, posted + 2 * SIZE)
    side.send(stock_peer, 4)
    assert side.long_way == before + 2


def test_each_message_is_written_of_where_that_is_asked_for(
    side: Side, stock_peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    side.send(stock_peer, 5)
    with caplog.at_level(logging.DEBUG, "mfs.adapter"):
        side.engine._mfs_fast_path.changed()  # or a second later
        side.send(stock_peer, 6)
    assert sum(f"message bytes={SIZE}" in record.getMessage() for record in caplog.records) == 2


def test_lanes_open_behind_the_native_way_and_are_taken_by_it(side: Side, adapted_peer: Peer) -> None:
    name = adapted_peer.name
    before = side.long_way

    def opened() -> set[int]:
        side.send(adapted_peer, 7)
        return {class_marked for peer, class_marked in side.lanes._routes if peer == name}

    found = eventually(opened, "a lane")
    taken = min(found)
    assert side.lanes.known(name)[taken] == side.lanes.route(name, taken, adapted_peer.address)
    side.send(adapted_peer, 8)
    assert side.long_way == before


def test_a_lane_that_leads_nowhere_is_given_up_and_the_engine_itself_sends(side: Side) -> None:
    with Peer(adapted=True) as peer:

        def opened() -> list[tuple[str, int]]:
            side.send(peer, 9)
            return [
                key for key, (engine, _) in side.lanes._routes.items() if key[0] == peer.name and engine is not None
            ]

        keys = eventually(opened, "a lane")
        side.lanes._routes |= {key: (side.lanes._routes[key][0], "127.0.0.1:1") for key in keys}
        side.lanes.changed()
        side.send(peer, 10)
        assert not any(key in side.lanes._routes and side.lanes._routes[key][1] == "127.0.0.1:1" for key in keys)
