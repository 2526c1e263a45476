"""Which request each transfer of vLLM's NIXL connectors is for, the one that pushes and the one that pulls.

On stand-ins for their workers; the connectors themselves run in tests/e2e.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace as Thing
from typing import Any

import pytest

from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.vllm.nixl import TRANSFERS, report_requests
from mooncake_adapter.vllm.requests import Load, RequestInfo
from mooncake_adapter.vllm.worker import Steps
from mooncake_adapter.warn_once import WarnOnce
from tests.support.scripted_session import ScriptedSession


class Side:
    """A worker whose methods note what is known of their transfers, and its connector."""

    def __init__(self, *methods: str, lease_s: object = 0) -> None:
        self.once = WarnOnce()
        self.sources = MetadataSources(self.once)
        self.steps = Steps(ScriptedSession(), self.sources, self.once, "P")  # type: ignore[arg-type]
        self.seen: list[Metadata | None] = []
        self.worker = Thing(**dict.fromkeys(methods, self._transfer))
        connector = Thing(connector_worker=self.worker)
        self.reported = report_requests(connector, self.steps, self.sources, lease_s, self.once)

    def _transfer(self, spec: str, *, request_id: str, fails: bool = False) -> str:
        self.seen.append(self.sources.call.get())
        if fails:
            raise OSError(spec)
        return f"handle of {spec}"

    def runs(self, name: str, number: int) -> Metadata:
        due_ns = time.time_ns() + 10**9
        return self.steps.metadata(RequestInfo(name, number, due_ns, sends=True))


@pytest.fixture(params=TRANSFERS)
def side(request: pytest.FixtureRequest) -> Side:
    side = Side(request.param, lease_s=480)
    side.worker.transfer = getattr(side.worker, request.param)
    return side


def test_a_transfer_is_a_last_stage_of_its_request_with_its_deadline(side: Side) -> None:
    assert side.reported and side.sources.lease_s == 480
    first, second = side.runs("a", 7), side.runs("b", 8)
    assert first.deadline_ns > 0
    assert side.worker.transfer("blocks", request_id="a") == "handle of blocks"
    side.worker.transfer("blocks", request_id="b")
    assert side.seen == [first._replace(stage=3), second._replace(stage=3)]
    assert side.sources.call.get() is None


def test_it_is_known_in_the_thread_that_transfers_and_nowhere_else(side: Side) -> None:
    known = side.runs("a", 7)
    thread = threading.Thread(target=side.worker.transfer, args=("blocks",), kwargs={"request_id": "a"})
    thread.start()
    thread.join()
    assert side.seen == [known._replace(stage=3)]
    assert side.sources.call.get() is None


def test_errors_are_the_connectors_own(side: Side) -> None:
    side.runs("a", 7)
    with pytest.raises(OSError, match="blocks"):
        side.worker.transfer("blocks", request_id="a", fails=True)
    assert side.sources.call.get() is None


def test_what_is_awaited_has_the_time_at_which_it_must_be_there(side: Side) -> None:
    side.steps.register({})
    side.steps.load([Load(RequestInfo("a", 7, time.time_ns() + 10**9), (), 0)])
    side.worker.transfer("blocks", request_id="a")
    assert side.seen == [side.steps.awaited("a")._replace(stage=3)]  # type: ignore[union-attr]


def test_an_unknown_request_goes_on_with_one_warning(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        assert side.worker.transfer("blocks", request_id="gone") == "handle of blocks"
    assert side.seen == [None, None]
    assert len(caplog.records) == 1 and "'gone' has ended" in caplog.text


def test_a_connector_with_other_methods_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    side = Side("_post_blocks")
    assert not side.reported
    assert not report_requests(Thing(), side.steps, side.sources, 0, side.once)
    assert len(caplog.records) == 1 and "_read_blocks, _xfer_blocks" in caplog.text


@pytest.mark.parametrize("lease_s", [0, -1, None, "480"])
def test_without_a_lease_of_its_own_vllms_is_taken(lease_s: Any) -> None:
    assert Side("_xfer_blocks", lease_s=lease_s).sources.lease_s == 30
