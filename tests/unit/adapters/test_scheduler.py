"""MfsScheduler without vLLM: what is counted of a step, and what an error of MFS's own stops. With it:
tests/e2e/test_scheduler.py."""

from __future__ import annotations

import enum
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mfsd.policy.serve import ServeConfig
from mfsd.serve.engine import FAILURES_MAX, Engine
from mfsd.serve.promise import Words
from mfsd.serve.settings import Settings


class Named(SimpleNamespace):
    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)


class Plain:
    """Of vLLM's scheduler: no request is ever scheduled by it."""

    def add_request(self, request: Any) -> None: ...

    def schedule(self, throttle_prefills: bool = False) -> Any:
        return SimpleNamespace(num_scheduled_tokens={}, total_num_scheduled_tokens=0)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        return {}


NAMES: dict[str, dict[str, Any]] = {
    "vllm": {},
    "vllm.v1": {},
    "vllm.v1.core": {},
    "vllm.v1.core.sched": {},
    "vllm.v1.core.sched.request_queue": {"RequestQueue": object, "SchedulingPolicy": enum.Enum("P", "FCFS PRIORITY")},
    "vllm.v1.core.sched.async_scheduler": {"AsyncScheduler": Plain},
    "vllm.v1.request": {"RequestStatus": enum.Enum("S", "WAITING WAITING_FOR_REMOTE_KVS RUNNING")},
}


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An engine's first state, with the names of vLLM that it needs."""
    for name, members in NAMES.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("scheduler", "waiting"):
        monkeypatch.delitem(sys.modules, f"mooncake_adapter.vllm.{name}", raising=False)
    module = importlib.import_module("mooncake_adapter.vllm.scheduler")
    made = object.__new__(module.MfsScheduler)
    made.warnings = []
    made.mfs = Engine(Settings(), ServeConfig(), lambda kind, text: made.warnings.append(kind))
    made.requests, made.running, made._ended = {}, [], []
    made.waiting, made.kv_holding_waiting = module.PlannedQueue(), module.PlannedQueue()
    made._requests_max = 8
    yield made
    for name in ("scheduler", "waiting"):
        sys.modules.pop(f"mooncake_adapter.vllm.{name}", None)


def broken(*arguments: Any) -> None:
    raise KeyError("broken")


def test_kv_on_its_way_is_promised_memory(scheduler: Any) -> None:
    scheduler._is_blocked_waiting_status = lambda status: status == "loads"
    for name, status in (("a", "loads"), ("b", "waits")):
        request = Named(request_id=name, status=status, num_computed_tokens=99, num_output_tokens=0)
        scheduler.kv_holding_waiting.add_request(request)
        scheduler.mfs.arrived(name, Words(), 0.0, 100, 50)
    assert [fact.name for fact in scheduler._promised()] == ["a"]
    assert scheduler.mfs.plan([], [], 1000, 100, promised=scheduler._promised()) is not None
    assert scheduler.mfs._view.kv_promised_tokens == 150.0


@pytest.mark.parametrize(
    ("prompt", "known", "computed", "tokens", "decodes"),
    [
        (100, 100, 100, 40, 0),  # the end of a prompt
        (100, 101, 101, 1, 1),
        (100, 103, 101, 1, 0),  # preempted: outputs that are computed again
        (100, 103, 103, 1, 1),
        (100, 103, 104, 1, 1),  # a token of the step before is not known yet
    ],
)
def test_a_step_counts_outputs_that_are_computed_again_as_a_prompt(
    scheduler: Any, prompt: int, known: int, computed: int, tokens: int, decodes: int
) -> None:
    """Whether or not MFS knows the request."""
    scheduler.requests["a"] = Named(num_prompt_tokens=prompt, num_tokens=known, num_computed_tokens=computed)
    scheduler._began(SimpleNamespace(num_scheduled_tokens={"a": tokens}))
    counts = scheduler.mfs.counts
    assert (counts["decode_tokens"], counts["prefill_tokens"]) == (decodes, 0 if decodes else tokens)


def test_only_errors_of_plans_count_to_the_end_of_plans(scheduler: Any) -> None:
    scheduler._arrived = scheduler._produced = scheduler._began = broken
    for _ in range(FAILURES_MAX + 1):
        scheduler.add_request(SimpleNamespace(request_id="a"))
        scheduler.schedule()
        scheduler.update_from_output(None, None)
    assert scheduler.mfs.counts["other_errors"] == 3 * (FAILURES_MAX + 1)
    assert not scheduler.mfs.gave_up and not scheduler.mfs.counts["failed_plans"]
    scheduler._planned = broken
    for _ in range(FAILURES_MAX):
        scheduler.schedule()
    assert scheduler.mfs.gave_up and scheduler.mfs.counts["failed_plans"] == FAILURES_MAX
    assert set(scheduler.warnings) == {"serve-error", "serve-plan", "serve-gave-up"}
