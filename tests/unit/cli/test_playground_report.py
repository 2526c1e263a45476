"""The line that a playground says: requests that ended meanwhile, of daemons that were there all the time."""

from __future__ import annotations

import msgspec
import pytest

from mfsd.cli import playground_report
from mfsd.cli.playground_report import lately
from mfsd.node.control import StatusReply
from mfsd.node.totals import Totals
from tests.unit.observe.test_metrics import CLIENT, status


def daemon(epoch: int, met: int, missed: int, mode: str = "enforce") -> StatusReply:
    reply = status([CLIENT], Totals())
    about = msgspec.structs.replace(reply.daemon, epoch=epoch, mode=mode)
    return msgspec.structs.replace(reply, daemon=about, events={"ended": {"met": met, "missed": missed, "none": 9}})


def test_shares_are_of_what_ended_meanwhile() -> None:
    before = [daemon(1, 90, 10), daemon(2, 0, 0)]
    now = [daemon(1, 96, 10, "observe"), daemon(2, 3, 1, "observe")]
    assert lately(before, now, 10) == "observe: 90% of 10 requests in time in the last 10 s"
    assert lately(before, before, 10) == ""


def test_a_daemon_that_was_killed_is_left_out() -> None:
    assert lately([daemon(1, 5, 0), daemon(2, 0, 0)], [daemon(3, 0, 7), daemon(2, 1, 0)], 10).startswith(
        "enforce: 100% of 1 "
    )


def test_the_report_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `| head` does: no traceback, and the playground goes on."""
    readings = iter([[daemon(1, 0, 0)], [daemon(1, 1, 0)]])
    monkeypatch.setattr(playground_report, "seen", lambda _sockets: next(readings))

    def gone(_line: str) -> None:
        raise BrokenPipeError

    playground_report._report([], gone, 0.0)
