"""A session that asks no daemon: each task is permitted at once, in the class of its stage and size (`mfs-run --mode
mark`)."""

from __future__ import annotations

import logging
import os
from typing import Any

from mfsd._native import FastPath, Mode
from mfsd.client.attachment import Unattached
from mfsd.client.session import Session
from mfsd.client.shim import Shim
from mfsd.client.task import Task
from mfsd.policy.mark_text import VARIABLE, parse_marks
from mfsd.policy.marks import CLASSES_MAX, Marks, divided
from mfsd.transfer import Transfer

log = logging.getLogger("mfsd.client")


def marks_of_environment() -> Marks | None:
    """The marks of `MFS_MARK`; None outside of mode mark. Text that cannot be read marks nothing, with a warning: a
    process in mode mark never asks a daemon."""
    if os.environ.get("MFS_MODE") != "mark":
        return None
    try:
        return parse_marks(os.environ.get(VARIABLE, ""))
    except ValueError as error:
        log.warning("%s: %s; nothing is marked: start the program with mfs-run --mode mark", VARIABLE, error)
        return Marks((None,) * CLASSES_MAX, divided(CLASSES_MAX).by_stage(), {})


class MarkedSession(Session):
    """Session's calls, for a process that only marks."""

    piece_bytes = 1 << 62
    """Nothing waits for a permit, so that an adapter cuts nothing: a transfer's class is that of its whole size."""

    def __init__(self, shim: Shim | None, marks: Marks) -> None:
        super().__init__(shim, None, None, Mode.OBSERVE)
        self.marks = marks
        self._classes = len(marks.dscp)
        self._attachment = Unattached()

    @property
    def scheduled(self) -> bool:
        """As far as an adapter is concerned: it is to ask for the class of each transfer."""
        return True

    @property
    def dscp(self) -> list[int | None]:
        return list(self.marks.dscp)

    @property
    def max_hold_s(self) -> float:
        return 0.0

    def class_of(self, stage: int) -> int:
        """The class of what has this stage, if its size is not known."""
        return self.marks.wire_class(stage)

    def submit_transfer(self, transfer: Transfer) -> Task:
        """A task that is permitted; only its stage and size matter here."""
        transfer = self._checker.transfer(transfer)
        wire_class = self.marks.wire_class(transfer.stage, transfer.size_bytes)
        return Task(self, None, None, transfer, transfer.nic, wire_class)

    def permit_transfer(self, transfer: Transfer, timeout_s: float | None = None) -> Task:
        return self.submit_transfer(transfer)

    def fast_path(self, **_: Any) -> FastPath | None:
        return None
