"""`mfsctl top`: the tables as values, and the application driven by keys at two terminal sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from textual.widgets import DataTable, Static, TabbedContent

from mfsd.node.control import ClassStatus, StatusReply
from mfsd.node.control_client import Unreachable
from mfsd.node.totals import Totals
from mfsd.observe.top import Top
from mfsd.observe.views import VIEWS, Row, arranged
from tests.unit.observe.test_metrics import CLIENT, NIC, status

CLASSES, NICS, PROGRAMS, STAGES = VIEWS


def later(reply: StatusReply) -> StatusReply:
    """Two seconds on: class 1 was permitted 2 MB in 10 permits, the program posted 1 MB."""
    nic = msgspec.structs.replace(
        NIC, classes=[NIC.classes[0], ClassStatus(0, 0, 7, 2_000_033, 13)], wait_s=NIC.wait_s + 0.02
    )
    client = msgspec.structs.replace(CLIENT, posted_bytes={"p2d": 4096 + 1_000_000, "collective": 100})
    return msgspec.structs.replace(reply, nics=[nic], clients=[client], totals=Totals().with_living([client]))


BEFORE = status([CLIENT], Totals())
AFTER = later(BEFORE)


def cell(rows: list[Row], key: str, title: str, columns: tuple[str, ...]) -> str:
    row = next(row for row in rows if row.key == key)
    return row.cells[columns.index(title)].text


def test_rates_are_differences_over_time() -> None:
    rows = list(CLASSES.rows(BEFORE, AFTER, 2.0))
    assert cell(rows, "mlx5_0/1", "RATE", CLASSES.columns) == "8 Mbit/s"
    assert cell(rows, "mlx5_0/1", "PERMITS/s", CLASSES.columns) == "5"
    assert cell(rows, "mlx5_0/0", "HELD", CLASSES.columns) == "11 B"
    assert cell(list(NICS.rows(BEFORE, AFTER, 2.0)), "mlx5_0", "MEAN WAIT", NICS.columns) == "2 ms"
    assert cell(list(PROGRAMS.rows(BEFORE, AFTER, 2.0)), "1", "RATE", PROGRAMS.columns) == "4 Mbit/s"
    assert cell(list(STAGES.rows(BEFORE, AFTER, 2.0)), "vllm/p2d", "RATE", STAGES.columns) == "4 Mbit/s"


def test_a_first_look_and_a_new_nic_have_no_rates() -> None:
    assert cell(list(CLASSES.rows(AFTER, AFTER, 0.0)), "mlx5_0/1", "RATE", CLASSES.columns) == "-"
    empty = msgspec.structs.replace(BEFORE, nics=[], clients=[], totals=[])
    for view in VIEWS:
        for row in view.rows(empty, AFTER, 1.0):
            assert len(row.cells) == len(view.columns)
            assert all(cell.value == 0 for cell, title in zip(row.cells, view.columns, strict=True) if "/s" in title)


def test_rows_are_sorted_by_value_and_filtered_by_text() -> None:
    rows = list(CLASSES.rows(BEFORE, AFTER, 2.0))
    assert [row.key for row in arranged(rows, 2, True, "")] == ["mlx5_0/1", "mlx5_0/0"]
    assert [row.key for row in arranged(rows, 2, False, "")] == ["mlx5_0/0", "mlx5_0/1"]
    assert [row.key for row in arranged(rows, None, False, "8 mbit")] == ["mlx5_0/1"]
    assert arranged(rows, None, False, "no such text") == []


class Screen(NamedTuple):
    head: str
    rows: list[list[str]]


def drive(ask: Callable[[], StatusReply], *keys: str, size: tuple[int, int] = (80, 24)) -> Screen:
    """What is shown after these keys, each one let finish."""
    top = Top(ask, interval_s=60)

    async def session() -> Screen:
        async with top.run_test(size=size) as pilot:
            await top.workers.wait_for_complete()
            await pilot.pause()
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            active = top.query_one("#views", TabbedContent).active
            table = top.query_one(f"#{active}").query_one(DataTable)
            rows = [[str(value) for value in table.get_row_at(at)] for at in range(table.row_count)]
            return Screen(str(top.query_one("#head", Static).render()), rows)

    return asyncio.run(session())


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_classes_come_first(size: tuple[int, int]) -> None:
    screen = drive(lambda: BEFORE, size=size)
    assert [row[:2] for row in screen.rows] == [["mlx5_0", "0"], ["mlx5_0", "1"]]
    assert "enforce" in screen.head and "1 programs" in screen.head


def test_keys_choose_sort_and_filter() -> None:
    assert drive(lambda: BEFORE, "3").rows[0][:2] == ["4711", "vllm"]
    by_class = drive(lambda: BEFORE, "s", "s")
    assert [row[1] for row in by_class.rows] == ["1", "0"]
    turned = drive(lambda: BEFORE, "s", "s", "r")
    assert [row[1] for row in turned.rows] == ["0", "1"]
    filtered = drive(lambda: BEFORE, "4", "slash", *"p2d", "enter")
    assert [row[1] for row in filtered.rows] == ["p2d"]
    dropped = drive(lambda: BEFORE, "4", "slash", *"p2d", "enter", "escape")
    assert len(dropped.rows) == 2


def test_a_daemon_that_is_gone_is_said_and_waited_for() -> None:
    def gone() -> StatusReply:
        raise Unreachable("no mfsd at /run/mfs/mfsd.sock: start it")

    assert "start it" in drive(gone).head
