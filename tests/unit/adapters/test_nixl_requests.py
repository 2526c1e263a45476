"""Whose each transfer of vLLM's NIXL connectors is, on stand-ins for their workers."""

from __future__ import annotations

from types import SimpleNamespace as Thing
from typing import Any, cast

import pytest

from mooncake_adapter.metadata import Metadata, MetadataSources
from mooncake_adapter.session import STAGE_P2D
from mooncake_adapter.vllm.nixl import report_requests
from mooncake_adapter.vllm.worker import Steps
from mooncake_adapter.warn_once import WarnOnce

KNOWN = Metadata(77, deadline_ns=5)


def reported(connector: Any, sources: MetadataSources, lease_s: object, once: WarnOnce) -> bool:
    steps = cast(Steps, Thing(awaited={"a": KNOWN}.get))
    return report_requests(connector, steps, sources, lease_s, once)


@pytest.mark.parametrize("method", ["_xfer_blocks", "_read_blocks"])
def test_a_transfer_is_its_requests(method: str) -> None:
    sources = MetadataSources(WarnOnce())
    seen: list[tuple[Any, Metadata | None]] = []

    def started(*blocks: Any, request_id: str) -> str:
        seen.append((blocks, sources.call.get()))
        if request_id == "fails":
            raise OSError
        return "handle"

    worker = Thing(**{method: started})
    assert reported(Thing(connector_worker=worker), sources, 20, WarnOnce())
    assert sources.lease_s == 20
    assert getattr(worker, method)(1, request_id="a") == "handle"
    assert getattr(worker, method)(2, request_id="b") == "handle"
    assert seen == [((1,), KNOWN._replace(stage=STAGE_P2D)), ((2,), None)]
    with pytest.raises(OSError):
        getattr(worker, method)(request_id="fails")
    assert sources.call.get() is None


def test_a_connector_that_names_none_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    sources, once = MetadataSources(WarnOnce()), WarnOnce()
    for _ in range(2):
        assert not reported(Thing(connector_worker=Thing()), sources, "soon", once)
    assert len(caplog.records) == 1 and "by their blocks" in caplog.text
    assert sources.lease_s == MetadataSources(once).lease_s
