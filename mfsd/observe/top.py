"""`mfsctl top`: the daemon's queues, live, in a terminal (Textual)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane
from textual.worker import get_current_worker

from mfsd.node.control import DeadlineStatus
from mfsd.node.control_client import Refused, Unreachable
from mfsd.observe.format import duration
from mfsd.observe.views import VIEWS, Look, Row, View, arranged

INTERVALS_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class _Table(Vertical):
    """One view with its own order and filter."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view
        self.sort_column: int | None = None
        self.reverse = False
        self.pattern = ""
        self._rows: list[Row] = []

    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row", zebra_stripes=True)

    def on_mount(self) -> None:
        self._head()

    def show(self, rows: list[Row]) -> None:
        self._rows = rows
        self.refill()

    def refill(self) -> None:
        table = self.query_one(DataTable)
        cursor = table.cursor_row
        shown = arranged(self._rows, self.sort_column, self.reverse, self.pattern)
        table.clear()
        for row in shown:
            table.add_row(
                *(
                    Text(cell.text, justify="left" if title.endswith(" ") else "right")
                    for title, cell in zip(self.view.columns, row.cells, strict=True)
                ),
                key=row.key,
            )
        table.move_cursor(row=min(cursor, max(0, len(shown) - 1)))

    def next_column(self) -> None:
        self.sort_column = 0 if self.sort_column is None else self.sort_column + 1
        if self.sort_column == len(self.view.columns):
            self.sort_column = None
        title = "" if self.sort_column is None else self.view.columns[self.sort_column]
        self.reverse = not title.endswith(" ")  # the largest numbers first, names from A
        self._head()

    def turn(self) -> None:
        self.reverse = not self.reverse
        self._head()

    def _head(self) -> None:
        table = self.query_one(DataTable)
        table.clear(columns=True)
        for at, title in enumerate(self.view.columns):
            mark = ("▼" if self.reverse else "▲") if at == self.sort_column else ""
            table.add_column(
                Text(title.strip() + mark, justify="left" if title.endswith(" ") else "right"), key=str(at)
            )
        self.refill()


class Top(App[None]):
    """Tables of the daemon's state, refreshed until the user leaves."""

    TITLE = "mfsctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 2; padding: 0 1; }
    #filter { display: none; height: 3; }
    DataTable { height: 1fr; }
    TabPane { padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        # The tabs name these keys; the last line has no room for them in 80 columns.
        *(Binding(str(at), f"view({at})", view.name, show=False) for at, view in enumerate(VIEWS, 1)),
        Binding("s", "sort", "Sort by next"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("space", "pause", "Pause"),
        Binding("plus,equals_sign", "slower", "Slower", key_display="+", show=False),
        Binding("minus", "faster", "Faster", key_display="-", show=False),
        Binding("escape", "unfilter", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, ask: Callable[[], Look], interval_s: float = 1.0) -> None:
        """`ask` blocks and raises Unreachable or Refused; a daemon that stops is waited for."""
        super().__init__()
        self._ask = ask
        self._interval_s = interval_s
        self._paused = False
        self._before: tuple[float, Look] | None = None

    def compose(self) -> ComposeResult:
        yield Static("connecting ...", id="head")
        with TabbedContent(id="views"):
            for at, view in enumerate(VIEWS, 1):
                with TabPane(f"{at} {view.name}", id=f"view-{at}"):
                    yield _Table(view)
        yield Input(placeholder="show rows with this text; Enter keeps it, Escape drops it", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.action_view(1)
        self._timer = self.set_interval(self._interval_s, self._look)
        self._look()

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        """Asks in a thread: a daemon that hangs must not freeze the keyboard."""
        if self._paused:
            return
        worker = get_current_worker()
        try:
            reply = self._ask()
        except (Unreachable, Refused) as error:
            if not worker.is_cancelled:
                self.call_from_thread(self._lost, str(error))
        else:
            if not worker.is_cancelled:
                self.call_from_thread(self._show, time.monotonic(), reply)

    def _lost(self, why: str) -> None:
        self._before = None
        self.query_one("#head", Static).update(Text(why, style="bold red"))

    def _show(self, now_s: float, look: Look) -> None:
        reply = look.status
        then_s, before = self._before or (now_s, look)
        if before.status.daemon.epoch != reply.daemon.epoch:  # it was restarted: counters began anew
            then_s, before = now_s, look
        self._before = (now_s, look)
        daemon = reply.daemon
        style = {"enforce": "bold green", "observe": "bold yellow"}.get(daemon.mode, "bold red")
        self.query_one("#head", Static).update(
            Text.assemble(
                f"mfsd {daemon.version} pid {daemon.pid}  ",
                (daemon.mode, style),
                f"  up {duration(daemon.uptime_s)}  {len(reply.clients)} programs"
                f"  every {self._interval_s:g} s{_in_time(reply.deadlines)}\n",
                (daemon.socket, "dim"),
            )
        )
        for table in self.query(_Table):
            table.show(list(table.view.rows(before, look, now_s - then_s)))

    # ---- keys ------------------------------------------------------------------------------------

    def _table(self) -> _Table:
        active = self.query_one("#views", TabbedContent).active
        return self.query_one(f"#{active}").query_one(_Table)

    def action_view(self, number: int) -> None:
        self.query_one("#views", TabbedContent).active = f"view-{number}"
        self.query_one(f"#view-{number}").query_one(DataTable).focus()

    def action_sort(self) -> None:
        self._table().next_column()

    def action_reverse(self) -> None:
        self._table().turn()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self.sub_title = "paused" if self._paused else ""
        self.notify("paused; space goes on" if self._paused else "running")

    def action_slower(self) -> None:
        self._set_interval(1)

    def action_faster(self) -> None:
        self._set_interval(-1)

    def _set_interval(self, step: int) -> None:
        nearest = min(range(len(INTERVALS_S)), key=lambda at: abs(INTERVALS_S[at] - self._interval_s))
        self._interval_s = INTERVALS_S[min(len(INTERVALS_S) - 1, max(0, nearest + step))]
        self._timer.stop()
        self._timer = self.set_interval(self._interval_s, self._look)

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.value = self._table().pattern
        field.focus()

    def action_unfilter(self) -> None:
        self._filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        try:
            table = self._table()
        except NoMatches:
            return
        table.pattern = event.value
        table.refill()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._filter(event.value)

    def _filter(self, pattern: str) -> None:
        table = self._table()
        table.pattern = pattern
        table.refill()
        self.query_one("#filter", Input).display = False
        table.query_one(DataTable).focus()


def _in_time(deadlines: DeadlineStatus) -> str:
    recent = deadlines.recent_met + deadlines.recent_missed
    return f"  {deadlines.recent_met / recent:.0%} in time" if recent else ""
