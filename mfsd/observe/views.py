"""What `mfsctl top` shows, as tables of plain values: two statuses in, rows out. No terminal here.

Rates are differences between two looks. A cell keeps its value beside its text, so that sorting is by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from mfsd.node.control import ClientStatus, NicStatus, StatusReply
from mfsd.observe.format import bit_rate, byte_count, count, duration


class Cell(NamedTuple):
    """One value of a row."""

    value: float | str
    text: str


class Row(NamedTuple):
    """`key` stays the same from look to look."""

    key: str
    cells: tuple[Cell, ...]


class View(NamedTuple):
    """One table. Columns whose title ends in a blank are text, the others numbers, right-aligned."""

    name: str
    columns: tuple[str, ...]
    rows: Callable[[StatusReply, StatusReply, float], Iterator[Row]]
    """From the earlier status, the later one and the seconds between them (0: the first look, no rates)."""


def _text(value: str) -> Cell:
    return Cell(value.lower(), value)


def _bytes(value: int) -> Cell:
    return Cell(value, byte_count(value))


def _count(value: int) -> Cell:
    return Cell(value, count(value))


def _rate(before: int, after: int, elapsed_s: float) -> Cell:
    """Bytes per second, shown in bits as links are."""
    rate = max(0, after - before) / elapsed_s if elapsed_s > 0 else 0.0
    return Cell(rate, bit_rate(round(rate)))


def _per_s(before: int, after: int, elapsed_s: float) -> Cell:
    rate = max(0, after - before) / elapsed_s if elapsed_s > 0 else 0.0
    return Cell(rate, count(round(rate)))


def _mean_wait(before: NicStatus, after: NicStatus) -> Cell:
    permits = sum(c.grants for c in after.classes) - sum(c.grants for c in before.classes)
    wait_s = (after.wait_s - before.wait_s) / permits if permits > 0 else 0.0
    return Cell(wait_s, duration(wait_s))


def _classes(before: StatusReply, after: StatusReply, elapsed_s: float) -> Iterator[Row]:
    earlier = {nic.name: nic for nic in before.nics}
    for nic in after.nics:
        old = earlier.get(nic.name, nic)
        for at, (was, now) in enumerate(zip(old.classes, nic.classes, strict=True)):
            yield Row(
                f"{nic.name}/{at}",
                (
                    _text(nic.name),
                    Cell(at, str(at)),
                    _rate(was.granted_bytes, now.granted_bytes, elapsed_s),
                    _per_s(was.grants, now.grants, elapsed_s),
                    _bytes(now.held_bytes),
                    _count(now.held_tasks),
                    _bytes(now.in_flight_bytes),
                ),
            )


def _nics(before: StatusReply, after: StatusReply, elapsed_s: float) -> Iterator[Row]:
    earlier = {nic.name: nic for nic in before.nics}
    for nic in after.nics:
        old = earlier.get(nic.name, nic)
        yield Row(
            nic.name,
            (
                _text(nic.name),
                Cell(nic.rate_bytes_per_s, bit_rate(nic.rate_bytes_per_s)),
                Cell(nic.load, f"{nic.load:.0%}"),
                _bytes(nic.in_flight_bytes + nic.incoming_in_flight_bytes),
                _bytes(nic.window_bytes),
                _bytes(nic.unscheduled_in_flight_bytes),
                _mean_wait(old, nic),
                _per_s(old.promotions, nic.promotions, elapsed_s),
            ),
        )


def _programs(before: StatusReply, after: StatusReply, elapsed_s: float) -> Iterator[Row]:
    earlier = {client.client_id: client for client in before.clients}
    for client in after.clients:
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


def _stages(before: StatusReply, after: StatusReply, elapsed_s: float) -> Iterator[Row]:
    earlier = {total.process: total for total in before.totals}
    for total in after.totals:
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


def _failed_open(client: ClientStatus) -> int:
    return client.bypassed_overflow + client.bypassed_hold + client.bypassed_stale


VIEWS = (
    View("Classes", ("NIC ", "CLASS", "RATE", "PERMITS/s", "HELD", "TASKS", "IN FLIGHT"), _classes),
    View("NICs", ("NIC ", "RATE", "LOAD", "IN FLIGHT", "WINDOW", "UNSCHED", "MEAN WAIT", "PROMOTED/s"), _nics),
    View("Programs", ("PID", "PROCESS ", "STATE ", "RATE", "PERMITS/s", "HELD", "IN FLIGHT", "FAILED OPEN"), _programs),
    View("Stages", ("PROCESS ", "STAGE ", "RATE", "POSTED", "COMPLETED"), _stages),
)


def arranged(rows: list[Row], column: int | None, reverse: bool, pattern: str) -> list[Row]:
    """The rows in which the pattern occurs, sorted by a column (None: as they come). Equal ones keep their order."""
    shown = [row for row in rows if any(pattern.lower() in cell.text.lower() for cell in row.cells)]
    if column is None:
        return shown
    return sorted(
        shown, key=lambda row: (isinstance(row.cells[column].value, str), row.cells[column].value), reverse=reverse
    )
