"""Prints the output of commands: tables with one line per row for people, JSON or YAML for programs.

Columns are two blanks apart. Their order is the same in every version; new columns come with `-o wide` or at the end.
On a terminal that is too narrow, columns marked `cut` are shortened; in a pipe nothing is.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import click
import msgspec

from mfsd.text import one_line

Form = Literal["table", "wide", "json", "yaml"]
FORMS: tuple[Form, ...] = ("table", "wide", "json", "yaml")
C = TypeVar("C", bound=Callable[..., Any])
GAP = "  "
CUT_MIN = 6
"""No column is cut to less than this."""


class Column(NamedTuple):
    title: str
    right: bool = False
    """Aligned right, for numbers."""
    wide: bool = False
    """Shown only with -o wide."""
    cut: bool = False
    """May be cut on a terminal that is too narrow."""


class Cell(NamedTuple):
    text: str
    color: str | None = None


Row = Sequence[str | Cell]


def output_options(command: C) -> C:
    """Adds `-o FORM` and `--json` to a command, which is called with the argument `form`."""

    @click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(FORMS),
        default="table",
        show_default=True,
        help="Output format: wide adds columns; json and yaml are for programs.",
    )
    @click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    @functools.wraps(command)
    def run(*arguments: Any, form: Form, as_json: bool, **options: Any) -> Any:
        return command(*arguments, form="json" if as_json else form, **options)

    return run  # type: ignore[return-value]


def printed(value: Any, form: Form, pretty: bool = False) -> bool:
    """Prints the value as JSON or YAML; returns False, without output, if `form` is a table."""
    if form == "json":
        data = msgspec.json.encode(value)
        click.echo(msgspec.json.format(data, indent=2) if pretty else data)
    elif form == "yaml":
        plain = msgspec.to_builtins(value, str_keys=True)
        click.echo(msgspec.yaml.encode(plain).decode(), nl=False)
    return form in ("json", "yaml")


def print_table(columns: Sequence[Column], rows: Sequence[Row], form: Form = "table") -> None:
    for line in table_lines(columns, rows, form, terminal_width(form)):
        click.echo(line)


def terminal_width(form: Form) -> int | None:
    """Returns the terminal's width; None if lines may have any length."""
    return shutil.get_terminal_size().columns if form == "table" and sys.stdout.isatty() else None


def table_lines(
    columns: Sequence[Column], rows: Sequence[Row], form: Form, width: int | None, keep: bool = False
) -> Iterator[str]:
    """Yields a line of titles and one for each row. `keep` keeps blanks within cells, for text that they align."""
    kept = [at for at, column in enumerate(columns) if form == "wide" or not column.wide]
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    texts = [[_harmless(row[at].text) if keep else _one_line(row[at].text) for at in kept] for row in cells]
    widths = [max([len(columns[at].title), *(len(row[place]) for row in texts)]) for place, at in enumerate(kept)]
    if width is not None:
        _fit(widths, [columns[at].cut for at in kept], [len(columns[at].title) for at in kept], width)
    if kept and not columns[kept[-1]].right:
        widths[-1] = (
            0 if width is None else min(widths[-1], max(0, width - sum(widths[:-1]) - len(GAP) * len(kept[1:])))
        )
    yield _line([(columns[at], Cell(columns[at].title)) for at in kept], widths, bold=True)
    for row, shown in zip(cells, texts, strict=True):
        pairs = [(columns[at], Cell(text, row[at].color)) for at, text in zip(kept, shown, strict=True)]
        yield _line(pairs, widths)


def _line(cells: list[tuple[Column, Cell]], widths: list[int], bold: bool = False) -> str:
    """Returns one line. A width of 0 means the length of the text, as for the last column where nothing is cut."""
    parts: list[str] = []
    for (column, cell), width in zip(cells, widths, strict=True):
        text = cell.text if not width or len(cell.text) <= width else cell.text[: width - 1] + "…"
        last = len(parts) == len(cells) - 1
        placed = text.rjust(width) if column.right else text if last else text.ljust(width)
        parts.append(click.style(placed, fg=cell.color, bold=bold or None) if bold or cell.color else placed)
    return GAP.join(parts)


def _one_line(text: str) -> str:
    return _harmless(" ".join(text.split())) or "-"


def _harmless(text: str) -> str:
    """Escapes control characters: names come from engines, nodes and programs and must not control the terminal."""
    return text if text.isprintable() else one_line(text, sys.maxsize)


def _fit(widths: list[int], may_cut: list[bool], least: list[int], width: int) -> None:
    """Narrows the widest column that may be cut until the line fits into `width`."""
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        cuttable = [at for at, may in enumerate(may_cut) if may and widths[at] > max(CUT_MIN, least[at])]
        if not cuttable:
            return
        widths[max(cuttable, key=lambda at: widths[at])] -= 1
