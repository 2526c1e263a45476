"""vLLM's waiting queue. A step sees only the requests in its plan, in the plan's order.

Between steps, and in a step without a plan, the queue is first come first served, or by priority if vLLM was started
so.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.sched.request_queue import RequestQueue


class PlannedQueue(RequestQueue):  # type: ignore[misc]
    def __init__(self, by_priority: bool = False) -> None:
        self._all: OrderedDict[Any, None] = OrderedDict()
        """In the order of arrival; requests that were put back are first."""
        self._by_priority = by_priority
        self._visible: deque[Any] | None = None

    def show(self, requests: Iterable[Any]) -> None:
        """Shows only these, in this order, until :meth:`show_all`."""
        self._visible = deque(request for request in requests if request in self._all)

    def show_all(self) -> None:
        self._visible = None

    def _first(self) -> Any:
        if self._visible is not None:
            return self._visible[0]
        if self._by_priority:
            return min(self._all)
        return next(iter(self._all))

    def add_request(self, request: Any) -> None:
        self._all[request] = None

    def pop_request(self) -> Any:
        request = self._first()
        self.remove_request(request)
        return request

    def peek_request(self) -> Any:
        return self._first()

    def prepend_request(self, request: Any) -> None:
        self._all[request] = None
        self._all.move_to_end(request, last=False)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Any) -> None:
        del self._all[request]
        if self._visible:
            if self._visible[0] is request:
                self._visible.popleft()
            elif request in self._visible:
                self._visible.remove(request)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        for request in requests:
            if request in self._all:
                self.remove_request(request)

    def __bool__(self) -> bool:
        return bool(self._all if self._visible is None else self._visible)

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(self._all) if self._by_priority else list(self._all))
