"""Recorded requests: JSON lines with one request per line, in order of time within each session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec


class RequestRow(msgspec.Struct, frozen=True, kw_only=True):
    """One request that has ended. Other fields of a line are ignored."""

    session_id: int | str
    timestamp: float
    """Seconds; may count from the start of each session."""
    input_length: int
    """Prompt tokens."""
    output_length: int
    role: str = ""
    """Role of the caller in the workflow: planner, coder, main ..."""
    tools: int = 0
    """Number of tools that the call may use, or of tokens that describe them; 0: none."""
    after_tool: bool | None = None
    """Whether the prompt ends with a tool's result; null: not known."""
    tool_call: bool | None = None
    """Whether the answer called a tool; null: not known, and only lengths are learned from the row."""
    group: int | str | None = None
    """Group of sessions that must be in the same part, such as forks of one conversation; default: the session."""

    def __post_init__(self) -> None:
        for name in ("timestamp", "input_length", "output_length", "tools"):
            if not 0 <= getattr(self, name) < 1e12:  # written so that NaN fails
                raise ValueError(f"{name} is {getattr(self, name)}: use 0 to 1e12")

    @property
    def split_group(self) -> str:
        return f"session {self.session_id}" if self.group is None else f"group {self.group}"


class RowsError(Exception):
    """Rows cannot be used. The message is one line that names the file and the row."""


_decode = msgspec.json.Decoder(RequestRow).decode


def read_rows(path: Path) -> list[RequestRow]:
    """Reads the rows. RowsError for the first row that cannot be used, and for a file without rows."""
    try:
        with path.open("rb") as lines:
            return checked(_rows(path, lines), str(path))
    except OSError as error:
        raise RowsError(f"{path}: {error.strerror}; name a readable file of JSON lines") from error


def _rows(path: Path, lines: Iterable[bytes]) -> Iterator[RequestRow]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last for too many brackets
            remedy = "each line is one request with session_id, timestamp, input_length and output_length"
            raise RowsError(f"{path}:{number}: {' '.join(str(error).split())}; {remedy}") from error


def checked(rows: Iterable[RequestRow], name: str) -> list[RequestRow]:
    """Returns the rows, which must be in order of time within each session and have at least one answer. RowsError."""
    found: list[RequestRow] = []
    latest: dict[int | str, float] = {}
    for row in rows:
        before = latest.get(row.session_id, 0.0)
        if row.timestamp < before:
            raise RowsError(
                f"{name}: request {len(found) + 1}: timestamp {row.timestamp:g} of session {row.session_id} comes "
                f"after {before:g}; sort the requests of each session by time"
            )
        latest[row.session_id] = row.timestamp
        found.append(row)
    if not found:
        raise RowsError(f"{name}: holds no requests; record some first")
    if not any(row.output_length for row in found):
        raise RowsError(f"{name}: request 1: output_length is 0 here and in all others; record answers, too")
    return found
