"""Stock and adapted Mooncake engines over its TCP transport on loopback: no device, no root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import mooncake.engine
import pytest

from mooncake_adapter.metadata import MetadataSources
from mooncake_adapter.mooncake.engine import adapted as adapted_engine
from mooncake_adapter.session import Holder
from mooncake_adapter.warn_once import WarnOnce
from tests.support.mooncake_peer import Peer, memory, started
from tests.support.scripted_session import ScriptedSession


@dataclass
class Side:
    """This process's end: an engine, its memory, and the session that schedules it."""

    engine: Any
    area: Any
    address: int
    session: ScriptedSession
    sources: MetadataSources


@pytest.fixture(scope="session")
def stock_peer() -> Iterator[Peer]:
    with Peer(adapted=False) as peer:
        yield peer


@pytest.fixture(scope="module")
def shared_side() -> Side:
    """Made once a module: an engine takes a second to end."""
    session, once = ScriptedSession(), WarnOnce()
    sources = MetadataSources(once)
    kind = adapted_engine(mooncake.engine.TransferEngine, Holder(lambda: cast(Any, session)), sources, once)
    area, address = memory()
    return Side(started(kind(), address), area, address, session, sources)


@pytest.fixture
def side(shared_side: Side) -> Side:
    """The shared side as if nothing had been sent or reported yet."""
    shared_side.session.__init__()
    vars(shared_side.session).pop("submit", None)
    shared_side.sources.ranges.clear()
    return shared_side
