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
from textual.coordinate import Coordinate
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane
from textual.worker import get_current_worker

from mfsd.node.control_client import Refused, Unreachable
from mfsd.observe.format import duration
from mfsd.observe.views import VIEWS, Row, Sample, View, arranged, in_time_of

REQUEST_VIEWS = {f"view-{at}" for at, view in enumerate(VIEWS, 1) if view.name in ("Units", "Requests")}
INTERVALS_S = (0.2, 0.5, 1.0, 2.0, 5.0)


HELP = """\
1-6      choose the table              s      sort by the next column
up down  move                          r      reverse the order
/        show only rows with a text    space  pause, or go on
Escape   show all rows again           + -    sample less or more often
?        this page                     q      leave (also Ctrl-C)

HELD       bytes that wait for a permit
IN FLIGHT  bytes permitted and not completed
OUT, IN    share of the link's rate that was used recently
LOAD       share taken by traffic that goes first (rho), variant paper
WINDOW     most bytes in flight in one direction
FAILED OPEN  sent without a permit: overflow, hold limit or no daemon

Any key closes this page."""


class _Help(ModalScreen[None]):
    """Explains the keys and the columns."""

    CSS = """
    _Help { align: center middle; }
    #help { width: 76; height: auto; padding: 1 2; background: $surface; border: round $primary; }
    """

    def compose(self) -> ComposeResult:
        yield Static(HELP, id="help", markup=False)

    def on_key(self) -> None:
        self.dismiss()


class _Table(Vertical):
    """One view with its own order and filter."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view
        self.sort_column: int | None = None
        self.reverse = False
        self.pattern = ""
        self._rows: list[Row] = []
        self._written: dict[str, list[str]] = {}
        """The cells of the terminal's table, by row."""

    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row", zebra_stripes=True)

    def on_mount(self) -> None:
        self._head()

    def show(self, rows: list[Row]) -> None:
        self._rows = rows
        self.refill()

    def refill(self) -> None:
        """Writes only what differs, since most samples change few cells."""
        table = self.query_one(DataTable)
        shown = arranged(self._rows, self.sort_column, self.reverse, self.pattern)
        texts = {row.key: [cell.text for cell in row.cells] for row in shown}
        if list(texts) == list(self._written):
            for at, (key, cells) in enumerate(texts.items()):
                for column, (text, old) in enumerate(zip(cells, self._written[key], strict=True)):
                    if text != old:
                        table.update_cell_at(Coordinate(at, column), self._cell(column, text), update_width=True)
        else:
            cursor = table.cursor_row
            table.clear()
            for key, cells in texts.items():
                table.add_row(*(self._cell(column, text) for column, text in enumerate(cells)), key=key)
            table.move_cursor(row=min(cursor, max(0, len(shown) - 1)))
        self._written = texts

    def _cell(self, column: int, text: str) -> Text:
        return Text(text, justify="left" if self.view.columns[column].endswith(" ") else "right")

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
        self._written = {}
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
    #views { height: 1fr; }
    #filter { display: none; height: 3; }
    _Table { height: 1fr; }
    DataTable { height: 1fr; }
    TabPane { height: 1fr; padding: 0; }
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
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, ask: Callable[[], Sample], interval_s: float = 1.0) -> None:
        """`ask` blocks and raises Unreachable or Refused. If the daemon stops, it is waited for."""
        super().__init__()
        self._ask = ask
        self._interval_s = interval_s
        self._paused = False
        self._before: tuple[float, Sample] | None = None
        self.shows_requests = False
        """Whether requests are shown. They are most of what an answer contains."""
        self._latest: tuple[Sample, Sample, float] | None = None
        """The data of the tables when they are shown."""

    def compose(self) -> ComposeResult:
        yield Static("connecting ...", id="head")
        with TabbedContent(id="views"):
            for at, view in enumerate(VIEWS, 1):
                with TabPane(f"{at} {view.name}", id=f"view-{at}"):
                    yield _Table(view)
        yield Input(placeholder="show rows with this text; Enter keeps the filter, Escape drops it", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        self.action_view(1)
        self._timer = self.set_interval(self._interval_s, self._sample)
        self._sample()

    @work(thread=True, exclusive=True, group="sample")
    def _sample(self) -> None:
        """Asks in a thread, so that a daemon that hangs does not freeze the keyboard."""
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

    def _show(self, now_s: float, sample: Sample) -> None:
        reply = sample.status
        then_s, before = self._before or (now_s, sample)
        if before.status.daemon.epoch != reply.daemon.epoch:  # the daemon was restarted: counters began anew
            then_s, before = now_s, sample
        self._before = (now_s, sample)
        daemon = reply.daemon
        style = {"enforce": "bold green", "observe": "bold yellow"}.get(daemon.mode, "bold red")
        self.query_one("#head", Static).update(
            Text.assemble(
                f"mfsd {daemon.version} pid {daemon.pid}  ",
                (daemon.mode, style),
                f"  up {duration(daemon.uptime_s)}  {len(reply.clients)} programs  every {self._interval_s:g} s\n",
                f"{in_time}  " if (in_time := in_time_of(reply.deadlines)) else "",
                (daemon.socket, "dim"),
            )
        )
        self._latest = (before, sample, now_s - then_s)
        self._show_table()

    def _show_table(self) -> None:
        """Fills the visible table. The others are filled when they are shown."""
        if self._latest is not None:
            table = self._table()
            table.show(list(table.view.rows(*self._latest)))

    # ---- keys ------------------------------------------------------------------------------------

    def _table(self) -> _Table:
        active = self.query_one("#views", TabbedContent).active
        return self.query_one(f"#{active}").query_one(_Table)

    def action_view(self, number: int) -> None:
        self.query_one("#views", TabbedContent).active = f"view-{number}"
        self.query_one(f"#view-{number}").query_one(DataTable).focus()

    def on_tabbed_content_tab_activated(self, event: TabbedContent.TabActivated) -> None:
        before, self.shows_requests = self.shows_requests, event.pane.id in REQUEST_VIEWS
        self._show_table()
        if self.shows_requests and not before:
            self._sample()

    def action_help(self) -> None:
        self.push_screen(_Help())

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
        self._timer = self.set_interval(self._interval_s, self._sample)

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
