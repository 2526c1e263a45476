"""The waiting queue that vLLM walks: outside a step everything, within one what the plan names."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class Request(SimpleNamespace):
    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __lt__(self, other: Any) -> bool:
        return bool(self.priority < other.priority)


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with the one name of vLLM that it needs."""
    names = ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched", "vllm.v1.core.sched.request_queue")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[names[-1]], "RequestQueue", object, raising=False)
    monkeypatch.delitem(sys.modules, "mooncake_adapter.vllm.waiting", raising=False)
    return importlib.import_module("mooncake_adapter.vllm.waiting")


def filled(queue: Any) -> list[Request]:
    made = [Request(name=name, priority=priority) for name, priority in (("a", 2), ("b", 0), ("c", 1))]
    for request in made:
        queue.add_request(request)
    return made


def drained(queue: Any) -> list[str]:
    names = []
    while queue:
        assert queue.peek_request() is queue.peek_request()
        names.append(queue.pop_request().name)
    return names


def test_it_is_first_come_first_served_without_a_plan(queues: Any) -> None:
    queue = queues.PlannedQueue()
    a, b, _ = filled(queue)
    queue.remove_request(a)
    queue.prepend_requests([b, a])
    assert [r.name for r in queue] == ["a", "b", "c"]
    assert drained(queue) == ["a", "b", "c"]


def test_it_is_by_priority_where_vllm_is(queues: Any) -> None:
    queue = queues.PlannedQueue(by_priority=True)
    filled(queue)
    assert [r.name for r in queue] == ["b", "c", "a"]
    assert drained(queue) == ["b", "c", "a"]


def test_a_plan_shows_what_it_names_in_its_order_and_counts_all(queues: Any) -> None:
    queue = queues.PlannedQueue()
    a, _, c = filled(queue)
    queue.show([c, Request(name="elsewhere", priority=0), a])
    assert len(queue) == 3
    assert drained(queue) == ["c", "a"]
    assert len(queue) == 1
    assert not queue, "what waits is hidden"
    queue.show_all()
    assert drained(queue) == ["b"]


def test_what_is_put_back_within_a_step_is_not_offered_again(queues: Any) -> None:
    queue = queues.PlannedQueue()
    a, b, c = filled(queue)
    queue.show([c, b])
    queue.prepend_request(queue.pop_request())
    queue.remove_requests({b, Request(name="elsewhere", priority=0)})
    assert not queue
    queue.show_all()
    assert drained(queue) == ["c", "a"]
    assert a.name == "a"


def test_nothing_named_is_nothing_shown(queues: Any) -> None:
    queue = queues.PlannedQueue()
    filled(queue)
    queue.show([])
    assert not queue
    assert len(queue) == 3
