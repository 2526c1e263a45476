"""`mfsctl top`: the tables as values, and the application driven by keys at two terminal sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from textual.widgets import DataTable, Static, TabbedContent
from textual.widgets._footer import FooterKey

from mfsd.node.control import ClassStatus, DeadlineStatus, PortStatus, RequestStatus, StatusReply
from mfsd.node.control_client import Unreachable
from mfsd.node.totals import Totals
from mfsd.observe.top import Top
from mfsd.observe.views import VIEWS, Row, Sample, arranged
from tests.unit.observe.test_metrics import CLIENT, NIC, status

CLASSES, NICS, PROGRAMS, STAGES, UNITS, REQUESTS = VIEWS


def later(reply: StatusReply) -> StatusReply:
    """Two seconds on: class 1 was permitted 2 MB in 10 permits, the program posted 1 MB."""
    nic = msgspec.structs.replace(
        NIC, classes=[NIC.classes[0], ClassStatus(0, 0, 7, 2_000_033, 13, 2_000_000)], wait_s=NIC.wait_s + 0.02
    )
    client = msgspec.structs.replace(CLIENT, posted_bytes={"p2d": 4096 + 1_000_000, "collective": 100})
    return msgspec.structs.replace(reply, nics=[nic], clients=[client], totals=Totals().with_living([client]))


REQUEST = RequestStatus(
    request_id=2**63 + 7,
    batch_id=3,
    unit="prefill-1",
    processes=["vllm"],
    state="open",
    age_s=1.0,
    deadline_left_s=0.25,
    outcome=None,
    pruned=False,
    open_tasks=1,
    submitted_bytes=4096,
    completed_bytes=0,
    bypassed_bytes=0,
    dropped_bytes=0,
    stages=[],
)
LATE = msgspec.structs.replace(REQUEST, request_id=8, deadline_left_s=-2.0, pruned=True, unit="prefill-2")
ENDED = msgspec.structs.replace(REQUEST, request_id=9, state="ended", outcome="met", deadline_left_s=-9.0)
MISSED = msgspec.structs.replace(ENDED, request_id=10, outcome="missed")

BEFORE = Sample(status([CLIENT], Totals()), [REQUEST, LATE])
AFTER = Sample(
    later(BEFORE.status),
    [msgspec.structs.replace(REQUEST, completed_bytes=2_000_000), LATE, ENDED, MISSED],
)


def cell(rows: list[Row], key: str, title: str, columns: tuple[str, ...]) -> str:
    row = next(row for row in rows if row.key == key)
    return row.cells[columns.index(title)].text


def test_rates_are_differences_over_time() -> None:
    rows = list(CLASSES.rows(BEFORE, AFTER, 2.0))
    assert cell(rows, "0/1", "SENT/s", CLASSES.columns) == "8 Mbit/s"
    assert cell(rows, "0/1", "PERMITS/s", CLASSES.columns) == "5"
    assert cell(rows, "0/0", "HELD", CLASSES.columns) == "11 B"
    assert cell(list(NICS.rows(BEFORE, AFTER, 2.0)), "0", "MEAN WAIT", NICS.columns) == "2 ms"
    assert cell(list(PROGRAMS.rows(BEFORE, AFTER, 2.0)), "1", "RATE", PROGRAMS.columns) == "4 Mbit/s"
    assert cell(list(STAGES.rows(BEFORE, AFTER, 2.0)), "vllm/p2d", "RATE", STAGES.columns) == "4 Mbit/s"


def test_what_passes_mfs_and_pause_frames_are_shown_by_nic() -> None:
    def sample(pauses: int | None, incoming: int | None) -> Sample:
        port = PortStatus(500_000, 250_000, pauses=pauses, incoming_pauses=incoming)
        return Sample(msgspec.structs.replace(BEFORE.status, nics=[msgspec.structs.replace(NIC, port=port)]), [])

    def shown(before: Sample, after: Sample) -> list[str]:
        rows = list(NICS.rows(before, after, 2.0))
        return [cell(rows, "0", title, NICS.columns) for title in ("BYPASS", "BYPASS IN", "PAUSES/s")]

    assert shown(sample(10, 4), sample(16, 8)) == ["4 Mbit/s", "2 Mbit/s", "5"]
    assert shown(sample(None, 4), sample(None, 8)) == ["4 Mbit/s", "2 Mbit/s", "2"]
    assert shown(sample(None, None), sample(None, None)) == ["4 Mbit/s", "2 Mbit/s", "-"]
    unread = Sample(msgspec.structs.replace(BEFORE.status, nics=[msgspec.structs.replace(NIC, port=None)]), [])
    assert shown(unread, sample(16, 8))[2] == "-", "the first reading says nothing of before"


def test_a_first_sample_and_a_new_nic_have_no_rates() -> None:
    assert cell(list(CLASSES.rows(AFTER, AFTER, 0.0)), "0/1", "SENT/s", CLASSES.columns) == "-"
    empty = Sample(msgspec.structs.replace(BEFORE.status, nics=[], clients=[], totals=[]), [])
    for view in VIEWS:
        for row in view.rows(empty, AFTER, 1.0):
            assert len(row.cells) == len(view.columns)
            assert all(cell.value == 0 for cell, title in zip(row.cells, view.columns, strict=True) if "/s" in title)


def test_rows_are_sorted_by_value_and_filtered_by_text() -> None:
    rows = list(CLASSES.rows(BEFORE, AFTER, 2.0))
    assert [row.key for row in arranged(rows, 2, True, "")] == ["0/1", "0/0"]
    assert [row.key for row in arranged(rows, 2, False, "")] == ["0/0", "0/1"]
    assert [row.key for row in arranged(rows, None, False, "8 mbit")] == ["0/1"]
    assert arranged(rows, None, False, "no such text") == []


def test_units_sum_up_their_programs_and_requests() -> None:
    first = msgspec.structs.replace(CLIENT, unit="prefill-1")
    second = msgspec.structs.replace(first, client_id=2, pid=4712)
    before = Sample(status([first, second], Totals()), [])
    moved = [msgspec.structs.replace(c, posted_bytes={"p2d": 1_004_096, "collective": 100}) for c in (first, second)]
    after = Sample(status(moved, Totals()), [REQUEST, ENDED, MISSED, LATE])
    rows = list(UNITS.rows(before, after, 2.0))
    assert [row.key for row in rows] == ["prefill-1", "prefill-2"]
    assert [c.text for c in rows[0].cells] == ["prefill-1", "2", "8 Mbit/s", "-", "10 B", "14 B", "1", "50%"]
    assert [c.text for c in rows[1].cells] == ["prefill-2", "-", "-", "-", "-", "-", "1", "-"]


def test_requests_show_their_deadlines_and_sort_by_them() -> None:
    rows = list(REQUESTS.rows(BEFORE, AFTER, 2.0))
    assert [cell(rows, str(r), "LEFT", REQUESTS.columns) for r in (2**63 + 7, 8, 9, 10)] == [
        "250 ms",
        "late 2 s",
        "met",
        "missed",
    ]
    assert cell(rows, str(2**63 + 7), "RATE", REQUESTS.columns) == "8 Mbit/s"
    assert cell(rows, "8", "STATE ", REQUESTS.columns) == "pruned"
    left = REQUESTS.columns.index("LEFT")
    assert [row.key for row in arranged(rows, left, False, "open")] == [str(2**63 + 7)]
    assert [row.key for row in arranged(rows, left, False, "")][-1] == str(2**63 + 7)


class Screen(NamedTuple):
    head: str
    rows: list[list[str]]


def drive(ask: Callable[[], Sample], *keys: str, size: tuple[int, int] = (80, 24)) -> Screen:
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


def test_the_head_says_how_many_are_in_time_of_late() -> None:
    deadlines = DeadlineStatus(
        met=900,
        missed=99,
        recent_met=88,
        recent_missed=12,
        window_s=300.0,
        latest_met=3,
        latest_missed=1,
        latest_s=20.0,
    )
    sample = BEFORE._replace(status=msgspec.structs.replace(BEFORE.status, deadlines=deadlines))
    assert "in time: 75% of 4 (20 s), 88% of 100 (5m 0s)" in drive(lambda: sample).head
    none = BEFORE._replace(status=msgspec.structs.replace(BEFORE.status, deadlines=DeadlineStatus()))
    assert "in time" not in drive(lambda: none).head


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_classes_come_first(size: tuple[int, int]) -> None:
    screen = drive(lambda: BEFORE, size=size)
    assert [row[:2] for row in screen.rows] == [["mlx5_0", "0"], ["mlx5_0", "1"]]
    assert "enforce" in screen.head and "1 programs" in screen.head


@pytest.mark.parametrize("size", [(80, 24), (200, 60)])
def test_units_and_requests_by_key(size: tuple[int, int]) -> None:
    assert [row[0] for row in drive(lambda: AFTER, "5", size=size).rows] == ["", "prefill-1", "prefill-2"]
    requests = drive(lambda: AFTER, "6", size=size).rows
    assert [row[0] for row in requests] == [str(2**63 + 7), "8", "9", "10"]
    assert [row[3] for row in drive(lambda: AFTER, "6", "slash", *"prefill-2", "enter", size=size).rows] == ["late 2 s"]
    by_number = drive(lambda: AFTER, "6", "s", size=size).rows
    assert [row[0] for row in by_number] == [str(2**63 + 7), "10", "9", "8"]


def test_the_last_line_fits_80_columns() -> None:
    """Every key that it names, and the tabs, are there whole."""
    top = Top(lambda: AFTER, interval_s=60)

    async def session() -> tuple[int, int, list[str]]:
        async with top.run_test(size=(80, 24)) as pilot:
            await top.workers.wait_for_complete()
            await pilot.pause()
            footer = max(key.region.right for key in top.query("FooterKey"))
            tabs = max(tab.region.right for tab in top.query("ContentTab"))
            return footer, tabs, [str(key.description) for key in top.query(FooterKey)]

    footer, tabs, keys = asyncio.run(session())
    assert footer <= 80 and tabs <= 80
    assert keys == ["Sort by next", "Reverse", "Filter", "Pause", "Help", "Quit"]


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


def test_a_daemon_that_is_gone_is_reported_and_waited_for() -> None:
    def gone() -> Sample:
        raise Unreachable("no mfsd at /run/mfs/mfsd.sock: start it")

    assert "start it" in drive(gone).head
