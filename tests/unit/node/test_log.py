"""Log lines: their form, and that they never block, never fail, and cannot be used to fill a disk."""

from __future__ import annotations

import os

from mfsd.node.log import BURST, BURST_INTERVAL_S, Log


class Pipe:
    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def lines(self) -> list[str]:
        try:
            return os.read(self.reader, 1 << 20).decode().splitlines()
        except BlockingIOError:
            return []


def test_lines_are_logfmt_and_one_line_each() -> None:
    pipe = Pipe()
    Log("info", pipe.writer).info("attached", client=3, process='evil"\n name', path="/run/a.sock", nothing="")
    assert pipe.lines() == [
        r'level=info event=attached client=3 process="evil\"\n name" path=/run/a.sock nothing=""',
    ]


def test_levels_and_the_journal() -> None:
    pipe = Pipe()
    log = Log("warning", pipe.writer, journal=True)
    log.info("hidden")
    log.error("shown")
    assert pipe.lines() == ["<3>level=error event=shown"]


def test_an_event_that_repeats_is_summed_up() -> None:
    pipe = Pipe()
    now_s = [0.0]
    log = Log("info", pipe.writer, clock_s=lambda: now_s[0])
    for n in range(BURST + 7):
        log.warning("refused", n=n)
    log.warning("other")
    assert len(pipe.lines()) == BURST + 1
    now_s[0] = BURST_INTERVAL_S
    log.warning("refused", n=0)
    assert pipe.lines() == ["level=warning event=refused n=0 suppressed=7"]


def test_a_full_pipe_and_a_closed_one_cost_lines_only() -> None:
    pipe = Pipe()
    os.set_blocking(pipe.writer, False)
    try:
        while True:
            os.write(pipe.writer, bytes(4096))
    except BlockingIOError:
        os.set_blocking(pipe.writer, True)
    log = Log("info", pipe.writer)
    log.info("lost")
    assert log.dropped == 1
    os.close(pipe.reader)
    log.info("lost", reader="gone")
    assert log.dropped == 2


def test_a_long_line_is_cut() -> None:
    pipe = Pipe()
    Log("info", pipe.writer).info("long", text="x" * 10_000)
    (line,) = pipe.lines()
    assert len(line) < 2048
