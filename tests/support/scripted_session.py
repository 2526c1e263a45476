"""A session that grants by script and records its calls, for behaviour that a real daemon cannot be made to show
(answer a certain class now, hold one task and let another go)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from mfsd.transfer import Transfer

DSCP = (48, 40, 34, 26, 18, 10, 8, 1)


@dataclass
class ScriptedTask:
    """One submitted message, with the names of its calls in order."""

    transfer: Transfer
    wire_class: int
    permitted: threading.Event
    life: list[str] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    """Time limits of the waits that found it without a permit."""

    def wait(self, timeout_s: float | None = None) -> int:
        if not self.permitted.is_set():
            self.waits_s.append(1e9 if timeout_s is None else timeout_s)
        self.permitted.wait(timeout_s)
        self.life.append("wait")
        return self.wire_class

    def ready(self) -> bool:
        return self.permitted.is_set()

    def complete(self) -> None:
        self.life.append("complete")

    def cancel(self) -> None:
        self.life.append("cancel")


class ScriptedBatch:
    def __init__(self, slot: int) -> None:
        self.slot, self.ended = slot, False
        self.layers: list[int] = []

    def layer(self, number: int) -> None:
        self.layers.append(number)

    def end(self) -> None:
        self.ended = True


class ScriptedSession:
    """Grants every task at once in class 6 unless set by ``classes_of`` and ``hold``."""

    classes = 8
    max_hold_s = 1000.0

    def __init__(self) -> None:
        self.scheduled = True
        self.tasks: list[ScriptedTask] = []
        self.batches: list[tuple[dict[str, Any], ScriptedBatch]] = []
        self.lanes: list[int] = []
        self.pruned_requests: set[int] = set()
        self.class_of: Callable[[Transfer], int] = lambda transfer: 6
        self.hold: Callable[[Transfer], bool] = lambda transfer: False

    def submit_transfer(self, transfer: Transfer) -> ScriptedTask:
        task = ScriptedTask(transfer, self.class_of(transfer), threading.Event())
        if not self.hold(transfer):
            task.permitted.set()
        self.tasks.append(task)
        return task

    def take_transfer(self, transfer: Transfer) -> ScriptedTask | None:
        return None  # there is no credit, so all must ask

    def permit_transfer(self, transfer: Transfer, timeout_s: float | None = None) -> ScriptedTask | None:
        if not self.scheduled:
            return None
        task = self.submit_transfer(transfer)
        task.wait(timeout_s)
        return task

    def nic(self, name: str, *, guid: int = 0) -> int:
        return 0

    @property
    def dscp(self) -> list[int | None]:
        return list(DSCP)

    @property
    def classes_apart(self) -> frozenset[int]:
        """Classes with another mark than class 0, the class of collectives."""
        return frozenset(
            k for k, dscp in enumerate(self.dscp) if None not in (dscp, self.dscp[0]) and dscp != self.dscp[0]
        )

    def batch(self, batch_id: int, **what: Any) -> ScriptedBatch:
        batch = ScriptedBatch(len(self.batches))
        self.batches.append(({"batch_id": batch_id, **what}, batch))
        return batch

    def pruned(self, request_id: int) -> bool:
        return request_id in self.pruned_requests

    @contextmanager
    def lane(self, wire_class: int) -> Iterator[None]:
        self.lanes.append(wire_class)
        yield

    def close(self) -> None: ...

    def requests(self) -> Sequence[int]:
        return [task.transfer.request_id for task in self.tasks]
