"""Whom NIXL's adapter says a transfer goes to: agents must not share a window, or a slow one stops the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mfsd.client.checking import destination
from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.nixl.lanes import Lanes
from mooncake_adapter.nixl.pieces import Piece
from mooncake_adapter.nixl.scheduling import Scheduling
from mooncake_adapter.nixl.transfers import Transfer
from mooncake_adapter.session import STAGE_P2D
from mooncake_adapter.warn_once import WarnOnce
from tests.support.scripted_session import ScriptedSession

STATUSES = SimpleNamespace(NIXL_SUCCESS=0, NIXL_IN_PROG=1)
BINDING = SimpleNamespace(postXferReq=lambda handle, notification: 0, releaseXferReq=lambda handle: None)


class Made:
    """A recipe of nothing."""

    def make(self, *arguments: Any) -> int:
        return 7

    def reach(self) -> None: ...

    def forget(self) -> None: ...


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("incoming", [False, True])
def test_each_agent_is_a_peer_of_its_own(pieces: int, incoming: bool) -> None:
    session, once = ScriptedSession(), WarnOnce()
    scheduling = Scheduling(
        BINDING, STATUSES, cast(Any, session), MetadataSources(once), Lanes(cast(Any, session), once), once, 0
    )
    for peer in ("decode-7", "decode-8", "decode-7"):
        made = [Piece(Metadata(1), None, 1000) for _ in range(pieces)]
        transfer = Transfer(5, cast(Any, Made()), peer, made, STAGE_P2D, incoming)
        transfer.backends = []
        assert scheduling.start(transfer, b"") == "DONE"
    peers = [task.transfer.peer for task in session.tasks]
    assert peers == ["decode-7"] * pieces + ["decode-8"] * pieces + ["decode-7"] * pieces
    assert len({destination(peer) for peer in peers} | {0}) == 3
    assert [task.transfer.left_bytes for task in session.tasks] == 3 * ([0] if pieces == 1 else [3000, 2000, 1000])
