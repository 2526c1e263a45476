"""The tables of `mfsctl top` as plain values: two samples in, rows out. No terminal here.

Rates are differences between two samples. A cell keeps its value beside its text, so that sorting is by value.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mfsd.node.control import ClientStatus, DeadlineStatus, NicStatus, PortStatus, RequestStatus, StatusReply
from mfsd.observe.format import bit_rate, byte_count, count, duration, in_time, share


class Cell(NamedTuple):
    """One value of a row."""

    value: float | str
    text: str


class Row(NamedTuple):
    """One row. `key` stays the same from sample to sample."""

    key: str
    cells: tuple[Cell, ...]


class Sample(NamedTuple):
    """The daemon's answers at one time."""

    status: StatusReply
    requests: list[RequestStatus]
    """The most recently used requests, without layers."""


class View(NamedTuple):
    """One table. Columns whose title ends in a blank are text. The others are numbers and right-aligned."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[Sample, Sample, float], Iterator[Row]]
    """Takes the earlier sample, the later one and the seconds between them (0: the first sample, no rates)."""


def _text(value: str) -> Cell:
    return Cell(value.lower(), value)


def _bytes(value: int) -> Cell:
    return Cell(value, byte_count(value))


def _count(value: int) -> Cell:
    return Cell(value, count(value))


def _rate(before: int, after: int, elapsed_s: float) -> Cell:
    """Bytes per second, shown in bits as usual for links."""
    rate = max(0, after - before) / elapsed_s if elapsed_s > 0 else 0.0
    return Cell(rate, bit_rate(round(rate)))


def _per_s(before: int, after: int, elapsed_s: float) -> Cell:
    rate = max(0, after - before) / elapsed_s if elapsed_s > 0 else 0.0
    return Cell(rate, count(round(rate)))


def _mean_wait(before: NicStatus, after: NicStatus) -> Cell:
    permits = sum(c.grants for c in after.classes) - sum(c.grants for c in before.classes)
    wait_s = (after.wait_s - before.wait_s) / permits if permits > 0 else 0.0
    return Cell(wait_s, duration(wait_s))


def _classes(before: Sample, after: Sample, elapsed_s: float) -> Iterator[Row]:
    earlier = {nic.index: nic for nic in before.status.nics}
    for nic in after.status.nics:
        old = earlier.get(nic.index, nic)
        for at, (was, now) in enumerate(zip(old.classes, nic.classes, strict=True)):
            yield Row(
                f"{nic.index}/{at}",
                (
                    _text(nic.name),
                    Cell(at, str(at)),
                    _rate(was.sent_bytes, now.sent_bytes, elapsed_s),
                    _rate(was.received_bytes, now.received_bytes, elapsed_s),
                    _per_s(was.grants, now.grants, elapsed_s),
                    _bytes(now.held_bytes),
                    _count(now.held_tasks),
                    _bytes(now.in_flight_bytes),
                ),
            )


NO_COUNTERS = PortStatus(bypass_bytes_per_s=0, incoming_bypass_bytes_per_s=0)


def _nics(before: Sample, after: Sample, elapsed_s: float) -> Iterator[Row]:
    earlier = {nic.index: nic for nic in before.status.nics}
    for nic in after.status.nics:
        old = earlier.get(nic.index, nic)
        port = nic.port or NO_COUNTERS
        yield Row(
            str(nic.index),
            (
                _text(nic.name),
                Cell(nic.rate_bytes_per_s, bit_rate(nic.rate_bytes_per_s)),
                Cell(nic.utilization, share(nic.utilization)),
                Cell(nic.incoming_utilization, share(nic.incoming_utilization)),
                Cell(nic.load or 0.0, "-" if nic.load is None else share(nic.load)),
                _bytes(nic.in_flight_bytes + nic.incoming_in_flight_bytes),
                _bytes(nic.window_bytes),
                _bytes(nic.unscheduled_in_flight_bytes),
                Cell(port.bypass_bytes_per_s, bit_rate(port.bypass_bytes_per_s)),
                Cell(port.incoming_bypass_bytes_per_s, bit_rate(port.incoming_bypass_bytes_per_s)),
                _pauses(old.port or port, port, elapsed_s),
                _mean_wait(old, nic),
            ),
        )


def _programs(before: Sample, after: Sample, elapsed_s: float) -> Iterator[Row]:
    earlier = {client.client_id: client for client in before.status.clients}
    for client in after.status.clients:
        old = earlier.get(client.client_id, client)
        yield Row(
            str(client.client_id),
            (
                Cell(client.pid, str(client.pid)),
                _text(client.process),
                _text(client.detach_reason or client.state),
                _rate(sum(old.posted_bytes.values()), sum(client.posted_bytes.values()), elapsed_s),
                _per_s(old.permits, client.permits, elapsed_s),
                _bytes(client.held_bytes),
                _bytes(client.in_flight_bytes),
                _count(_failed_open(client)),
            ),
        )


def _stages(before: Sample, after: Sample, elapsed_s: float) -> Iterator[Row]:
    earlier = {total.process: total for total in before.status.totals}
    for total in after.status.totals:
        old = earlier.get(total.process, total)
        for stage, posted in sorted(total.posted_bytes.items()):
            yield Row(
                f"{total.process}/{stage}",
                (
                    _text(total.process),
                    _text(stage),
                    _rate(old.posted_bytes.get(stage, 0), posted, elapsed_s),
                    _bytes(posted),
                    _bytes(total.completed_bytes.get(stage, 0)),
                ),
            )


def _units(before: Sample, after: Sample, elapsed_s: float) -> Iterator[Row]:
    earlier = {client.client_id: client for client in before.status.clients}
    clients: defaultdict[str, list[ClientStatus]] = defaultdict(list)
    requests: defaultdict[str, list[RequestStatus]] = defaultdict(list)
    for client in after.status.clients:
        clients[client.unit].append(client)
    for request in after.requests:
        requests[request.unit].append(request)
    for unit in sorted({*clients, *requests}):
        now, asked = clients[unit], requests[unit]
        was = [earlier.get(c.client_id, c) for c in now]
        outcomes = [r.outcome for r in asked if r.outcome is not None]
        met = outcomes.count("met") / len(outcomes) if outcomes else -1.0
        yield Row(
            unit,
            (
                _text(unit),
                _count(len(now)),
                _rate(_posted(was), _posted(now), elapsed_s),
                _per_s(sum(c.permits for c in was), sum(c.permits for c in now), elapsed_s),
                _bytes(sum(c.held_bytes for c in now)),
                _bytes(sum(c.in_flight_bytes for c in now)),
                _count(sum(r.state != "ended" for r in asked)),
                Cell(met, f"{met:.0%}" if outcomes else "-"),
            ),
        )


def _requests(before: Sample, after: Sample, elapsed_s: float) -> Iterator[Row]:
    earlier = {request.request_id: request for request in before.requests}
    for request in after.requests:
        old = earlier.get(request.request_id, request)
        yield Row(
            str(request.request_id),
            (
                Cell(request.request_id, str(request.request_id)),
                _text(request.unit or ", ".join(request.processes)),
                _text("pruned" if request.pruned and request.state == "open" else request.state),
                _deadline(request),
                _rate(old.completed_bytes, request.completed_bytes, elapsed_s),
                _bytes(request.submitted_bytes),
                _bytes(request.completed_bytes),
                _bytes(request.bypassed_bytes),
            ),
        )


def _deadline(request: RequestStatus) -> Cell:
    """Time left; for a request that has ended, whether it was in time. Sorted by time, most urgent first."""
    left_s = request.deadline_left_s
    if left_s is None:
        return Cell(math.inf, "-")
    if request.outcome is not None:
        return Cell(left_s, request.outcome)
    return Cell(left_s, duration(left_s) if left_s >= 0 else f"late {duration(-left_s)}")


def _posted(clients: list[ClientStatus]) -> int:
    return sum(sum(client.posted_bytes.values()) for client in clients)


def _failed_open(client: ClientStatus) -> int:
    return client.bypassed_overflow + client.bypassed_hold + client.bypassed_stale


def _pauses(before: PortStatus, after: PortStatus, elapsed_s: float) -> Cell:
    """Frames per second, sent and received."""
    if after.pauses is None and after.incoming_pauses is None:
        return Cell(0.0, "-")
    earlier, now = ((port.pauses or 0) + (port.incoming_pauses or 0) for port in (before, after))
    return _per_s(earlier, now, elapsed_s)


VIEWS = (
    View("Classes", ("NIC ", "CLASS", "SENT/s", "RECV/s", "PERMITS/s", "HELD", "TASKS", "IN FLIGHT"), _classes),
    View(
        "NICs",
        (
            "NIC ",
            "RATE",
            "OUT",
            "IN",
            "LOAD",
            "IN FLIGHT",
            "WINDOW",
            "UNSCHED",
            "BYPASS",
            "BYPASS IN",
            "PAUSES/s",
            "MEAN WAIT",
        ),
        _nics,
    ),
    View("Programs", ("PID", "PROCESS ", "STATE ", "RATE", "PERMITS/s", "HELD", "IN FLIGHT", "FAILED OPEN"), _programs),
    View("Stages", ("PROCESS ", "STAGE ", "RATE", "POSTED", "COMPLETED"), _stages),
    View("Units", ("UNIT ", "PROGRAMS", "RATE", "PERMITS/s", "HELD", "IN FLIGHT", "REQUESTS", "IN TIME"), _units),
    View("Requests", ("REQUEST", "UNIT ", "STATE ", "LEFT", "RATE", "ASKED", "DONE", "FAILED OPEN"), _requests),
)


def in_time_of(deadlines: DeadlineStatus) -> str:
    """Recent shares in time, latest first; empty while no request with a deadline has ended."""
    return in_time(
        (deadlines.latest_met, deadlines.latest_missed, deadlines.latest_s),
        (deadlines.recent_met, deadlines.recent_missed, deadlines.window_s),
    )


def arranged(rows: list[Row], column: int | None, reverse: bool, pattern: str) -> list[Row]:
    """The rows with the pattern, sorted by a column (None: as they come). Equal ones keep their order."""
    shown = [row for row in rows if any(pattern.lower() in cell.text.lower() for cell in row.cells)]
    if column is None:
        return shown
    return sorted(
        shown, key=lambda row: (isinstance(row.cells[column].value, str), row.cells[column].value), reverse=reverse
    )
