"""A scheduler's connector asks a real daemon how long a load takes, and computes again what that would be late with."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace as Thing
from typing import Any, cast

import pytest

from mfsd.client import Session, Stage
from mfsd.policy.serve.fetch import ReuseRule
from mooncake_adapter.slo import Defaults
from mooncake_adapter.vllm.requests import Requests
from mooncake_adapter.vllm.reuse import FetchTimes, ReuseChoice, ReuseOptions
from mooncake_adapter.vllm.token_bytes import TokenBytes
from mooncake_adapter.warn_once import WarnOnce
from tests.support.daemon import Daemon
from tests.support.waiting import eventually

CONFIG = """
[nic."slow"]
rate = "8mbit"
address = "10.7.0.1"
[arbiter]
window_min = "1gib"
max_hold = "5s"
"""
SECOND_NS = 10**9


@pytest.mark.skipif(not hasattr(Session, "fetch_ns"), reason="sessions of this version know no backlogs")
def test_what_another_process_loads_makes_a_request_compute_again(folder: Path) -> None:
    """900 tokens of 1 kB take 0.9 s of the port; behind 900 MB they take a quarter of an hour."""
    with Daemon(folder, CONFIG) as daemon, opened(daemon) as scheduler, opened(daemon) as worker:
        nic, times = scheduler.nic("slow"), cast(FetchTimes, scheduler)
        requests = Requests(Defaults(), "tiny", WarnOnce())
        choice = ReuseChoice(ReuseOptions(ReuseRule.SLO), requests, times, TokenBytes(1000, 1000), nic, WarnOnce())
        choice.pace._spent_ns, choice.pace._spent_tokens = 1e8, 1000.0  # 0.1 ms a token
        assert answered(choice, "before") == (900, True), "whether the page is there yet or not"
        assert eventually(lambda: times.fetch_ns(900_000, "", 1, nic=nic), "the page") == 9 * SECOND_NS // 10
        assert answered(choice, "idle") == (900, True)
        load = worker.submit(900 * 10**6, stage=Stage.REUSE, nic=worker.nic("slow"), incoming=True)
        eventually(lambda: (times.fetch_ns(900_000, "", 1, nic=nic) or 0) > 900 * SECOND_NS, "the backlog")
        assert answered(choice, "busy") == (0, False)
        assert choice.explanation("busy") == "late with the reuse, in time without"
        load.cancel()
        assert eventually(lambda: answered(choice, "after") == (900, True), "no backlog")


def opened(daemon: Daemon) -> Session:
    return Session.open(socket_path=str(daemon.socket))


def answered(choice: ReuseChoice, name: str) -> tuple[int | None, bool]:
    request: Any = Thing(
        request_id=name,
        num_prompt_tokens=1000,
        kv_transfer_params=None,
        sampling_params=Thing(extra_args={"ttft_slo_ms": 5000}),
        arrival_time=time.time(),
        session_id=None,
    )
    return choice.answer(request, 0, (900, True))
