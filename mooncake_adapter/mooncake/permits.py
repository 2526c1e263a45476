"""Submits transfers to the daemon. Errors on the way never reach the transfer."""

from __future__ import annotations

import logging
import math
import os
import time

from mfsd.policy.store_lease import DEFAULT_MS, PARTS, VARIABLE, parse_lease_ms
from mfsd.transfer import Transfer
from mooncake_adapter.session import STAGE_P2D, Permit, Session, Task
from mooncake_adapter.warn_once import LOG, WarnOnce

TIMEOUT_S = 30.0
"""Mooncake's default if MC_TRANSFER_TIMEOUT is not set."""
TIMEOUT_MOST_S = 999_999
TIMEOUT_PARTS = 4
"""A call may wait for one of so many parts of the time-out: bytes that arrive later may land in another request's
memory."""


def transfer_timeout_s() -> float:
    """Returns the time after which Mooncake gives up a transfer or a slice of one, whichever is less: a call in pieces
    gives up by the same limit."""
    named = [_seconds(name) for name in ("MC_TRANSFER_TIMEOUT", "MC_SLICE_TIMEOUT")]
    return float(min((seconds for seconds in named if seconds), default=TIMEOUT_S))


def _seconds(name: str) -> int:
    """Reads an environment variable of Mooncake; 0 if it is unset or not a valid number of seconds."""
    text = os.environ.get(name, "")
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return seconds if seconds <= TIMEOUT_MOST_S else 0


def hold_max_s(session: Session) -> float:
    """Returns how long a call may wait for permits, whatever the daemon does."""
    return min(session.max_hold_s, transfer_timeout_s() / TIMEOUT_PARTS)


def store_lease_s(once: WarnOnce) -> float:
    """Returns the configured time for which a store keeps what a call reads."""
    try:
        return parse_lease_ms(os.environ.get(VARIABLE, "")) / 1000
    except ValueError as error:
        once.warn("store-lease", "%s", error)
        return DEFAULT_MS / 1000


def store_hold_max_s(once: WarnOnce) -> float:
    """Returns how long a call of a store may wait: a fraction of its reader's lease."""
    return store_lease_s(once) / PARTS


class Budget:
    """The waiting time left for one call, shared by its pieces. Starts with at most `most_s`."""

    def __init__(self, session: Session, most_s: float = math.inf) -> None:
        self.left_s = min(hold_max_s(session), most_s)

    def spent_since(self, began_s: float) -> None:
        self.left_s = max(0.0, self.left_s - (time.monotonic() - began_s))

    def wait(self, task: Task) -> int:
        """Sleeps until the task is permitted or the budget is used up; returns its class."""
        began_s = time.monotonic()
        wire_class = task.wait(self.left_s)
        self.spent_since(began_s)
        return wire_class


class Unscheduled:
    """A task that is not scheduled: permitted at once, in the class of the program's own engine."""

    def __init__(self, wire_class: int) -> None:
        self.wire_class = wire_class

    def wait(self, timeout_s: float | None = None) -> int:
        return self.wire_class

    def ready(self) -> bool:
        return True

    def complete(self) -> None: ...

    def cancel(self) -> None: ...


def submitted(session: Session, once: WarnOnce, transfer: Transfer) -> Task:
    """Session.submit_transfer that does not raise: on an error the task goes unscheduled, with one warning."""
    if LOG.isEnabledFor(logging.DEBUG):
        _log(transfer)
    try:
        return session.submit_transfer(transfer)
    except Exception as error:
        return _unscheduled(session, once, error)


def taken_or_submitted(session: Session, once: WarnOnce, transfer: Transfer) -> Task:
    """Like submitted(), for a transfer that normally goes at once. Takes it on credit if there is some, by one native
    call that runs no Python."""
    if LOG.isEnabledFor(logging.DEBUG):
        _log(transfer)
    try:
        return session.take_transfer(transfer) or session.submit_transfer(transfer)
    except Exception as error:
        return _unscheduled(session, once, error)


def permitted(session: Session, once: WarnOnce, budget: Budget, transfer: Transfer) -> Permit | None:
    """Session.permit_transfer that does not raise. Sleeps until the message may go. On an error it goes unscheduled,
    with one warning; None if nothing is scheduled."""
    began_s = time.monotonic()
    if LOG.isEnabledFor(logging.DEBUG):
        _log(transfer)
    try:
        return session.permit_transfer(transfer, budget.left_s)
    except Exception as error:
        return _unscheduled(session, once, error)
    finally:
        budget.spent_since(began_s)


def _log(transfer: Transfer) -> None:
    LOG.debug(
        "message bytes=%d stage=%s nic=%s request_id=%s deadline_ns=%s layer=%s peer=%s",
        transfer.size_bytes,
        transfer.stage,
        transfer.nic,
        transfer.request_id,
        transfer.deadline_ns,
        transfer.layer,
        transfer.peer,
    )


def _unscheduled(session: Session, once: WarnOnce, error: Exception) -> Unscheduled:
    once.warn("submit", "a transfer could not be submitted (%s: %s); it goes unscheduled", type(error).__name__, error)
    return Unscheduled(session.class_of(STAGE_P2D))
