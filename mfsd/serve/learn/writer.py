"""Appends the rows of requests that have ended to a file that `mfsctl learn --requests` reads.

A thread of its own writes, once a second, so that a disk that is slow, hangs or is full holds up no request: rows that
cannot be written are left out, and the first problem is reported. The file is opened anew each time, so it may be moved
away. At its largest size it becomes `path`.1, in place of the one before: the disk never has more than these two.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mfsd.serve.learn.rows import RequestRow

SIZE_MAX_BYTES: Final = 64 << 20
"""About 350,000 rows."""
WAITING_MAX: Final = 65_536
"""Rows that wait for the disk. More are left out."""
WRITE_S: Final = 1.0
CLOSE_S: Final = 2.0
"""How long `close` waits for the disk."""
TAIL_BYTES: Final = 4096
"""More than a row has."""
BEGINS: Final = b'{"session_id":'
"""Begin of a row."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(RequestRow).decode


class RowWriter:
    def __init__(self, path: Path, warn: Callable[[str], object], size_max_bytes: int = SIZE_MAX_BYTES) -> None:
        """warn: is called once at most, in the writer's thread."""
        self._path, self._warn, self._size_max = path, warn, size_max_bytes
        self._rows: deque[RequestRow] = deque(maxlen=WAITING_MAX)
        self._latest_s = 0.0
        """Timestamp of the last row in the file."""
        self._warned = False
        self._closes = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mfs-rows", daemon=True)
        self._thread.start()

    def add(self, row: RequestRow) -> None:
        """Adds a row. Never waits."""
        self._rows.append(row)

    def close(self) -> None:
        """Writes the rows that wait, if the disk takes them at once."""
        self._closes.set()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closes.wait(WRITE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        if not rows:
            return
        try:
            self._append(rows)
        except OSError as error:
            if not self._warned:
                self._warned = True
                problem = error.strerror or error
                self._warn(f"{self._path}: {problem}; requests that end are not recorded until it can be written")

    def _append(self, rows: Sequence[RequestRow]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._size() >= self._size_max:
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = self._whole(file)
            text = b"".join(_encode(row) + b"\n" for row in self._in_order(rows))
            if os.write(file, text) < len(text):
                os.ftruncate(file, size)  # a part of a row would make the file unreadable
                raise OSError("the disk took only a part of the rows")
        finally:
            os.close(file)

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _whole(self, file: int) -> int:
        """Cuts off an incomplete last row, which a host that failed may have left; returns the size. OSError if the
        file does not end with a row: it is another one, and stays as it is."""
        size = os.fstat(file).st_size
        tail = os.pread(file, min(size, TAIL_BYTES), max(0, size - TAIL_BYTES))
        rows, _, cut = tail.rpartition(b"\n")
        if rows:
            try:
                last = _decode(rows.rpartition(b"\n")[2])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                raise OSError("does not hold recorded requests") from None
            self._latest_s = max(self._latest_s, last.timestamp)
        elif not cut.startswith(BEGINS[: len(cut)]) or size > TAIL_BYTES:
            raise OSError("does not hold recorded requests")
        if cut:
            os.ftruncate(file, size - len(cut))
        return size - len(cut)

    def _in_order(self, rows: Sequence[RequestRow]) -> Iterator[RequestRow]:
        """Yields the rows with timestamps that never go back, as a wall clock does that is set."""
        for row in rows:
            self._latest_s = max(self._latest_s, row.timestamp)
            yield msgspec.structs.replace(row, timestamp=self._latest_s)
