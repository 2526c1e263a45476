"""Requests from a trace file or a generator, and the trace formats that are read.

A trace row has an arrival time in seconds, input and output lengths in tokens and the identities of its prompt's
blocks. Identities are prefix-chained: equal ids mean equal prompts up to and including that block. Published formats
that identify content instead (Qwen) are chained while reading.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from mfsd.text import one_line


class TraceError(Exception):
    """A trace that cannot be used; the message names file, row, field and value in one line."""

    def __init__(self, problem: str) -> None:
        super().__init__(one_line(problem))


class Row(msgspec.Struct):
    """One request as recorded or generated."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]  # chained ids of the prompt's blocks, from its start
    block_tokens: int
    session: int = -1
    block_lengths: tuple[int, ...] = ()  # tokens of each block if they differ

    def prefix_tokens(self, blocks: int) -> int:
        """Returns the tokens in the first `blocks` blocks of the prompt."""
        if self.block_lengths:
            return min(self.input_tokens, sum(self.block_lengths[:blocks]))
        return min(self.input_tokens, blocks * self.block_tokens)


LARGEST = 2**63 - 1
"""Limit of any number in a trace."""
PARQUET_ROWS = 8192
"""Rows read at once."""

# Names under which the fields are found: this project's own, Mooncake's, Qwen's, Azure's (as JSON).
ARRIVAL = ("timestamp", "arrival_s", "TIMESTAMP")
INPUT = ("input_length", "input_tokens", "ContextTokens", "num_prefill_tokens")
OUTPUT = ("output_length", "output_tokens", "GeneratedTokens", "num_decode_tokens")
BLOCKS = ("hash_ids", "blocks")
SESSION = ("session_id", "chat_id", "session")


def _field(row: Mapping[str, Any], names: tuple[str, ...], where: str, default: Any = ...) -> Any:
    for name in names:
        if row.get(name) is not None:
            return row[name]
    if default is not ...:
        return default
    raise TraceError(f"{where}: no column {' or '.join(names)}; it has {', '.join(sorted(row))}")


def number_of(value: Any, where: str, name: str, kind: type, least: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= LARGEST:
        raise TraceError(f"{where}: {name} is {value!r:.80}; expected a number from {least:g} to {LARGEST:g}")
    return kind(value)


def _integers(value: Any, where: str, name: str, least: int) -> tuple[int, ...]:
    """Returns a list of integers; empty if the field is missing."""
    numbers = () if value is None else value
    if not isinstance(numbers, (list, tuple)) or not all(type(n) is int and least <= n <= LARGEST for n in numbers):
        raise TraceError(f"{where}: {name} is {value!r:.80}; expected a list of integers from {least} to {LARGEST:g}")
    return tuple(numbers)


def _chain(content: Iterable[int], seen: dict[tuple[int, int], int]) -> tuple[int, ...]:
    chained, parent = [], -1
    for block in content:
        parent = seen.setdefault((parent, block), len(seen))
        chained.append(parent)
    return tuple(chained)


def records(path: Path, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields each row with its position in the file. `columns`: of a Parquet file only those of these that it has are
    read."""
    if path.suffix == ".parquet":
        from pyarrow import parquet

        number = 0
        try:
            file = parquet.ParquetFile(path)
            wanted = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            for batch in file.iter_batches(PARQUET_ROWS, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", row
        except Exception as error:  # Arrow has errors of many kinds, and the text may not be UTF-8
            raise TraceError(f"{path}: not a readable Parquet file: {error}") from error
        return
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise TraceError(f"{where}: not JSON: {error}") from error
            if not isinstance(row, dict):
                raise TraceError(f"{where}: expected an object with fields, found {type(row).__name__}")
            yield where, row


def read_trace(path: Path, limit: int | None = None) -> list[Row]:
    """Reads JSONL or Parquet rows: this project's traces, Mooncake's (milliseconds, 512-token blocks) and Qwen's
    published format (`chat_id`, 16-token blocks, content ids, several kept per line). Raises TraceError with one line
    on bad input."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    rows: list[Row] = []
    seen: dict[tuple[int, int], int] = {}
    sessions: dict[str, int] = {}
    scale = 1.0
    for where, row in records(path):
        if limit is not None and len(rows) >= limit:
            break
        qwen = "chat_id" in row
        tokens = number_of(_field(row, INPUT, where), where, "input length", int, 1)
        blocks = _integers(_field(row, BLOCKS, where, default=()), where, "block ids", -LARGEST)
        if not rows and not qwen and isinstance(row.get("timestamp"), int) and "req_id" not in row:
            scale = 1e-3  # Mooncake's own files have milliseconds
        arrival = number_of(_field(row, ARRIVAL, where), where, "arrival time", float, 0) * scale
        if rows and arrival < rows[-1].arrival_s:
            raise TraceError(
                f"{where}: arrives at {arrival} s, before the row above it "
                f"({rows[-1].arrival_s} s); sort the trace by time"
            )
        given = row.get("block_tokens")  # a number if all blocks have the same length
        lengths = () if isinstance(given, (int, float)) else _integers(given, where, "block_tokens", 0)
        if lengths and len(lengths) != len(blocks):
            raise TraceError(f"{where}: {len(lengths)} block_tokens for {len(blocks)} blocks")
        size = 16 if qwen else 512
        if blocks and not qwen and not lengths:
            fits = (s for s in (16, 64, 512) if len(blocks) in (-(-tokens // s), tokens // s))
            size = next(fits, -(-tokens // len(blocks)))
        output = number_of(_field(row, OUTPUT, where, default=1), where, "output length", int, 0)
        session = _field(row, SESSION, where, default=-1)
        chained = _chain(blocks, seen) if qwen else blocks
        number = session if isinstance(session, int) else sessions.setdefault(str(session), len(sessions))
        rows.append(Row(arrival, tokens, output, chained, size, number, lengths))
    if not rows:
        raise TraceError(f"{path}: the trace is empty")
    return rows


def read_lengths(path: Path) -> list[tuple[int, int]]:
    """Reads prompt and output tokens of each row, also of files without times of arrival."""
    lengths = [
        (
            number_of(_field(row, INPUT, where), where, "input length", int, 1),
            number_of(_field(row, OUTPUT, where), where, "output length", int, 0),
        )
        for where, row in records(path, (*INPUT, *OUTPUT))
    ]
    if not lengths:
        raise TraceError(f"{path}: the trace is empty")
    return lengths
