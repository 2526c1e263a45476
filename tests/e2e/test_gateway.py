"""Three vLLM servers behind one gateway, one of them killed while requests stream: `make demo-serve` as a test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.demo_serve import AFTER, BEFORE, KILLED, lost, twice
from tests.e2e.replicas import NAMES, Replicas, running, with_a_death
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif("MFS_E2E" not in os.environ, reason="needs vLLM: make e2e-vllm"),
    pytest.mark.timeout(900),
]


def test_a_killed_replica_loses_what_it_had_begun_and_nothing_else(tmp_path: Path) -> None:
    with running(Replicas(tmp_path)) as made:
        outcomes = with_a_death(made, KILLED, BEFORE, AFTER)
        eventually(lambda: KILLED not in made.up(), "the gateway's poll", 60, pause_s=0.2)
        received, programs = made.received(), made.status()["programs"]
    assert not lost(outcomes) and not twice(received)
    assert {name for times in received.values() for name in times} == {f"demo-{n}" for n in range(BEFORE + AFTER)}
    assert {one.replica for one in outcomes if one.end == "engine_lost"} <= {KILLED}
    assert received[KILLED], "it had some"
    own = {name: {f"demo-{one.number}" for one in outcomes if one.replica == name} for name in NAMES}
    assert own == {name: set(times) for name, times in received.items()}, "x-mfs-replica names the one that has it"
    later = [one for one in outcomes if one.number >= BEFORE]
    assert all(one.end == "done" and one.replica != KILLED for one in later)
    bereft = {one.session for one in outcomes if one.end == "engine_lost"}
    assert bereft <= {one.session for one in later}, "sessions go on elsewhere"
    assert programs == BEFORE
